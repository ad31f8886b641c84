#include "common/identity/authority.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/identity/openssl.h"

namespace causeway {
namespace {

using RequestPtr = std::unique_ptr<X509_REQ, OpensslDeleter<X509_REQ_free>>;

// For clocks that lag.
constexpr absl::Duration kBegun = absl::Hours(24);
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 3652);
constexpr uint64_t kScryptCost = 1 << 15;
constexpr uint64_t kScryptMemory = 64 << 20;

absl::Status OpenSslFails(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("OpenSSL does not make ", what, ": ", TakeOpenSslError()));
}

bool SetName(X509* certificate, absl::string_view common_name) {
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const uint8_t*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

// 63 bits that nobody has had before.
bool SetSerial(X509* certificate) {
  uint64_t serial = 0;
  return RAND_bytes(reinterpret_cast<uint8_t*>(&serial), sizeof(serial)) == 1 &&
         ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), (serial >> 1) | 1) == 1;
}

bool SetLife(X509* certificate, absl::Time begin, absl::Time end) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(begin)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(end)) != nullptr;
}

absl::StatusOr<RequestPtr> ParseRequest(absl::string_view text) {
  const auto clean = absl::MakeCleanup([] { ERR_clear_error(); });
  RequestPtr request(PEM_read_bio_X509_REQ(MemoryBio(text).get(), nullptr, NoPassphrase, nullptr));
  if (request == nullptr) {
    return absl::InvalidArgumentError(
        "the request for a certificate is none: expected PEM text with -----BEGIN CERTIFICATE "
        "REQUEST-----");
  }
  EVP_PKEY* const key = X509_REQ_get0_pubkey(request.get());
  std::array<char, 32> group{};
  if (key == nullptr || EVP_PKEY_get_group_name(key, group.data(), group.size(), nullptr) != 1 ||
      absl::string_view(group.data()) != "prime256v1") {
    return absl::InvalidArgumentError(
        "the key of the request for a certificate must be one of EC P-256");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    return absl::InvalidArgumentError(
        "the request for a certificate is not signed by the key that it is for");
  }
  return request;
}

}  // namespace

absl::StatusOr<KeyedCertificate> MakeAuthority(absl::string_view run_name, absl::Time now) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  const X509Ptr made(X509_new());
  X509* const x509 = made.get();
  if (key == nullptr || x509 == nullptr || X509_set_version(x509, 2) != 1 || !SetSerial(x509) ||
      !SetLife(x509, now - kBegun, now + kAuthorityLife) ||
      !SetName(x509, absl::StrCat("authority of ", run_name)) ||
      X509_set_issuer_name(x509, X509_get_subject_name(x509)) != 1 ||
      X509_set_pubkey(x509, key.get()) != 1 ||
      !Extend(x509, x509, NID_basic_constraints, "critical,CA:true,pathlen:0") ||
      !Extend(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !Extend(x509, x509, NID_subject_key_identifier, "hash") ||
      X509_sign(x509, key.get(), EVP_sha256()) <= 0) {
    return OpenSslFails("an authority");
  }
  return KeyedCertificate{.certificate = PemOf(x509), .key = PemOf(key.get())};
}

absl::StatusOr<std::string> MakePrivateKey() {
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslFails("a key");
  return PemOf(key.get());
}

