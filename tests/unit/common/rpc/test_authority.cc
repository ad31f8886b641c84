#include "tests/unit/common/rpc/test_authority.h"

#include <openssl/sha.h>

#include <chrono>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "common/identity/invitation.h"
#include "common/identity/openssl.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

X509Ptr Parsed(const std::string& pem) {
  return X509Ptr(PEM_read_bio_X509(MemoryBio(pem).get(), nullptr, nullptr, nullptr));
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name)
    : own_(MakeAuthority(name, absl::Now() - absl::Hours(24 * 365)).value()) {}

PemPair TestAuthority::Issue(const CertificateRequest& request) const {
  const std::string key = MakePrivateKey().value();
  const std::string chain = SignRequest(own_, MakeRequest(key, "its key").value(),
                                        {.use = request.use,
                                         .common_name = request.common_name,
                                         .names = {request.names},
                                         .begin = request.not_before,
                                         .end = request.not_after})
                                .value();
  return {.certificate = chain.substr(0, chain.size() - own_.certificate.size()), .key = key};
}

std::string TestAuthority::RevocationList(std::span<const std::string> certificates,
                                          absl::Time end) const {
  const X509Ptr x509 = Parsed(own_.certificate);
  const KeyPtr key(PEM_read_bio_PrivateKey(MemoryBio(own_.key).get(), nullptr, nullptr, nullptr));
  const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> list(X509_CRL_new(), X509_CRL_free);
  X509_CRL_set_version(list.get(), 1);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(x509.get()));
  const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(ASN1_TIME_new(), ASN1_TIME_free);
  ASN1_TIME_set(time.get(), absl::ToTimeT(end - absl::Hours(48)));
  X509_CRL_set1_lastUpdate(list.get(), time.get());
  for (const std::string& pem : certificates) {
    X509_REVOKED* const revoked = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(Parsed(pem).get()));
    X509_REVOKED_set_revocationDate(revoked, time.get());
    X509_CRL_add0_revoked(list.get(), revoked);
  }
  ASN1_TIME_set(time.get(), absl::ToTimeT(end));
  X509_CRL_set1_nextUpdate(list.get(), time.get());
  X509_CRL_sort(list.get());
  EXPECT_GT(X509_CRL_sign(list.get(), key.get(), EVP_sha256()), 0);
  return TextOf([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, list.get()); });
}

std::string TestAuthority::RevocationListName(int number) const {
  const X509Ptr x509 = Parsed(own_.certificate);
  const auto hash = X509_NAME_hash_ex(X509_get_subject_name(x509.get()), nullptr, nullptr, nullptr);
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad8), ".r", number);
}

PemPair IssueServer(const TestAuthority& authority) {
  CertificateRequest request;
  request.common_name = "coordinator";
  request.names = "DNS:localhost,IP:127.0.0.1";
  request.use = CertificateUse::kServer;
  return authority.Issue(request);
}

PemPair IssueIdentity(const TestAuthority& authority, absl::string_view uri) {
  CertificateRequest request;
  request.names = absl::StrCat("URI:", uri);
  return authority.Issue(request);
}

std::string TokenLine(const std::string& token, const std::string& who) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(),
         reinterpret_cast<uint8_t*>(hash.data()));
  return absl::StrCat(absl::BytesToHexString(hash), " ", who, "\n");
}

std::string TestFolder::WriteNow(absl::string_view name, absl::string_view text) const {
  UnsyncedFileSystem disk(*FileSystem::Real());
  EXPECT_TRUE(WritePrivateFile(disk, path(name), text).ok()) << path(name);
  return path(name);
}

std::string TestFolder::Write(absl::string_view name, absl::string_view text) const {
  const std::string file = WriteNow(absl::StrCat(name, ".young"), text);
  std::filesystem::last_write_time(
      file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  std::filesystem::rename(file, path(name));
  return path(name);
}

SecurityOptions TestFolder::WriteSet(absl::string_view name, absl::string_view ca,
                                     const PemPair& pair) const {
  SecurityOptions options;
  options.ca_file = Write(absl::StrCat(name, ".ca"), ca);
  options.cert_file = Write(absl::StrCat(name, ".cert"), pair.certificate);
  options.key_file = Write(absl::StrCat(name, ".key"), pair.key);
  options.refresh_interval = absl::Seconds(1);
  return options;
}

}  // namespace causeway
