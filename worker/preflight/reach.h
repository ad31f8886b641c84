// From a name to something that answers as a coordinator does: what stands in the way, told apart
// before gRPC makes one error of it all.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_REACH_H_
#define CAUSEWAY_WORKER_PREFLIGHT_REACH_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/identity/certificate.h"
#include "common/rpc/tcp_address.h"
#include "common/rpc/tls_handshake.h"
#include "worker/preflight/check_result.h"

namespace causeway::worker {

struct ConnectAttempt {
  TcpAddress address;
  absl::Status status;  // UNAVAILABLE (refused), DEADLINE_EXCEEDED (no answer), ...
  absl::Duration time;
};

// Tries all addresses at once; returns when each has connected, failed, or had `timeout`.
std::vector<ConnectAttempt> ConnectToAll(std::span<const TcpAddress> addresses,
                                         absl::Duration timeout);

// A server's answer to a client that introduces itself in plaintext HTTP/2.
enum class Greeting {
  kHttp2,   // Its settings: a gRPC server, like as not.
  kHttp1,   // A web server or proxy.
  kTls,     // It wants TLS.
  kOther,   // Another protocol.
  kClosed,  // It hung up.
  kSilent,  // Nothing at all within the time.
};
Greeting ClassifyGreeting(absl::string_view received, bool closed);
Greeting Greet(const TcpAddress& address, absl::Duration timeout);

// `proxy` is the environment variable that sends gRPC through a proxy, if any (FindProxy).
CheckResult JudgeNames(const std::string& address,
                       const absl::StatusOr<std::vector<TcpAddress>>& addresses,
                       absl::Duration time, const std::string& proxy);
CheckResult JudgeConnections(std::span<const ConnectAttempt> attempts);
// Judges for a site without TLS. `speaks_tls` is whether the server answered a TLS client.
CheckResult JudgeGreeting(const std::string& address, Greeting greeting, bool speaks_tls);
// Judges for a site with TLS; its own certificate, if it has one, is `own` of the file `own_file`.
CheckResult JudgeHandshake(const absl::StatusOr<TlsHandshake>& handshake);
CheckResult JudgeCertificates(const Certificate& server, const std::optional<Certificate>& own,
                              const std::string& own_file, absl::Time now);

// The variable that gRPC's channels take a proxy from, unless no_proxy excepts `host`; empty if
// there is none. Its value may hold a password, and is not shown. `variable` reads the environment.
std::string FindProxy(const std::string& host, const char* (*variable)(const char* name));

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_REACH_H_