absl::StatusOr<std::string> MakeRequest(absl::string_view key_text, const std::string& key_file) {
  const KeyPtr key(
      PEM_read_bio_PrivateKey(MemoryBio(key_text).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(
        key_file, " holds no private key: remove it, and a new one is made with the next line"));
  }
  const RequestPtr request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) <= 0) {
    return OpenSslFails("a request for a certificate");
  }
  return TextOf([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

Issue IssueTo(const Identity& identity, absl::Time begin, absl::Time end) {
  return {.use = CertificateUse::kClient,
          .common_name = absl::StrCat(RoleName(identity.role), "/", identity.name).substr(0, 64),
          .names = {absl::StrCat("URI:", IdentityUri(identity))},
          .begin = begin,
          .end = end};
}

absl::StatusOr<std::string> SignRequest(const KeyedCertificate& authority,
                                        absl::string_view request_text, const Issue& issue) {
  ASSIGN_OR_RETURN(const RequestPtr request, ParseRequest(request_text));
  const X509Ptr issuer(
      PEM_read_bio_X509(MemoryBio(authority.certificate).get(), nullptr, NoPassphrase, nullptr));
  const KeyPtr key(
      PEM_read_bio_PrivateKey(MemoryBio(authority.key).get(), nullptr, NoPassphrase, nullptr));
  const X509Ptr made(X509_new());
  X509* const x509 = made.get();
  const bool server = issue.use == CertificateUse::kServer;
  const std::string names = absl::StrJoin(issue.names, ",");
  if (issuer == nullptr || key == nullptr || x509 == nullptr || X509_set_version(x509, 2) != 1 ||
      !SetSerial(x509) || !SetLife(x509, issue.begin, issue.end) ||
      !SetName(x509, issue.common_name) ||
      X509_set_issuer_name(x509, X509_get_subject_name(issuer.get())) != 1 ||
      X509_set_pubkey(x509, X509_REQ_get0_pubkey(request.get())) != 1 ||
      !Extend(x509, issuer.get(), NID_basic_constraints, "critical,CA:false") ||
      !Extend(x509, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !Extend(x509, issuer.get(), NID_ext_key_usage, server ? "serverAuth" : "clientAuth") ||
      (X509_get0_subject_key_id(issuer.get()) != nullptr &&
       !Extend(x509, issuer.get(), NID_authority_key_identifier, "keyid")) ||
      (!names.empty() && !Extend(x509, issuer.get(), NID_subject_alt_name, names)) ||
      X509_sign(x509, key.get(), EVP_sha256()) <= 0) {
    return OpenSslFails("a certificate");
  }
  return absl::StrCat(PemOf(x509), authority.certificate);
}

absl::StatusOr<std::string> KeyOfRequest(absl::string_view text) {
  ASSIGN_OR_RETURN(const RequestPtr request, ParseRequest(text));
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  unsigned size = 0;
  uint8_t* encoded = nullptr;
  const int bytes = i2d_PUBKEY(X509_REQ_get0_pubkey(request.get()), &encoded);
  const auto free_encoded = absl::MakeCleanup([&] { OPENSSL_free(encoded); });
  if (bytes <= 0 || EVP_Digest(encoded, static_cast<size_t>(bytes), digest.data(), &size,
                               EVP_sha256(), nullptr) != 1) {
    return OpenSslFails("a digest");
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

absl::StatusOr<KeyedCertificate> CertificateOfSecret(absl::string_view secret,
                                                     const std::string& purpose,
                                                     const std::string& names) {
  std::array<uint8_t, 32> seed{};
  // With the end of the text, as it has always been: processes of two releases agree.
  if (EVP_PBE_scrypt(secret.data(), secret.size(),
                     reinterpret_cast<const uint8_t*>(purpose.c_str()), purpose.size() + 1,
                     kScryptCost, /*r=*/8, /*p=*/1, kScryptMemory, seed.data(), seed.size()) != 1) {
    return OpenSslFails("a key of a secret");
  }
  const KeyPtr key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  const X509Ptr made(X509_new());
  X509* const x509 = made.get();
  if (key == nullptr || x509 == nullptr || X509_set_version(x509, 2) != 1 ||
      ASN1_INTEGER_set(X509_get_serialNumber(x509), 1) != 1 ||
      ASN1_TIME_set_string(X509_getm_notBefore(x509), "20200101000000Z") != 1 ||
      ASN1_TIME_set_string(X509_getm_notAfter(x509), "99991231235959Z") != 1 ||
      !SetName(x509, purpose) || X509_set_issuer_name(x509, X509_get_subject_name(x509)) != 1 ||
      X509_set_pubkey(x509, key.get()) != 1 ||
      // Who has it vouches for itself, and for nobody else.
      !Extend(x509, x509, NID_basic_constraints, "critical,CA:false") ||
      !Extend(x509, x509, NID_subject_alt_name, names) ||
      X509_sign(x509, key.get(), nullptr) <= 0) {
    return OpenSslFails("a certificate of a secret");
  }
  return KeyedCertificate{.certificate = PemOf(x509), .key = PemOf(key.get())};
}

absl::StatusOr<std::string> LastCertificate(absl::string_view pem, const std::string& file) {
  RETURN_IF_ERROR(ParseCertificate(pem, file).status());
  constexpr absl::string_view kBegin = "-----BEGIN CERTIFICATE-----";
  return std::string(pem.substr(pem.rfind(kBegin)));
}

}  // namespace causeway
