#include "common/identity/certificate.h"

#include <fcntl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/identity/openssl.h"

namespace causeway {
namespace {

void FreeNames(GENERAL_NAMES* names) { GENERAL_NAMES_free(names); }
void FreeCertificates(STACK_OF(X509) * certificates) { sk_X509_pop_free(certificates, X509_free); }

using NamesPtr = std::unique_ptr<GENERAL_NAMES, OpensslDeleter<FreeNames>>;
using StorePtr = std::unique_ptr<X509_STORE, OpensslDeleter<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, OpensslDeleter<X509_STORE_CTX_free>>;
using X509StackPtr = std::unique_ptr<STACK_OF(X509), OpensslDeleter<FreeCertificates>>;

// The system's refusal to open or read `file`.
absl::Status SystemError(const std::string& file, int error) {
  const std::string message = absl::StrCat(file, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(message, "; check the path"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(message, "; the user of this process must be able to read it"));
}

// All certificates of a PEM text, the first one first.
absl::StatusOr<std::vector<X509Ptr>> ParseAll(absl::string_view pem, const std::string& file) {
  const BioPtr bio = MemoryBio(pem);
  std::vector<X509Ptr> certificates;
  ERR_clear_error();
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(next);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = TakeOpenSslError();
  if (certificates.empty() && at_end) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, " holds no certificate: expected PEM text with -----BEGIN CERTIFICATE-----"));
  }
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat("certificate ", certificates.size() + 1, " in ", file, " is damaged (", reason,
                     "): copy the file again, or make it anew with deploy/make_certificates"));
  }
  return certificates;
}

absl::StatusOr<KeyPtr> ParseKey(const std::string& pem, const std::string& file) {
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(MemoryBio(pem).get(), nullptr, NoPassphrase, nullptr));
  const std::string reason = TakeOpenSslError();
  if (key != nullptr) return key;
  if (absl::StrContains(pem, "ENCRYPTED")) {
    return absl::InvalidArgumentError(absl::StrCat(
        file,
        " is encrypted with a passphrase, which nobody could type at a restart: take that "
        "off (openssl pkey) and keep the file to yourself (chmod 600)"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(file, " holds no private key that can be read (", reason,
                   "): expected PEM text with -----BEGIN PRIVATE KEY-----"));
}

std::string IpText(const ASN1_OCTET_STRING* address) {
  const unsigned char* const bytes = ASN1_STRING_get0_data(address);
  const int size = ASN1_STRING_length(address);
  if (size == 4) return absl::StrCat(bytes[0], ".", bytes[1], ".", bytes[2], ".", bytes[3]);
  std::vector<std::string> groups;
  for (int i = 0; i + 1 < size; i += 2)
    groups.push_back(absl::StrCat(absl::Hex(bytes[i] * 256 + bytes[i + 1])));
  return absl::StrJoin(groups, ":");
}

std::string SubjectText(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0,
                     XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* text = nullptr;
  const int64_t size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

std::string Fingerprint(X509* x509) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_digest(x509, EVP_sha256(), digest, &size) != 1) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

Certificate Describe(X509* x509) {
  Certificate result;
  result.fingerprint = Fingerprint(x509);
  result.subject = SubjectText(x509);
  result.not_before = ToTime(X509_get0_notBefore(x509), absl::InfinitePast());
  result.not_after = ToTime(X509_get0_notAfter(x509), absl::InfinitePast());
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(x509, NID_subject_alt_name, nullptr, nullptr)));
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  int identities = 0;
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_IPADD) {
      result.ip_addresses.push_back(IpText(name->d.iPAddress));
      continue;
    }
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text =
        name->type == GEN_DNS ? name->d.dNSName : name->d.uniformResourceIdentifier;
    std::string value(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
    if (name->type == GEN_DNS) {
      result.dns_names.push_back(std::move(value));
      continue;
    }
    if (absl::StartsWith(value, kIdentityScheme)) {
      ++identities;
      absl::StatusOr<Identity> identity = ParseIdentity(value);
      if (identity.ok()) result.identity = *std::move(identity);
    }
    result.uris.push_back(std::move(value));
  }
  if (identities != 1) result.identity.reset();
  ERR_clear_error();
  return result;
}

int Purpose(CertificateUse use) {
  return use == CertificateUse::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
}

}  // namespace

