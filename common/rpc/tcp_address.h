// Addresses of TCP endpoints, as values that can be compared.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// An IPv6 address and a port. IPv4 is kept in its mapped form (::ffff:a.b.c.d), which is also how a
// socket that listens for both reports its IPv4 peers: both spellings compare as equal.
struct TcpAddress {
  std::array<uint8_t, 16> ip = {};
  uint16_t port = 0;
  uint32_t scope = 0;  // The interface of a link-local address; not compared.

  bool is_ipv4() const;
  bool is_loopback() const;
  // "10.0.0.1:7070" or "[2001:db8::1]:7070".
  std::string ToString() const;
  bool operator==(const TcpAddress& other) const { return ip == other.ip && port == other.port; }
};

// Empty if the socket address is neither IPv4 nor IPv6.
std::optional<TcpAddress> FromSocketAddress(const sockaddr_storage& address);
// In the family's own form; returns the length that connect() wants.
socklen_t ToSocketAddress(const TcpAddress& address, sockaddr_storage& out);

// All addresses of "HOST:PORT" in the system's order of preference, without repetitions. Blocks as
// long as the system's resolver does. INVALID_ARGUMENT for a malformed address, NOT_FOUND if the
// name has no address, UNAVAILABLE if the resolver does not answer.
absl::StatusOr<std::vector<TcpAddress>> ResolveAddress(absl::string_view host_port,
                                                       bool allow_any_port = false);

// Those of all addresses of a list (SplitAddresses), in its order. Names that do not resolve are
// left out; if none does, the first one's error.
absl::StatusOr<std::vector<TcpAddress>> ResolveAddresses(absl::string_view addresses);

// HOST:PORT by which others may reach a server that listens on the host of `listen`: that host, or,
// if it stands for all addresses, those of this machine's interfaces that are for more than it.
std::vector<std::string> ReachableAddresses(absl::string_view listen, int port);
// The same, for who is on this machine.
std::string AddressFromHere(absl::string_view listen, int port);

// Reads what grpc::ServerContext::peer() and ClientContext::peer() say: "ipv4:10.0.0.1:53211" or
// "ipv6:%5B::1%5D:53211". INVALID_ARGUMENT for anything else, such as a Unix socket.
absl::StatusOr<TcpAddress> ParseGrpcPeer(absl::string_view peer);

}  // namespace causeway
