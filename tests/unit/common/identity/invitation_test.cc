#include "common/identity/invitation.h"

#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/identity/authority.h"
#include "common/identity/certificate.h"
#include "common/identity/openssl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

InvitationLine Line() {
  return {.addresses = {"203.0.113.10:7070", "[2001:db8::1]:7070", "hub.example.org:443"},
          .run = "first",
          .name = "berlin",
          .pin = std::string(64, 'a'),
          .secret = std::string(kInvitationSecretBytes, '\x7f')};
}

TEST(Invitation, ALineComesBackAsItWas) {
  const std::string text = FormatInvitation(Line());
  EXPECT_EQ(text.find_first_of(" &?;*$'\"\\|<>()#~!"), std::string::npos)
      << "a shell would read more than the line: " << text;
  const auto parsed = ParseInvitation(absl::StrCat("  ", text, "\n")).value();
  EXPECT_EQ(parsed, Line());
}

TEST(Invitation, ALineHasNoMoreAddressesThanOneMayHave) {
  InvitationLine line = Line();
  line.addresses.clear();
  for (int i = 1; i <= 20; ++i) line.addresses.push_back(absl::StrCat("10.0.0.", i, ":7070"));
  const auto parsed = ParseInvitation(FormatInvitation(line)).value();
  line.addresses.resize(16);
  EXPECT_EQ(parsed, line);
}

TEST(Invitation, WhatIsCutOrChangedIsRefusedWithoutItsSecret) {
  const std::string text = FormatInvitation(Line());
  const std::string secret = text.substr(text.rfind('.') + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == 'b' ? 'c' : 'b';
    for (const std::string& wrong : {text.substr(0, i), changed}) {
      EXPECT_THAT(ParseInvitation(wrong),
                  StatusIs(kInvalidArgument, Not(HasSubstr(secret.substr(0, 8)))))
          << wrong;
    }
  }
  EXPECT_THAT(std::string(ParseInvitation("127.0.0.1:7070").status().message()),
              HasSubstr("causewayctl invite"));
}

TEST(Invitation, BothEndsMakeTheSameCertificateAndItVouchesForItselfAlone) {
  const auto secret = MakeInvitationSecret().value();
  const auto here = CertificateOfInvitation(secret, "berlin");
  const auto there = CertificateOfInvitation(secret, "berlin");
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->certificate, there->certificate);
  EXPECT_NE(CertificateOfInvitation(secret, "paris")->certificate, here->certificate);
  const auto parsed = ParseCertificate(here->certificate, "it").value();
  EXPECT_THAT(parsed.uris, ElementsAre("causeway://*/invited/berlin"));

  // Its key signs a worker's certificate: nobody who trusts it takes that.
  const auto key = MakePrivateKey();
  const auto request = MakeRequest(*key, "key");
  const auto forged =
      SignRequest(*here, *request,
                  IssueTo({.run = "*", .role = Role::kWorker, .name = "liar"},
                          absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)));
  // OpenSSL signs no SHA-256 with Ed25519; and if it did, the chain would not hold.
  if (forged.ok()) {
    const TestFolder folder;
    const absl::Status chain =
        CheckSigned(folder.Write("cert", *forged), folder.Write("ca", here->certificate),
                    CertificateUse::kClient, absl::Now());
    EXPECT_THAT(chain, StatusIs(kFailedPrecondition));
  }
}

// Signed by itself, with a key of Ed25519.
std::string SelfSigned(const std::string& names, const std::string& constraints) {
  const KeyPtr key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const X509Ptr x509(X509_new());
  X509_set_version(x509.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(x509.get()), 3600);
  X509_set_pubkey(x509.get(), key.get());
  EXPECT_TRUE(Extend(x509.get(), x509.get(), NID_subject_alt_name, names));
  EXPECT_TRUE(Extend(x509.get(), x509.get(), NID_basic_constraints, constraints));
  EXPECT_GT(X509_sign(x509.get(), key.get(), nullptr), 0);
  return PemOf(x509.get());
}

