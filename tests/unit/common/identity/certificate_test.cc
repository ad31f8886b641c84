#include "common/identity/certificate.h"

#include <sys/stat.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/identity/identity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CertificateTest : public ::testing::Test {
 protected:
  // The error of a pair as a worker's, as text.
  std::string PairError(const std::string& cert, const std::string& key,
                        CertificateUse use = CertificateUse::kClient) {
    return std::string(ReadOwnCertificate(cert, key, use, absl::Now()).status().message());
  }

  const TestAuthority authority_;
  const TestFolder folder_;
};

TEST_F(CertificateTest, SaysWhoItIsForAndHowLong) {
  CertificateRequest request;
  request.common_name = "worker site-a";
  request.names =
      "DNS:a.example,DNS:b.example,IP:10.1.2.3,IP:2001:db8:0:0:0:0:0:1,URI:https://x.example,"
      "URI:causeway://first/worker/site-a";
  request.not_after = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 12345);
  const auto certificate = ParseCertificate(authority_.Issue(request).certificate, "x").value();
  EXPECT_THAT(certificate.subject, HasSubstr("worker site-a"));
  EXPECT_THAT(certificate.dns_names, ElementsAre("a.example", "b.example"));
  EXPECT_THAT(certificate.ip_addresses, ElementsAre("10.1.2.3", "2001:db8:0:0:0:0:0:1"));
  EXPECT_THAT(certificate.uris, ElementsAre("https://x.example", "causeway://first/worker/site-a"));
  EXPECT_EQ(certificate.identity, (Identity{"first", Role::kWorker, "site-a"}));
  EXPECT_EQ(certificate.not_after, request.not_after);
}

TEST_F(CertificateTest, TwoIdentitiesAreNone) {
  CertificateRequest request;
  request.names = "URI:causeway://*/worker/a,URI:causeway://*/operator/a";
  EXPECT_FALSE(ParseCertificate(authority_.Issue(request).certificate, "x")->identity.has_value());
  request.names = "URI:causeway://*/worker/a,URI:causeway://*/emperor/a";
  EXPECT_FALSE(ParseCertificate(authority_.Issue(request).certificate, "x")->identity.has_value());
  request.names = "DNS:causeway";
  EXPECT_FALSE(ParseCertificate(authority_.Issue(request).certificate, "x")->identity.has_value());
}

