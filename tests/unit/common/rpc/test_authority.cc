#include "tests/unit/common/rpc/test_authority.h"

#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>

#include "absl/strings/escaping.h"
#include "common/identity/openssl.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

void AddExtension(X509* x509, X509* issuer, int nid, const std::string& value) {
  ASSERT_TRUE(Extend(x509, issuer, nid, value)) << value;
}

X509Ptr Blank(const CertificateRequest& request, EVP_PKEY* key, X509* issuer) {
  X509Ptr x509(X509_new());
  X509_set_version(x509.get(), 2);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509.get()), serial | 1);
  ASN1_TIME_set(X509_getm_notBefore(x509.get()), absl::ToTimeT(request.not_before));
  ASN1_TIME_set(X509_getm_notAfter(x509.get()), absl::ToTimeT(request.not_after));
  X509_set_pubkey(x509.get(), key);
  X509_NAME* const name = X509_get_subject_name(x509.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(request.common_name.c_str()),
                             -1, -1, 0);
  X509_set_issuer_name(x509.get(), X509_get_subject_name(issuer == nullptr ? x509.get() : issuer));
  return x509;
}

}  // namespace

struct TestAuthority::Keys {
  KeyPtr key{EVP_EC_gen("P-256")};
  X509Ptr x509;
};

TestAuthority::TestAuthority(const std::string& name) : keys_(std::make_unique<Keys>()) {
  CertificateRequest request;
  request.common_name = name;
  request.not_before = absl::Now() - absl::Hours(24 * 365);
  request.not_after = absl::Now() + absl::Hours(24 * 365);
  keys_->x509 = Blank(request, keys_->key.get(), nullptr);
  AddExtension(keys_->x509.get(), keys_->x509.get(), NID_basic_constraints, "critical,CA:true");
  AddExtension(keys_->x509.get(), keys_->x509.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(keys_->x509.get(), keys_->x509.get(), NID_subject_key_identifier, "hash");
  EXPECT_GT(X509_sign(keys_->x509.get(), keys_->key.get(), EVP_sha256()), 0);
  pem_ = PemOf(keys_->x509.get());
}

TestAuthority::~TestAuthority() = default;

PemPair TestAuthority::Issue(const CertificateRequest& request) const {
  const KeyPtr key(EVP_EC_gen("P-256"));
  const X509Ptr x509 = Blank(request, key.get(), keys_->x509.get());
  AddExtension(x509.get(), keys_->x509.get(), NID_basic_constraints, "critical,CA:false");
  AddExtension(x509.get(), keys_->x509.get(), NID_ext_key_usage, request.usage);
  if (!request.names.empty()) {
    AddExtension(x509.get(), keys_->x509.get(), NID_subject_alt_name, request.names);
  }
  EXPECT_GT(X509_sign(x509.get(), keys_->key.get(), EVP_sha256()), 0);
  return {PemOf(x509.get()), PemOf(key.get())};
}

std::string TestAuthority::RevocationList(std::span<const std::string> certificates,
                                          absl::Time end) const {
  const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> list(X509_CRL_new(), X509_CRL_free);
  X509_CRL_set_version(list.get(), 1);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(keys_->x509.get()));
  const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(ASN1_TIME_new(), ASN1_TIME_free);
  ASN1_TIME_set(time.get(), absl::ToTimeT(end - absl::Hours(48)));
  X509_CRL_set1_lastUpdate(list.get(), time.get());
  for (const std::string& pem : certificates) {
    const X509Ptr x509(PEM_read_bio_X509(MemoryBio(pem).get(), nullptr, nullptr, nullptr));
    X509_REVOKED* const revoked = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(x509.get()));
    X509_REVOKED_set_revocationDate(revoked, time.get());
    X509_CRL_add0_revoked(list.get(), revoked);
  }
  ASN1_TIME_set(time.get(), absl::ToTimeT(end));
  X509_CRL_set1_nextUpdate(list.get(), time.get());
  X509_CRL_sort(list.get());
  EXPECT_GT(X509_CRL_sign(list.get(), keys_->key.get(), EVP_sha256()), 0);
  return TextOf([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, list.get()); });
}

std::string TestAuthority::RevocationListName(int number) const {
  const auto hash =
      X509_NAME_hash_ex(X509_get_subject_name(keys_->x509.get()), nullptr, nullptr, nullptr);
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad8), ".r", number);
}

PemPair IssueServer(const TestAuthority& authority) {
  CertificateRequest request;
  request.common_name = "coordinator";
  request.names = "DNS:localhost,IP:127.0.0.1";
  request.usage = "serverAuth";
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

TestFolder::TestFolder() {
  std::string pattern = absl::StrCat(testing::TempDir(), "/causeway_tls_XXXXXX");
  folder_ = mkdtemp(pattern.data());
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string TestFolder::path(absl::string_view name) const {
  return (folder_ / std::string(name)).string();
}

std::string TestFolder::WriteNow(absl::string_view name, absl::string_view text) const {
  const std::string file = path(name);
  const std::string temporary = absl::StrCat(file, ".new");
  {
    std::ofstream stream(temporary, std::ios::binary);
    stream << text;
  }
  std::filesystem::permissions(
      temporary, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::rename(temporary, file);
  return file;
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