TEST(Invitation, NothingThatVouchesForOthersIsTakenForOne) {
  const std::string good = CertificateOfInvitation("secret", "berlin")->certificate;
  EXPECT_EQ(CheckInvitationCertificate(good, "berlin").value(), good);
  std::string authority = MakeAuthority("liar", absl::Now())->certificate;
  EXPECT_EQ(CheckInvitationCertificate(good + authority, "berlin").value(), good)
      << "what stands behind it is not kept";
  const std::string names = "URI:causeway://*/invited/berlin";
  EXPECT_TRUE(CheckInvitationCertificate(SelfSigned(names, "CA:false"), "berlin").ok());
  const TestAuthority issuer;
  for (const std::string& wrong :
       {SelfSigned(names, "critical,CA:true"), SelfSigned(names + ",URI:http://x", "CA:false"),
        SelfSigned("URI:causeway://*/worker/berlin", "CA:false"), authority, std::string("hello"),
        IssueIdentity(issuer, "causeway://*/invited/berlin").certificate,
        good + std::string(5000, '\n')}) {
    EXPECT_THAT(CheckInvitationCertificate(wrong, "berlin"), StatusIs(kInvalidArgument)) << wrong;
  }
  EXPECT_FALSE(CheckInvitationCertificate(good, "paris").ok());
}

TEST(Authority, WhatItSignsHoldsForItsUseAlone) {
  const absl::Time now = absl::Now();
  const auto authority = MakeAuthority("first", now).value();
  const auto key = MakePrivateKey();
  const auto request = MakeRequest(*key, "key.pem").value();
  const Identity berlin{.run = "first", .role = Role::kWorker, .name = "berlin"};
  const auto signed_for =
      SignRequest(authority, request, IssueTo(berlin, now - absl::Hours(1), now + absl::Hours(24)))
          .value();
  const TestFolder folder;
  const std::string cert = folder.Write("cert.pem", signed_for);
  const std::string ca = folder.Write("ca.pem", authority.certificate);
  const std::string key_file = folder.Write("key.pem", *key);
  EXPECT_EQ(ReadCertificate(cert)->identity, berlin);
  EXPECT_TRUE(ReadOwnCertificate(cert, key_file, CertificateUse::kClient, now).ok());
  EXPECT_TRUE(CheckSigned(cert, ca, CertificateUse::kClient, now).ok());
  EXPECT_FALSE(CheckSigned(cert, ca, CertificateUse::kServer, now).ok());
  EXPECT_FALSE(CheckSigned(cert, ca, CertificateUse::kClient, now + absl::Hours(25)).ok());
  const auto other = MakeAuthority("first", now);
  EXPECT_FALSE(
      CheckSigned(cert, folder.Write("other.pem", other->certificate), CertificateUse::kClient, now)
          .ok());
}

TEST(Authority, RequestsThatAreNoneAreRefused) {
  const auto authority = MakeAuthority("first", absl::Now());
  const auto key = MakePrivateKey();
  const std::string good = MakeRequest(*key, "key.pem").value();
  std::string tampered = good;
  tampered[good.size() / 2] = tampered[good.size() / 2] == 'A' ? 'B' : 'A';
  for (const std::string& wrong : {std::string(), std::string("hello"), authority->certificate,
                                   *key, tampered, good.substr(0, good.size() / 2)}) {
    const absl::Status status =
        SignRequest(*authority, wrong,
                    IssueTo({.run = "first", .role = Role::kWorker, .name = "a"}, absl::Now(),
                            absl::Now() + absl::Hours(1)))
            .status();
    EXPECT_THAT(status, StatusIs(kInvalidArgument)) << wrong;
  }
  EXPECT_THAT(MakeRequest("no key", "key.pem"), StatusIs(kInvalidArgument));
}

TEST(IdentityFolder, LiesBelowTheUsersOwnAndIsForHimAlone) {
  const TestFolder folder;
  setenv("XDG_CONFIG_HOME", folder.path("config").c_str(), 1);
  EXPECT_EQ(DefaultIdentityFolder("first", "berlin").value(),
            folder.path("config/causeway/first/berlin"));
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", folder.path("home").c_str(), 1);
  const std::string own = DefaultIdentityFolder("first", "berlin").value();
  EXPECT_EQ(own, folder.path("home/.config/causeway/first/berlin"));
  unsetenv("HOME");
  EXPECT_THAT(DefaultIdentityFolder("first", "berlin"), StatusIs(kFailedPrecondition));
  ASSERT_TRUE(CreatePrivateFolder(*FileSystem::Real(), own).ok());
  ASSERT_TRUE(WritePrivateFile(*FileSystem::Real(), IdentityFiles(own).key, "secret").ok());
  struct stat info {};
  ASSERT_EQ(stat(own.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(IdentityFiles(own).key.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace causeway