TEST_F(CertificateTest, FilesThatCannotBeTrustedAreRefusedByName) {
  const auto code_of = [](const std::string& file, bool secret) {
    const absl::Status status = ReadTrustedFile(file, secret).status();
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(file));
    }
    return status.code();
  };
  const std::string file = folder_.Write("file", "text");
  EXPECT_EQ(code_of(file, true), absl::StatusCode::kOk);
  EXPECT_EQ(code_of(folder_.path("none"), false), absl::StatusCode::kNotFound);
  EXPECT_EQ(code_of(file + "/below", false), absl::StatusCode::kNotFound);
  EXPECT_EQ(code_of(folder_.path("."), false), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of("/dev/zero", false), absl::StatusCode::kInvalidArgument);
  const std::string pipe = folder_.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(code_of(pipe, false), absl::StatusCode::kInvalidArgument);  // And does not hang.
  EXPECT_EQ(code_of(folder_.Write("empty", ""), false), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(folder_.Write("huge", std::string((1 << 20) + 1, 'x')), false),
            absl::StatusCode::kInvalidArgument);

  const std::string link = folder_.path("link");
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(code_of(link, true), absl::StatusCode::kOk);  // The link's target counts.
  const std::string loop = folder_.path("loop");
  std::filesystem::create_symlink(loop, loop);
  EXPECT_EQ(code_of(loop, true), absl::StatusCode::kPermissionDenied);

  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_EQ(code_of(file, false), absl::StatusCode::kOk);
  EXPECT_EQ(code_of(file, true), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of(link, true), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(chmod(file.c_str(), 0640), 0);
  EXPECT_EQ(code_of(file, true), absl::StatusCode::kOk);
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  EXPECT_EQ(code_of(file, false), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CertificateTest, APairThatFitsIsTaken) {
  const PemPair pair = IssueIdentity(authority_, "causeway://*/worker/a");
  const std::string cert = folder_.Write("cert", pair.certificate);
  const std::string key = folder_.Write("key", pair.key);
  const auto own = ReadOwnCertificate(cert, key, CertificateUse::kClient, absl::Now()).value();
  EXPECT_EQ(own.certificate.identity->name, "a");
  EXPECT_EQ(own.chain, pair.certificate);
  EXPECT_EQ(own.key, pair.key);
  const std::string ca = folder_.Write("ca", authority_.pem());
  EXPECT_EQ(*ReadAuthorities(ca, absl::Now()), authority_.pem());
  EXPECT_TRUE(CheckSigned(cert, ca, CertificateUse::kClient, absl::Now()).ok());
}

TEST_F(CertificateTest, PairsThatWouldFailLaterAreRefusedNow) {
  const PemPair pair = IssueIdentity(authority_, "causeway://*/worker/a");
  const PemPair other = IssueIdentity(authority_, "causeway://*/worker/b");
  const std::string cert = folder_.Write("cert", pair.certificate);
  const std::string key = folder_.Write("key", pair.key);
  EXPECT_THAT(PairError(cert, folder_.Write("other", other.key)), HasSubstr("not the private key"));
  EXPECT_THAT(PairError(key, key), HasSubstr("holds no certificate"));
  EXPECT_THAT(PairError(cert, cert), HasSubstr("holds no private key"));
  EXPECT_THAT(PairError(folder_.path("none"), key), HasSubstr("none"));
  EXPECT_THAT(PairError(cert, key, CertificateUse::kServer), HasSubstr("not meant for a server"));
  const PemPair server = IssueServer(authority_);
  EXPECT_THAT(PairError(folder_.Write("sc", server.certificate), folder_.Write("sk", server.key)),
              HasSubstr("not meant for a client"));
  EXPECT_THAT(PairError(folder_.Write("half", pair.certificate.substr(0, 300)), key),
              HasSubstr("damaged"));
  EXPECT_THAT(PairError(cert, folder_.Write("half_key", pair.key.substr(0, 100))),
              HasSubstr("holds no private key"));
  EXPECT_THAT(
      PairError(folder_.Write("tail", pair.certificate + other.certificate.substr(0, 200)), key),
      AllOf(HasSubstr("certificate 2"), HasSubstr("damaged")));
  EXPECT_THAT(PairError(cert, folder_.Write("enc",
                                            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n"
                                            "-----END ENCRYPTED PRIVATE KEY-----\n")),
              HasSubstr("passphrase"));

  CertificateRequest request;
  request.not_before = absl::Now() - absl::Hours(48);
  request.not_after = absl::Now() - absl::Hours(24);
  const PemPair expired = authority_.Issue(request);
  EXPECT_THAT(PairError(folder_.Write("c", expired.certificate), folder_.Write("k", expired.key)),
              AllOf(HasSubstr("expired"), HasSubstr("renew")));
  request.not_before = absl::Now() + absl::Hours(1);
  request.not_after = absl::Now() + absl::Hours(24);
  const PemPair early = authority_.Issue(request);
  EXPECT_THAT(PairError(folder_.Write("c", early.certificate), folder_.Write("k", early.key)),
              HasSubstr("clock"));
}

TEST_F(CertificateTest, AuthoritiesMustBeAuthoritiesAndStandBehindACertificate) {
  const PemPair pair = IssueIdentity(authority_, "causeway://*/worker/a");
  const std::string cert = folder_.Write("cert", pair.certificate);
  EXPECT_THAT(std::string(ReadAuthorities(cert, absl::Now()).status().message()),
              HasSubstr("no authority's"));
  const TestAuthority other("other");
  const std::string ca = folder_.Write("ca", other.pem());
  const absl::Status stranger = CheckSigned(cert, ca, CertificateUse::kClient, absl::Now());
  EXPECT_EQ(stranger.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(stranger.message()), AllOf(HasSubstr(ca), HasSubstr(cert)));
  // Old and new in one file: how an authority is replaced.
  const std::string both = folder_.Write("both", other.pem() + authority_.pem());
  EXPECT_TRUE(CheckSigned(cert, both, CertificateUse::kClient, absl::Now()).ok());
}

TEST_F(CertificateTest, AnEndThatIsNearIsWarnedAbout) {
  Certificate certificate;
  const absl::Time now = absl::Now();
  certificate.not_after = now + absl::Hours(24 * 8);
  EXPECT_EQ(ExpiryWarning(certificate, "f", now), "");
  certificate.not_after = now + absl::Hours(50);
  EXPECT_THAT(ExpiryWarning(certificate, "f", now), HasSubstr("expires in 50h"));
  certificate.not_after = now - absl::Hours(1);
  EXPECT_THAT(ExpiryWarning(certificate, "f", now), HasSubstr("has expired"));
  EXPECT_THAT(ExpiryWarning(certificate, "f", now, "it renews itself"),
              HasSubstr(": it renews itself"));
}

// Whatever a file holds: an answer, no crash, and nothing left in OpenSSL's queue for gRPC to find.
TEST_F(CertificateTest, DamagedFilesAreRefusedOrRead) {
  const PemPair pair = IssueServer(authority_);
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::string cert = pair.certificate;
    std::string key = pair.key;
    std::string& damaged = i % 2 == 0 ? cert : key;
    switch (random() % 3) {
      case 0:
        damaged.resize(random() % damaged.size());
        break;
      case 1:
        damaged[random() % damaged.size()] = static_cast<char>(random());
        break;
      default:
        damaged.insert(random() % damaged.size(), damaged.substr(0, random() % damaged.size()));
    }
    const absl::StatusOr<OwnCertificate> result =
        ReadOwnCertificate(folder_.Write("cert", cert), folder_.Write("key", key),
                           CertificateUse::kServer, absl::Now());
    if (!result.ok()) {
      EXPECT_FALSE(result.status().message().empty());
    }
  }
}

