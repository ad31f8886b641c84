// The environment's word on proxies, as gRPC's channels read it.
#pragma once

#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/tcp_address.h"

namespace causeway {

struct ProxySetting {
  std::string variable = {};     // That counts; empty: none is set, or no_proxy excepts the host.
  bool used = false;             // Connections go through it.
  std::string address = {};      // HOST:PORT of a proxy that is used.
  std::string credentials = {};  // USER:PASSWORD that the variable holds, never to be shown.
  std::string finding = {};      // A sentence's part; empty: all is as without proxies.
  std::string remedy = {};       // If that is not as it should be; empty: it need not be known.
  std::string hint = {};         // For somebody whom no connection reaches; may be empty.
};

// The environment's, null if it is not set.
using ReadVariable = std::function<const char*(const char* name)>;
inline const char* ReadEnvironment(const char* name) { return std::getenv(name); }

// `addresses` are the host's, to be looked for in the networks of no_proxy.
ProxySetting FindProxy(const std::string& host, std::span<const TcpAddress> addresses,
                       const ReadVariable& variable);
// This process's, for HOST:PORT, whose name is not looked up.
ProxySetting ProxyTo(absl::string_view address);
// Where connections to all addresses of a list (SplitAddresses) end: there, or at the proxy. Errors
// as ResolveAddresses.
absl::StatusOr<std::vector<TcpAddress>> OtherEndsOf(absl::string_view addresses);

}  // namespace causeway
