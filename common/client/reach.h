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

// What the environment says of proxies, as gRPC's channels read it.
struct ProxySetting {
  std::string variable = {};  // That counts; empty: none is set, or no_proxy excepts the host.
  bool used = false;          // Connections go through it.
  std::string address = {};   // HOST:PORT of a proxy that is used.
  bool has_password = false;  // The variable holds one, which is not shown.
  std::string finding = {};   // A sentence's part; empty: all is as without proxies.
  std::string remedy = {};    // If that is not as it should be; empty: it need not be known.
  std::string hint = {};      // For somebody whom no connection reaches; may be empty.
};

// The environment's, null if it is not set; std::getenv but for tests.
using ReadVariable = std::function<const char*(const char* name)>;

// `addresses` are the host's, to be looked for in the networks of no_proxy.
ProxySetting FindProxy(const std::string& host, std::span<const TcpAddress> addresses,
                       const ReadVariable& variable);
// Asks a proxy that is used for a connection to HOST:PORT. An error, with the proxy's name, if it
// cannot be reached or does not let the connection through.
absl::Status TryProxy(const ProxySetting& proxy, const std::string& address,
                      absl::Duration timeout);
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
