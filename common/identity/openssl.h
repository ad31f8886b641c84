// OpenSSL's objects with owners, and texts in and out of them. For sources alone.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace causeway {

template <auto Function>
struct OpensslDeleter {
  template <typename T>
  void operator()(T* object) const {
    Function(object);
  }
};
using BioPtr = std::unique_ptr<BIO, OpensslDeleter<BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslDeleter<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, OpensslDeleter<X509_free>>;

// `otherwise` if there is no time, or none that can be read.
inline absl::Time ToTime(const ASN1_TIME* time, absl::Time otherwise) {
  std::tm parts{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return otherwise;
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// A callback: there is no passphrase, rather than asking whoever sits at the terminal.
inline int NoPassphrase(char*, int, int, void*) { return -1; }

// Reads from `text`, which outlives it.
inline BioPtr MemoryBio(absl::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// What `write` writes to a BIO; "" unless it returns 1.
template <typename Write>
std::string TextOf(const Write& write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (write(bio.get()) != 1) return "";
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

inline std::string PemOf(X509* certificate) {
  return TextOf([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}
inline std::string PemOf(EVP_PKEY* key) {
  return TextOf([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

// Why the last call failed. OpenSSL's queue of errors belongs to the thread, and gRPC reads it,
// too: nothing is left behind.
inline std::string TakeOpenSslError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason == nullptr ? "no reason given" : reason;
  ERR_clear_error();
  return text;
}

// Adds an extension in OpenSSL's words.
inline bool Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, OpensslDeleter<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

}  // namespace causeway
