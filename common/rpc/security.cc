#include "common/rpc/security.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_version.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/identity/revocation_watch.h"

namespace causeway {
namespace {

absl::StatusOr<std::string> TokenIn(const std::string& text, const std::string& file) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  RETURN_IF_ERROR(Annotate(CheckToken(token), file));
  return std::string(token);
}

// Looks at the file for every call, so that a new token needs no restart. While the file is away,
// or may be half written, the token before counts. gRPC sends what this gives over encrypted
// connections only.
class TokenFromFile final : public grpc::MetadataCredentialsPlugin {
 public:
  TokenFromFile(std::string file, std::string token, FileVersion version)
      : file_(std::move(file)), token_(std::move(token)), read_(version), seen_(version) {}
  const char* GetType() const override { return "causeway_token"; }
  grpc::string DebugString() override { return absl::StrCat("the token in ", file_); }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", absl::StrCat("Bearer ", Now()));
    return grpc::Status::OK;
  }

 private:
  std::string Now() {
    absl::MutexLock lock(&mutex_);
    const FileVersion version = FileVersion::Of(file_);
    if (version == read_) return token_;
    const absl::Duration now = Clock::Real()->Monotonic();
    if (version != seen_) changed_ = now;
    seen_ = version;
    const absl::StatusOr<std::string> text = ReadTrustedFile(file_, /*secret=*/true);
    const bool is_whole =
        text.ok() && (absl::EndsWith(*text, "\n") || now - changed_ >= CertificateWatch::kSettles);
    if (!is_whole) return token_;
    absl::StatusOr<std::string> token = TokenIn(*text, file_);
    if (!token.ok()) return token_;
    token_ = *std::move(token);
    read_ = version;
    return token_;
  }

  const std::string file_;
  absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  FileVersion read_ ABSL_GUARDED_BY(mutex_);  // That of the token.
  FileVersion seen_ ABSL_GUARDED_BY(mutex_);
  absl::Duration changed_ ABSL_GUARDED_BY(mutex_);
};

// Null without a file.
absl::StatusOr<std::shared_ptr<grpc::CallCredentials>> TokenCredentials(const std::string& file) {
  if (file.empty()) return std::shared_ptr<grpc::CallCredentials>();
  const FileVersion version = FileVersion::Of(file);
  ASSIGN_OR_RETURN(const std::string text, ReadTrustedFile(file, /*secret=*/true));
  ASSIGN_OR_RETURN(std::string token, TokenIn(text, file));
  return grpc::MetadataCredentialsFromPlugin(
      std::make_unique<TokenFromFile>(file, std::move(token), version));
}

absl::Status CheckPlaintext(const SecurityOptions& options, const std::string& address,
                            std::vector<std::string>& warnings) {
  if (!options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--token_file without TLS: tokens are never sent in the clear; give the worker --tls_ca, "
        "the "
        "coordinator --tls_cert and --tls_key");
  }
  if (!options.server_name.empty()) {
    return absl::InvalidArgumentError("--tls_server_name without --tls_ca has no use");
  }
  if (!options.crl_folder.empty()) {
    return absl::InvalidArgumentError("--tls_crl_dir without --tls_ca has no use");
  }
  if (IsLoopback(address)) return absl::OkStatus();
  if (!options.insecure) {
    return absl::FailedPreconditionError(absl::StrCat(
        address,
        " is not on this machine's loopback, and there are no certificates: give --tls_ca, "
        "--tls_cert and --tls_key (deploy/make_certificates makes them), or --insecure if nobody "
        "else can reach the network between, such as a VPN"));
  }
  warnings.push_back(
      absl::StrCat("--insecure: plaintext to and from ", address,
                   "; whoever can reach this network can read and change the training"));
  return absl::OkStatus();
}

absl::Status CheckCommon(const SecurityOptions& options) {
  if (options.insecure) {
    return absl::InvalidArgumentError(
        "--insecure together with certificates: leave one of them out");
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key must be given together");
  }
  if (options.refresh_interval < absl::Seconds(1) || options.refresh_interval > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat("--tls_refresh must be from 1s to 24h; it is ",
                                                   absl::FormatDuration(options.refresh_interval)));
  }
  return absl::OkStatus();
}

// Reads one's own files. Their warnings: an end that is near, and an issuer that this side does not
// trust; whether the peers do, only they know.
absl::StatusOr<CertificateWatch> OpenFiles(const SecurityOptions& options, CertificateUse use,
                                           absl::Time now, std::vector<std::string>& warnings) {
  ASSIGN_OR_RETURN(CertificateWatch files,
                   CertificateWatch::Open(
                       {.ca = options.ca_file, .cert = options.cert_file, .key = options.key_file},
                       use, options.refresh_interval, now));
  if (!files.set().own.has_value()) return files;
  std::string warning = ExpiryWarning(files.set().own->certificate, options.cert_file, now);
  if (!warning.empty()) warnings.push_back(std::move(warning));
  if (options.ca_file.empty()) return files;
  const absl::Status is_signed = CheckSigned(options.cert_file, options.ca_file, use, now);
  if (!is_signed.ok()) {
    warnings.push_back(absl::StrCat(std::string(is_signed.message()),
                                    "; right only if the peers trust another CA than this side"));
  }
  return files;
}

