#include "worker/rendezvous/site_certificate.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

constexpr char kSalt[] = "causeway site";
constexpr uint64_t kScryptCost = 1 << 15;
constexpr uint64_t kScryptMemory = 64 << 20;

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* object) const { Free(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION, X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO, BIO_free_all>>;

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

// Ed25519: the same secret gives the same key, and the same certificate the same signature.
Key KeyOf(const std::string& secret) {
  std::array<uint8_t, 32> seed;
  if (EVP_PBE_scrypt(secret.data(), secret.size(), reinterpret_cast<const uint8_t*>(kSalt),
                     sizeof(kSalt), kScryptCost, /*r=*/8, /*p=*/1, kScryptMemory, seed.data(),
                     seed.size()) != 1) {
    return nullptr;
  }
  return Key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
}

bool Fill(X509* certificate, EVP_PKEY* key) {
  X509_NAME* const name = X509_get_subject_name(certificate);
  const Extension names(X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name,
                                            absl::StrCat("DNS:", kSiteName).c_str()));
  return X509_set_version(certificate, 2) == 1 &&
         ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1 &&
         ASN1_TIME_set_string(X509_getm_notBefore(certificate), "20200101000000Z") == 1 &&
         ASN1_TIME_set_string(X509_getm_notAfter(certificate), "99991231235959Z") == 1 &&
         X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                    reinterpret_cast<const uint8_t*>(kSalt), -1, -1, 0) == 1 &&
         X509_set_issuer_name(certificate, name) == 1 && X509_set_pubkey(certificate, key) == 1 &&
         names != nullptr && X509_add_ext(certificate, names.get(), -1) == 1 &&
         X509_sign(certificate, key, nullptr) > 0;
}

}  // namespace

absl::StatusOr<SiteCertificate> MakeSiteCertificate(const std::string& secret) {
  const Key key = KeyOf(secret);
  const X509Ptr certificate(X509_new());
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  const Bio key_text(BIO_new(BIO_s_mem()));
  if (key == nullptr || certificate == nullptr || !Fill(certificate.get(), key.get()) ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return absl::InternalError("OpenSSL does not make this site's certificate of its secret");
  }
  return SiteCertificate{.certificate = TextOf(certificate_text.get()),
                         .key = TextOf(key_text.get())};
}

}  // namespace causeway::worker
