// TCP connections that block, made as gRPC makes its own: through a proxy where the environment
// names one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/descriptor.h"
#include "common/rpc/tcp_address.h"

namespace causeway {

// The environment's word on proxies, as gRPC's channels read it.

struct ProxySetting {
  std::string variable = {};     // That counts; empty: none is set, or no_proxy excepts the host.
  bool used = false;             // Connections go through it.
  std::string address = {};      // HOST:PORT of a proxy that is used.
  std::string credentials = {};  // USER:PASSWORD that the variable holds, never to be shown.
  std::string finding = {};      // A sentence's part; empty: all is as without proxies.
  std::string remedy = {};       // If that is not as it should be; empty: it need not be known.
  std::string hint = {};         // For somebody whom no connection reaches; may be empty.
};

// This process's. `addresses` are the host's, to be looked for in the networks of no_proxy.
ProxySetting FindProxy(const std::string& host, std::span<const TcpAddress> addresses);
// The same for HOST:PORT, whose name is not looked up.
ProxySetting ProxyTo(absl::string_view address);
// Where connections to all addresses of a list (SplitAddresses) end: there, or at the proxy. Errors
// as ResolveAddresses.
absl::StatusOr<std::vector<TcpAddress>> OtherEndsOf(absl::string_view addresses);

inline constexpr char kRefusesConnection[] = "refuses the connection";
// An errno of connect(), as what the other end does. OK for 0, DEADLINE_EXCEEDED while it is under
// way, else UNAVAILABLE.
absl::Status ConnectError(int error);

// A connected socket with a deadline for all that it does. Not thread-safe.
class TcpStream {
 public:
  // Tries for a share of the time until `deadline`, so that `others` may be tried after it.
  static absl::StatusOr<TcpStream> Open(const TcpAddress& address, absl::Time deadline,
                                        int others = 0);

  bool Send(absl::string_view data);
  // 0: the peer has closed. -1: it broke, or the deadline has passed.
  ssize_t Receive(char* data, size_t size);
  bool late() const { return absl::Now() >= deadline_; }

 private:
  explicit TcpStream(absl::Time deadline) : deadline_(deadline) {}
  bool Wait(int16_t events) const;

  OwnedDescriptor socket_;
  absl::Time deadline_;
};

// A connection to HOST:PORT. INVALID_ARGUMENT for a malformed one, NOT_FOUND or UNAVAILABLE if none
// comes about; each names the address, or the proxy.
absl::StatusOr<TcpStream> DialTcp(const std::string& address, absl::Time deadline);
// The same by a proxy that is used. UNAVAILABLE also if it does not let the connection through.
absl::StatusOr<TcpStream> DialThrough(const ProxySetting& proxy, const std::string& address,
                                      absl::Time deadline);

}  // namespace causeway
