// Texts from flags and from peers: HOST:PORT, and what is fit for a terminal and a log.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// A text for errors: without what follows the last dot of an invitation (causeway://...), which is
// a secret, and at most 200 characters.
std::string WithoutSecret(absl::string_view text);

// "HOST:PORT" with a port of 1 .. 65535 (0 too where `allow_any_port`). INVALID_ARGUMENT says
// what is wrong. Does not resolve the name.
absl::Status CheckAddress(absl::string_view address, bool allow_any_port);

// "HOST:PORT,HOST:PORT": one or more, each checked as above.
absl::StatusOr<std::vector<std::string>> SplitAddresses(absl::string_view addresses);

// Whether the host of HOST:PORT is this machine by its very name: localhost, 127.x.x.x or [::1].
bool IsLoopback(absl::string_view address);

struct HostPort {
  std::string host;  // Without the brackets of an IPv6 address.
  std::string port;  // Decimal.
};

// Checks, and takes apart, in the form that getaddrinfo wants.
absl::StatusOr<HostPort> SplitHostPort(absl::string_view address, bool allow_any_port);

// `text` with '?' in place of every control character, C0 and C1: what a peer says of itself
// neither begins a line of its own in a log nor gives orders to the terminal that shows it.
std::string Printable(absl::string_view text);

}  // namespace causeway
