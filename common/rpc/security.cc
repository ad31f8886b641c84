#include "common/rpc/security.h"

#include <grpcpp/security/tls_credentials_options.h>

#include <filesystem>
#include <map>
#include <system_error>

#include "common/base/text.h"
#include "common/rpc/status.h"

namespace causeway {
namespace {

// gRPC sends what this gives over encrypted connections only.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(std::shared_ptr<TokenFile> token) : token_(std::move(token)) {}
  const char* GetType() const override { return "causeway_token"; }
  grpc::string DebugString() override { return absl::StrCat("the token in ", token_->file()); }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", absl::StrCat("Bearer ", token_->Now()));
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<TokenFile> token_;
};

absl::Status CheckPlaintext(const SecurityOptions& options, const std::string& address,
                            std::vector<std::string>& warnings) {
  if (!options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--token_file without TLS: tokens are never sent in the clear; give the worker --tls_ca, "
        "the coordinator --tls_cert and --tls_key");
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
        " is not on this machine's loopback, and there are no certificates: board by an "
        "invitation (--join; a coordinator invites with --tls=own), or give --tls_ca, --tls_cert "
        "and "
        "--tls_key (deploy/make_certificates makes them), or --insecure if nobody else can reach "
        "the network between, such as a VPN"));
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
  std::string warning =
      ExpiryWarning(files.set().own->certificate, options.cert_file, now, options.renewal);
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

CredentialsOfFiles::CredentialsOfFiles(CertificateWatch files, std::shared_ptr<TokenFile> token)
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
  if (token_ == nullptr) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenPlugin>(token_)));
}

CredentialsOfFiles::Made CredentialsOfFiles::Now() {
  absl::MutexLock lock(&mutex_);
  const std::optional<CertificateNotice> notice = files_.Look();
  if (files_.generation() != made_.generation) {
    made_ = {.credentials = Make(), .generation = files_.generation()};
  }
  if (notice.has_value() && report_) report_(*notice);
  if (token_ != nullptr) token_->Now();  // Says what has become of the file.
  return made_;
}

bool CredentialsOfFiles::MayPass(const absl::Status& refusal) {
  if (token_ != nullptr) return token_->MayPass(refusal);
  absl::MutexLock lock(&mutex_);
  return files_.IsChanging();
}

void CredentialsOfFiles::ReportTo(CertificateReport report) {
  if (token_ != nullptr) token_->ReportTo(report);
  absl::MutexLock lock(&mutex_);
  report_ = std::move(report);
}

bool ChannelSecurity::Passes(const absl::Status& status) const {
  if (IsRetryable(status)) return true;
  const bool is_refusal = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
  return is_refusal && files != nullptr && files->MayPass(status);
}

CredentialsOfFiles::Made ChannelSecurity::Now() const {
  CredentialsOfFiles::Made made =
      files != nullptr ? files->Now()
                       : CredentialsOfFiles::Made{grpc::InsecureChannelCredentials()};
  if (places != nullptr) made.generation += places->turn();
  return made;
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
  std::shared_ptr<TokenFile> token;
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(token, TokenFile::Open(options.token_file));
  }
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
