// From the flags --tls_ca, --tls_cert, --tls_key, --token_file, --tls_server_name and --insecure to
// the credentials of channels and servers. SECURITY.md says what they protect.
//
//   mutual TLS      ca, cert and key on both sides: who a peer is stands in its certificate
//   TLS and tokens  the coordinator has cert, key and a file of tokens, the worker ca and its token
//   plaintext       none of them: on loopback, or elsewhere with --insecure
//
// Files are checked when the credentials are made, and looked at every `refresh_interval`: a
// changed set that is whole counts for new connections (certificate_watch.h), so that certificates
// are renewed without a restart. gRPC has texts that were checked, never the files: it ends the
// process at an empty one. An open connection keeps the certificate that it began with, up to a
// day: who dials by ChannelSecurity::Now (RenewedChannels) has a new one long before the old one
// ends.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/identity/certificate.h"
#include "common/rpc/certificate_watch.h"

namespace causeway {

// PEM files and tokens of one side.
struct SecurityOptions {
  std::string ca_file;     // --tls_ca: whose signature under a peer's certificate counts.
  std::string cert_file;   // --tls_cert: one's own certificate, and those between it and the CA.
  std::string key_file;    // --tls_key: of cert_file.
  std::string token_file;  // --token_file: a worker's token; a coordinator's list (watched_list.h).
  // --tls_crl_dir: revocation lists of the authorities of ca_file, as `openssl rehash` names them;
  // empty: none. A server's, for connections that begin.
  std::string crl_folder = {};
  std::string server_name;  // --tls_server_name: the coordinator's name if the address has another.
  bool insecure = false;    // --insecure: plaintext beyond this machine.
  absl::Duration refresh_interval = absl::Seconds(10);  // Whole seconds, 1 or more.
  std::string renewal = kRenewedByHand;  // What to do when cert_file's end is near, for people.

  // Whether connections are encrypted. MakeChannelSecurity refuses what is half a set.
  bool UsesTls() const { return !ca_file.empty() || !cert_file.empty() || !key_file.empty(); }
};

// Credentials that are made anew when their files have changed. Thread-safe.
class CredentialsOfFiles {
 public:
  // `token`: for every call; null for who has a certificate.
  CredentialsOfFiles(CertificateWatch files, std::shared_ptr<TokenFile> token);
  struct Made {
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    int64_t generation = 0;  // Counts how often they were made anew.
  };
  // Looks at the files, once a refresh_interval at most. While they do not fit together the former
  // credentials go on.
  Made Now();
  // Who is told of changes from now on, one call at a time, by whoever calls Now; null: nobody.
  void ReportTo(CertificateReport report);
  // The peer refused who this is. True if another try may be let in, because the files are being
  // replaced, or just have been.
  bool MayPass(const absl::Status& refusal);

 private:
  std::shared_ptr<grpc::ChannelCredentials> Make() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<TokenFile> token_;
  absl::Mutex mutex_;
  CertificateWatch files_ ABSL_GUARDED_BY(mutex_);
  CertificateReport report_ ABSL_GUARDED_BY(mutex_);
  Made made_ ABSL_GUARDED_BY(mutex_);
};

// Places of one peer that are taken in turn. Thread-safe.
class PlacesInTurn {
 public:
  PlacesInTurn(std::vector<std::string> places, size_t first)
      : places_(std::move(places)), turn_(static_cast<int64_t>(first)) {}
  int64_t turn() const { return turn_; }
  const std::string& Now() const { return places_[static_cast<size_t>(turn_) % places_.size()]; }
  // The next one counts, unless another thread has left that turn's before.
  void Leave(int64_t turn) { turn_.compare_exchange_strong(turn, turn + 1); }

 private:
  const std::vector<std::string> places_;
  std::atomic<int64_t> turn_;
};

// State that all channels of one process share. Copies share the watch over the files.
struct ChannelSecurity {
  std::shared_ptr<CredentialsOfFiles> files;  // Null: plaintext.
  // Where channels go in place of their target; each turn is a generation. Null: to their target.
  std::shared_ptr<PlacesInTurn> places;
  std::string server_name;  // Empty: the address's.
  bool encrypted = false;
  std::optional<Certificate> certificate;  // One's own, as it was when it was checked.
  std::vector<std::string> warnings;       // For the log.

  static ChannelSecurity Plaintext() { return {}; }
  CredentialsOfFiles::Made Now() const;
  // Whether what failed so may succeed when it is tried again: IsRetryable, or MayPass.
  bool Passes(const absl::Status& status) const;
};

struct ServerSecurity {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // To be looked at while the server runs; null: plaintext.
  std::shared_ptr<ServedCertificates> files;
  bool encrypted = false;
  std::optional<Certificate> certificate;
  std::vector<std::string> warnings;
};

// For channels to `address`. INVALID_ARGUMENT for flags that do not fit together,
// FAILED_PRECONDITION for plaintext beyond this machine without `insecure`, and the errors of
// certificate.h; all say what to do.
absl::StatusOr<ChannelSecurity> MakeChannelSecurity(const SecurityOptions& options,
                                                    const std::string& address, absl::Time now);

// The same for a server that listens on `address`. Does not read the file of tokens.
absl::StatusOr<ServerSecurity> MakeServerSecurity(const SecurityOptions& options,
                                                  const std::string& address, absl::Time now);

SecurityOptions SecurityOptionsFromFlags();

// One TLS handshake with a coordinator, made only to learn how it goes. gRPC keeps the reasons to
// itself: a worker that was refused sees no more than that nobody answers.

// Connects to HOST:PORT, with the same checks on both sides as gRPC's connections; `options` use
// TLS. FAILED_PRECONDITION if it can never work as it is: the server speaks no TLS, or its
// certificate is not to be trusted or is for another name. PERMISSION_DENIED: a server that is to
// be trusted does not trust our certificate. Each with what to do. NOT_FOUND or UNAVAILABLE if no
// connection comes about, or no answer in time; and the errors of certificate.h. Returns the
// server's certificate.
absl::StatusOr<Certificate> TryTlsHandshake(const std::string& address,
                                            const SecurityOptions& options, absl::Duration timeout);

// The certificate (PEM) of the authority with that SHA-256, as the server at HOST:PORT shows it
// among those above its own. Nothing is trusted by it yet, and nothing was said.
// FAILED_PRECONDITION: the server shows another authority, or speaks no TLS. NOT_FOUND or
// UNAVAILABLE: nobody answers.
absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout);

// Whether a server that a client without TLS cannot talk to speaks TLS. Trusts nobody and says
// nothing. False also if there is no answer.
bool SpeaksTls(const std::string& address, absl::Duration timeout);

// Why no coordinator answers at `address`, as far as TLS is the reason: FAILED_PRECONDITION, or OK.
absl::Status ExplainByTls(const std::string& address, const SecurityOptions& options,
                          absl::Duration timeout);

}  // namespace causeway