std::string UtcMinute(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

absl::StatusOr<std::string> ReadTrustedFile(const std::string& file, bool secret,
                                            size_t max_bytes) {
  // Not blocked by a pipe that nobody writes to.
  const int descriptor = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) return SystemError(file, errno);
  const auto close_file = absl::MakeCleanup([descriptor] { close(descriptor); });
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return SystemError(file, errno);
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is not a plain file"));
  }
  if (facts.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
  }
  if (static_cast<uint64_t>(facts.st_size) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " has ", facts.st_size, " bytes; expected at most ", max_bytes));
  }
  if ((facts.st_mode & S_IWOTH) != 0 || (secret && (facts.st_mode & S_IROTH) != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat(file,
                     secret ? " can be read or written by everybody on this machine: chmod 600 "
                            : " can be written by everybody on this machine: chmod 644 ",
                     file));
  }
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t read_bytes = 0;
  while (read_bytes < text.size()) {
    const ssize_t got = read(descriptor, text.data() + read_bytes, text.size() - read_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(file, errno);
    if (got == 0) break;  // Became shorter meanwhile.
    read_bytes += static_cast<size_t>(got);
  }
  text.resize(read_bytes);
  return text;
}

absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem, const std::string& file) {
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ParseAll(pem, file));
  return Describe(certificates[0].get());
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string pem, ReadTrustedFile(file, /*secret=*/false));
  return ParseCertificate(pem, file);
}

absl::StatusOr<absl::Time> EndOfCertificate(const std::string& file) {
  ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(file));
  return certificate.not_after;
}

absl::Status CheckValidity(const Certificate& certificate, const std::string& file,
                           absl::Time now) {
  if (now > certificate.not_after) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the certificate ", file, " (", certificate.subject, ") expired at ",
        UtcMinute(certificate.not_after), ": deploy/make_certificates renew makes a new one"));
  }
  if (now < certificate.not_before) {
    // Which passes: a machine without a battery starts in the past, until it hears the time.
    return absl::UnavailableError(
        absl::StrCat("the certificate ", file, " (", certificate.subject, ") is valid from ",
                     UtcMinute(certificate.not_before), " on, and this machine's clock says ",
                     UtcMinute(now), ": set the clock"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnCertificate> ReadOwnCertificate(const std::string& cert_file,
                                                  const std::string& key_file, CertificateUse use,
                                                  absl::Time now) {
  OwnCertificate own;
  ASSIGN_OR_RETURN(own.chain, ReadTrustedFile(cert_file, /*secret=*/false));
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ParseAll(own.chain, cert_file));
  ASSIGN_OR_RETURN(own.key, ReadTrustedFile(key_file, /*secret=*/true));
  ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(own.key, key_file));
  const bool matches = X509_check_private_key(chain[0].get(), key.get()) == 1;
  ERR_clear_error();
  if (!matches) {
    return absl::InvalidArgumentError(absl::StrCat(key_file, " is not the private key of ",
                                                   cert_file,
                                                   ": name the two files that were made "
                                                   "together"));
  }
  own.certificate = Describe(chain[0].get());
  RETURN_IF_ERROR(CheckValidity(own.certificate, cert_file, now));
  if (X509_check_purpose(chain[0].get(), Purpose(use), /*ca=*/0) != 1) {
    const bool server = use == CertificateUse::kServer;
    return absl::InvalidArgumentError(absl::StrCat(
        "the certificate ", cert_file, " (", own.certificate.subject, ") is not meant for a ",
        server ? "server" : "client", ": a ", server ? "coordinator" : "worker",
        " needs one of its own kind, see deploy/make_certificates"));
  }
  return own;
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& ca_file, absl::Time now) {
  ASSIGN_OR_RETURN(std::string pem, ReadTrustedFile(ca_file, /*secret=*/false));
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ParseAll(pem, ca_file));
  absl::Status last;
  for (const X509Ptr& certificate : certificates) {
    const Certificate facts = Describe(certificate.get());
    last = CheckValidity(facts, ca_file, now);
    if (last.ok() && X509_check_ca(certificate.get()) == 0) {
      last = absl::InvalidArgumentError(
          absl::StrCat("the certificate ", facts.subject, " in ", ca_file,
                       " is no authority's: name the CA's own certificate (ca.pem)"));
    }
    if (last.ok()) return pem;
  }
  return last;
}

absl::Status CheckSigned(const std::string& cert_file, const std::string& ca_file,
                         CertificateUse use, absl::Time now) {
  ASSIGN_OR_RETURN(const std::string cert_pem, ReadTrustedFile(cert_file, /*secret=*/false));
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ParseAll(cert_pem, cert_file));
  ASSIGN_OR_RETURN(const std::string ca_pem, ReadTrustedFile(ca_file, /*secret=*/false));
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities, ParseAll(ca_pem, ca_file));
  const StorePtr store(X509_STORE_new());
  for (const X509Ptr& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  const X509StackPtr between(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) {
    X509_up_ref(chain[i].get());
    sk_X509_push(between.get(), chain[i].get());
  }
  const StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), between.get());
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  X509_STORE_CTX_set_purpose(context.get(), Purpose(use));
  const bool verified = X509_verify_cert(context.get()) == 1;
  const int reason = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (verified) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "no authority in ", ca_file, " stands behind ", cert_file, " (",
      X509_verify_cert_error_string(reason),
      "): both must come from the same CA, or the file of authorities must hold several"));
}