TEST(Identity, IsWrittenAndReadAsAUri) {
  const auto identity = ParseIdentity("causeway://*/worker/site-a").value();
  EXPECT_EQ(identity.run, kEveryRun);
  EXPECT_EQ(identity.role, Role::kWorker);
  EXPECT_EQ(identity.name, "site-a");
  for (const Role role : {Role::kObserver, Role::kWorker, Role::kOperator}) {
    const Identity written{"run.1", role, "n_2"};
    const auto read = ParseIdentity(IdentityUri(written)).value();
    EXPECT_EQ(read, written);
  }
}

TEST(Identity, OtherUrisAreRefused) {
  for (const char* const uri :
       {"", "causeway://", "causeway:///worker/a", "causeway://*/worker", "causeway://*/worker/",
        "causeway://*/worker/a/", "causeway://*/worker/a/b", "causeway://*/root/a",
        "causeway://*/Worker/a", "causeway://**/worker/a", "causeway://*/worker/a b",
        "causeway://*/worker/a%41", "causeway://a*/worker/a", "https://*/worker/a",
        "spiffe://causeway/worker/a", " causeway://*/worker/a", "CAUSEWAY://*/worker/a"}) {
    EXPECT_EQ(ParseIdentity(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
  // A name with a NUL in it must not pass for what stands before it.
  EXPECT_FALSE(ParseIdentity(absl::string_view("causeway://*/worker/a\0b", 23)).ok());
  EXPECT_FALSE(ParseIdentity("causeway://*/worker/" + std::string(65, 'a')).ok());
}

TEST(Token, MustBeLongAndPrintableAndIsNeverShown) {
  EXPECT_TRUE(CheckToken(std::string(32, 'x')).ok());
  EXPECT_TRUE(CheckToken(std::string(1024, '~')).ok());
  for (const std::string& token :
       {std::string(), std::string(31, 'x'), std::string(1025, 'x'), std::string(40, ' '),
        std::string("0123456789012345678901234567\n890123456789"), std::string(40, '\xff')}) {
    const absl::Status status = CheckToken(token);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    if (token.empty()) continue;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(token)));
  }
}

}  // namespace
}  // namespace causeway
