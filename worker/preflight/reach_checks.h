// From a name to something that answers as a coordinator does: what reach.h finds, judged.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_REACH_CHECKS_H_
#define CAUSEWAY_WORKER_PREFLIGHT_REACH_CHECKS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/client/reach.h"
#include "common/identity/certificate.h"
#include "common/rpc/tcp_address.h"
#include "common/rpc/tls_handshake.h"
#include "worker/preflight/check_result.h"

namespace causeway::worker {

CheckResult JudgeNames(const std::string& address,
                       const absl::StatusOr<std::vector<TcpAddress>>& addresses,
                       absl::Duration time, const ProxySetting& proxy);
CheckResult JudgeConnections(std::span<const ConnectAttempt> attempts);
// Of the proxy that connections go through; to be asked for only then.
CheckResult JudgeProxy(const std::string& address, const ProxySetting& proxy,
                       const absl::Status& tunnel);
// Judges for a site without TLS. `speaks_tls` is whether the server answered a TLS client.
CheckResult JudgeGreeting(const std::string& address, Greeting greeting, bool speaks_tls);
// Judges for a site with TLS; its own certificate, if it has one, is `own` of the file `own_file`.
CheckResult JudgeHandshake(const absl::StatusOr<TlsHandshake>& handshake);
CheckResult JudgeCertificates(const Certificate& server, const std::optional<Certificate>& own,
                              const std::string& own_file, absl::Time now);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_REACH_CHECKS_H_
