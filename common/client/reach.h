// From a name to something that answers as a coordinator does: what stands in the way, told apart
// before gRPC makes one error of it all.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/http_proxy.h"
#include "common/rpc/security.h"
#include "common/rpc/tcp_address.h"

namespace causeway {

// What stands in the way, and what to do about it. Empty: nothing does.
struct Obstacle {
  std::string finding;
  std::string remedy;
};

struct ConnectAttempt {
  TcpAddress address;
  absl::Status status;  // UNAVAILABLE (refused), DEADLINE_EXCEEDED (no answer), ...
  absl::Duration time;
};

// Tries all addresses at once; returns when each has connected, failed, or had `timeout`.
std::vector<ConnectAttempt> ConnectToAll(std::span<const TcpAddress> addresses,
                                         absl::Duration timeout);
// If none has connected.
Obstacle ObstacleOf(std::span<const ConnectAttempt> attempts);

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
// To a site without TLS. `speaks_tls` is whether the server answered a TLS client.
Obstacle ObstacleOf(const std::string& address, Greeting greeting, bool speaks_tls);

// Between here and a proxy that is used, by what became of a connection (DialThrough).
Obstacle ObstacleOf(const ProxySetting& proxy, const absl::Status& tunnel);

// Why nobody answers at HOST:PORT, and what to do, as a sentence; empty where nothing is wrong that
// can be seen from here. Blocks for some seconds.
std::string ExplainNoAnswer(const std::string& address, bool uses_tls,
                            const ReadVariable& variable);

// DescribeRun (session.h), with its `stop`, that does not wait for a coordinator that will never
// talk to this side, and says what stands in the way of one that does not answer.
absl::StatusOr<v1::DescribeResponse> DescribeOrExplain(v1::Session::StubInterface& stub,
                                                       const std::string& coordinator,
                                                       const SecurityOptions& security,
                                                       absl::Duration timeout,
                                                       absl::string_view region_id = "",
                                                       const std::function<bool()>& stop = {});

// Logs the warnings of `security`, and from then on each change of its files.
void LogSecurity(const ChannelSecurity& security);

}  // namespace causeway
