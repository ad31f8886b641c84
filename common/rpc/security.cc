#include "common/rpc/security.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/identity/revocation_watch.h"
#include "common/rpc/status.h"

namespace causeway {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTrustedFile(file, /*secret=*/true));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  RETURN_IF_ERROR(Annotate(CheckToken(token), file));
  return std::string(token);
}

// Reads the file for every call, so that a new token needs no restart. gRPC sends what this gives
// over encrypted connections only.
class TokenFromFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenFromFile(std::string file) : file_(std::move(file)) {}
  const char* GetType() const override { return "causeway_token"; }
  grpc::string DebugString() override { return absl::StrCat("the token in ", file_); }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const absl::StatusOr<std::string> token = ReadToken(file_);
    if (!token.ok()) {
      // It may be half replaced: the call is worth another try.
      return ToGrpcStatus(absl::UnavailableError(token.status().message()));
    }
    metadata->emplace("authorization", absl::StrCat("Bearer ", *token));
    return grpc::Status::OK;
  }

 private:
  const std::string file_;
};

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

std::shared_ptr<FileWatcherCertificateProvider> Watch(const SecurityOptions& options) {
  return std::make_shared<FileWatcherCertificateProvider>(
      options.key_file, options.cert_file, options.ca_file,
      static_cast<unsigned>(absl::ToInt64Seconds(options.refresh_interval)));
}

void AddExpiryWarning(const Certificate& certificate, const std::string& file, absl::Time now,
                      std::vector<std::string>& warnings) {
  std::string warning = ExpiryWarning(certificate, file, now);
  if (!warning.empty()) warnings.push_back(std::move(warning));
}

// The pair of one's own, whose issuer the peers must trust, which only they know for certain.
absl::StatusOr<Certificate> CheckPair(const SecurityOptions& options, CertificateUse use,
                                      absl::Time now, std::vector<std::string>& warnings) {
  ASSIGN_OR_RETURN(Certificate certificate,
                   CheckOwnCertificate(options.cert_file, options.key_file, use, now));
  AddExpiryWarning(certificate, options.cert_file, now, warnings);
  if (!options.ca_file.empty()) {
    const absl::Status is_signed = CheckSigned(options.cert_file, options.ca_file, use, now);
    if (!is_signed.ok()) {
      warnings.push_back(absl::StrCat(std::string(is_signed.message()),
                                      "; right only if the peers trust another CA than this side"));
    }
  }
  return certificate;
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

CredentialsOfFiles::CredentialsOfFiles(SecurityOptions options)
    : options_(std::move(options)),
      looked_(Clock::Real()->Monotonic()),
      versions_(Look()),
      made_{.credentials = Make()} {}

CredentialsOfFiles::Versions CredentialsOfFiles::Look() const {
  return {.ca = FileVersion::Of(options_.ca_file),
          .cert = FileVersion::Of(options_.cert_file),
          .key = FileVersion::Of(options_.key_file)};
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOfFiles::Make() const {
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.set_certificate_provider(Watch(options_));
  tls.watch_root_certs();
  if (!options_.cert_file.empty()) tls.watch_identity_key_cert_pairs();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::experimental::TlsCredentials(tls);
  if (options_.token_file.empty()) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials,
      grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenFromFile>(options_.token_file)));
}

CredentialsOfFiles::Made CredentialsOfFiles::Now() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = Clock::Real()->Monotonic();
  if (now - looked_ < options_.refresh_interval) return made_;
  looked_ = now;
  const Versions versions = Look();
  if (versions == versions_) return made_;
  absl::Status whole = CheckAuthorities(options_.ca_file, absl::Now());
  if (whole.ok() && !options_.cert_file.empty()) {
    whole = CheckOwnCertificate(options_.cert_file, options_.key_file, CertificateUse::kClient,
                                absl::Now())
                .status();
  }
  if (!whole.ok()) return made_;
  versions_ = versions;
  made_ = {.credentials = Make(), .generation = made_.generation + 1};
  return made_;
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
  RETURN_IF_ERROR(CheckAuthorities(options.ca_file, now));
  result.encrypted = true;
  result.server_name = options.server_name;
  if (!options.cert_file.empty()) {
    ASSIGN_OR_RETURN(result.certificate,
                     CheckPair(options, CertificateUse::kClient, now, result.warnings));
  }
  if (!options.token_file.empty()) RETURN_IF_ERROR(ReadToken(options.token_file).status());
  result.files = std::make_shared<CredentialsOfFiles>(options);
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
  result.encrypted = true;
  if (!options.ca_file.empty()) RETURN_IF_ERROR(CheckAuthorities(options.ca_file, now));
  ASSIGN_OR_RETURN(result.certificate,
                   CheckPair(options, CertificateUse::kServer, now, result.warnings));
  grpc::experimental::TlsServerCredentialsOptions tls(Watch(options));
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