std::string ExpiryWarning(const Certificate& certificate, const std::string& file, absl::Time now,
                          absl::string_view renewal) {
  const absl::Duration left = certificate.not_after - now;
  if (left >= kExpiryWarning) return "";
  if (left < absl::ZeroDuration()) {
    return absl::StrCat("the certificate ", file,
                        " has expired, and new connections are refused: ", renewal);
  }
  return absl::StrCat("the certificate ", file, " expires in ",
                      absl::FormatDuration(absl::Trunc(left, absl::Minutes(1))), ": ", renewal);
}

std::string ExpiryWatch::Poll() {
  const absl::Duration now = clock_.Monotonic();
  if (file_.empty() || now < next_look_) return "";
  next_look_ = now + absl::Hours(1);
  if (now < next_warning_) return "";
  const absl::StatusOr<Certificate> certificate = ReadCertificate(file_);
  const std::string warning =
      certificate.ok()
          ? ExpiryWarning(*certificate, file_, clock_.Now(), renewal_)
          : absl::StrCat(certificate.status().message(),
                         ": until it can be read, new connections go on with the one before");
  if (!warning.empty()) next_warning_ = now + absl::Hours(24);
  return warning;
}

namespace {

constexpr size_t kHash = 8;
constexpr absl::Duration kLook = absl::Seconds(10);

}  // namespace

bool IsRevocationListName(absl::string_view name) {
  return name.size() > kHash + 2 && name.substr(kHash, 2) == ".r" &&
         absl::c_all_of(name.substr(0, kHash), absl::ascii_isxdigit) &&
         absl::c_all_of(name.substr(kHash + 2), absl::ascii_isdigit);
}

RevocationWatch::List RevocationWatch::Read(const std::string& file) {
  List list;
  list.version = FileVersion::Of(file);
  std::ifstream stream(file, std::ios::binary);
  const std::string pem{std::istreambuf_iterator<char>(stream), {}};
  const std::unique_ptr<X509_CRL, OpensslDeleter<X509_CRL_free>> crl(
      PEM_read_bio_X509_CRL(MemoryBio(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();  // gRPC reads this thread's queue, too.
  if (crl == nullptr) return list;
  list.is_list = true;
  list.begin = ToTime(X509_CRL_get0_lastUpdate(crl.get()), absl::InfinitePast());
  list.end = ToTime(X509_CRL_get0_nextUpdate(crl.get()), absl::InfiniteFuture());
  return list;
}

bool RevocationWatch::IsDue(const std::string& what, absl::Duration interval) {
  const absl::Duration now = clock_.Monotonic();
  const auto [next, is_new] = next_said_.try_emplace(what, now);
  if (now < next->second) return false;
  next->second = now + interval;
  return true;
}

std::vector<RevocationWatch::Notice> RevocationWatch::Poll() {
  std::vector<Notice> notices;
  if (folder_.empty() || clock_.Monotonic() < next_look_) return notices;
  next_look_ = clock_.Monotonic() + kLook;
  const auto daily = [&](const std::string& name, absl::string_view what) {
    if (!IsDue(absl::StrCat(name, what), absl::Hours(24))) return;
    notices.push_back({.message = absl::StrCat("the revocation list ", folder_, "/", name, what)});
  };
  std::map<std::string, std::string> newest;  // Names, by authority: the list that counts longest.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!IsRevocationListName(name)) continue;
    List& list = lists_.try_emplace(name).first->second;
    // OpenSSL takes a file once it is a list.
    if (!list.is_list) list = Read(entry.path().string());
    if (!list.is_list) {
      daily(name, " cannot be read: nobody is refused by it");
      continue;
    }
    if (FileVersion::Of(entry.path().string()) != list.version) {
      daily(name,
            " was replaced, and the former one counts: put the new one beside it under the next "
            "number (openssl rehash), or start the coordinator again");
    }
    std::string& of_authority = newest[name.substr(0, kHash)];
    if (of_authority.empty() || lists_[of_authority].end < list.end) of_authority = name;
  }
  const absl::Time now = clock_.Now();
  for (const auto& [authority, name] : newest) {
    const List& list = lists_[name];
    const std::string what = absl::StrCat(
        ": new connections with certificates of its authority are refused from then on, until a "
        "newer one is beside it under the next number (openssl rehash)");
    if (now >= list.end) {
      if (!IsDue(absl::StrCat(name, "ended"), absl::Hours(1))) continue;
      notices.push_back({.ended = true,
                         .message = absl::StrCat("the revocation list ", folder_, "/", name,
                                                 " ended at ", UtcMinute(list.end), what)});
    } else if (list.end - now <= std::min(kExpiryWarning, (list.end - list.begin) / 4)) {
      daily(name, absl::StrCat(" ends at ", UtcMinute(list.end), what));
    }
  }
  return notices;
}

}  // namespace causeway