// OpenSSL passes over what it does not find in the folder, and so lets in whom nobody wants.
absl::Status CheckLists(const SecurityOptions& options, std::vector<std::string>& warnings) {
  const std::string& folder = options.crl_folder;
  if (options.ca_file.empty()) {
    return absl::InvalidArgumentError("--tls_crl_dir without --tls_ca: tokens are on no such list");
  }
  std::error_code error;
  int lists = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    lists += IsRevocationListName(entry.path().filename().string());
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_crl_dir: cannot list the folder ", folder, ": ", error.message()));
  }
  if (lists == 0) {
    warnings.push_back(absl::StrCat("no revocation list in ", folder,
                                    " has a name that OpenSSL looks for (HASH.r0): nobody is "
                                    "revoked by them; openssl rehash ",
                                    folder, " gives the names"));
  }
  return absl::OkStatus();
}

}  // namespace

CredentialsOfFiles::CredentialsOfFiles(CertificateWatch files,
                                       std::shared_ptr<grpc::CallCredentials> token)
    : token_(std::move(token)), files_(std::move(files)), made_{.credentials = Make()} {}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOfFiles::Make() const {
  const CertificateSet& set = files_.set();
  std::vector<grpc::experimental::IdentityKeyCertPair> own;
  if (set.own.has_value()) {
    own.push_back({.private_key = set.own->key, .certificate_chain = set.own->chain});
  }
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.set_certificate_provider(
      std::make_shared<grpc::experimental::StaticDataCertificateProvider>(set.authorities, own));
  tls.watch_root_certs();
  if (set.own.has_value()) tls.watch_identity_key_cert_pairs();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::experimental::TlsCredentials(tls);
  return token_ == nullptr ? credentials : grpc::CompositeChannelCredentials(credentials, token_);
}

CredentialsOfFiles::Made CredentialsOfFiles::Now() {
  absl::MutexLock lock(&mutex_);
  const std::optional<CertificateNotice> notice = files_.Look();
  if (files_.generation() != made_.generation) {
    made_ = {.credentials = Make(), .generation = files_.generation()};
  }
  if (notice.has_value() && report_) report_(*notice);
  return made_;
}

void CredentialsOfFiles::ReportTo(CertificateReport report) {
  absl::MutexLock lock(&mutex_);
  report_ = std::move(report);
}

CredentialsOfFiles::Made ChannelSecurity::Now() const {
  if (files != nullptr) return files->Now();
  return {.credentials = grpc::InsecureChannelCredentials()};
}

absl::StatusOr<ChannelSecurity> MakeChannelSecurity(const SecurityOptions& options,
                                                    const std::string& address, absl::Time now) {
  ChannelSecurity result = ChannelSecurity::Plaintext();
  if (!options.UsesTls()) {
    RETURN_IF_ERROR(CheckPlaintext(options, address, result.warnings));
    return result;
  }
  RETURN_IF_ERROR(CheckCommon(options));
  if (options.ca_file.empty()) {
    return absl::InvalidArgumentError(
        "--tls_ca is missing: the file ca.pem by which the coordinator is recognized");
  }
  if (options.cert_file.empty() == options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "beside --tls_ca give either --tls_cert and --tls_key, or --token_file: the coordinator "
        "must learn who this is");
  }
  if (!options.crl_folder.empty()) {
    return absl::InvalidArgumentError("--tls_crl_dir is a coordinator's flag");
  }
  ASSIGN_OR_RETURN(CertificateWatch files,
                   OpenFiles(options, CertificateUse::kClient, now, result.warnings));
  ASSIGN_OR_RETURN(auto token, TokenCredentials(options.token_file));
  result.encrypted = true;
  result.server_name = options.server_name;
  if (files.set().own.has_value()) result.certificate = files.set().own->certificate;
  result.files = std::make_shared<CredentialsOfFiles>(std::move(files), std::move(token));
  return result;
}

absl::StatusOr<ServerSecurity> MakeServerSecurity(const SecurityOptions& options,
                                                  const std::string& address, absl::Time now) {
  ServerSecurity result;
  if (!options.UsesTls()) {
    RETURN_IF_ERROR(CheckPlaintext(options, address, result.warnings));
    result.credentials = grpc::InsecureServerCredentials();
    return result;
  }
  RETURN_IF_ERROR(CheckCommon(options));
  if (options.cert_file.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert and --tls_key are missing: by them the workers recognize this coordinator");
  }
  if (options.ca_file.empty() && options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "beside --tls_cert and --tls_key give --tls_ca (workers with certificates), --token_file "
        "(workers with tokens) or both: the coordinator must learn who they are");
  }
  if (!options.server_name.empty()) {
    return absl::InvalidArgumentError("--tls_server_name is a worker's flag");
  }
  if (!options.crl_folder.empty()) RETURN_IF_ERROR(CheckLists(options, result.warnings));
  ASSIGN_OR_RETURN(CertificateWatch files,
                   OpenFiles(options, CertificateUse::kServer, now, result.warnings));
  result.encrypted = true;
  result.certificate = files.set().own->certificate;
  ASSIGN_OR_RETURN(result.files, ServedCertificates::Serve(std::move(files)));
  grpc::experimental::TlsServerCredentialsOptions tls(result.files->provider());
  tls.watch_identity_key_cert_pairs();
  if (!options.ca_file.empty()) {
    tls.watch_root_certs();
    // Who has no certificate gets no further than the handshake, unless there are tokens.
    tls.set_cert_request_type(options.token_file.empty()
                                  ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  } else {
    tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  }
  if (!options.crl_folder.empty()) tls.set_crl_directory(options.crl_folder);
  result.credentials = grpc::experimental::TlsServerCredentials(tls);
  return result;
}

}  // namespace causeway
