// Finds connections that make gRPC 1.51 keep too much, which are then ended.
//
// gRPC keeps headers that do not end, and answers to a client that does not read, both without a
// bound. TCP's counts show both, whatever TLS hides:
//
//   - A stranger sends more than kStrangerBytes and has no call admitted a second later, or sends
//     more than kMostStrangerBytes before that. He has shown no credentials, or sends headers that
//     do not end. gRPC's clients cannot: until they are admitted, flow control lets them send 64
//     KiB of each of 64 calls.
//   - One who asks and does not read has taken nothing for a second, and has sent kUnreadBytes
//     meanwhile. gRPC's own clients always read.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace causeway::server {

// Describes one TCP connection.
struct ConnectionFacts {
  int64_t received_bytes = 0;  // Since it began.
  bool reads = true;           // False: something waits for it, and its receive window is closed.
};

// Returns nothing if the descriptor is no TCP connection.
std::optional<ConnectionFacts> FactsOf(int descriptor);

// The record of one connection. Not thread-safe.
class ConnectionWatch {
 public:
  static constexpr int64_t kStrangerBytes = int64_t{256} << 10;
  static constexpr int64_t kMostStrangerBytes = int64_t{4} << 20;
  static constexpr int64_t kUnreadBytes = int64_t{256} << 10;
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // Says why the connection is to be ended, or "". `admitted`: a call over it was admitted. `now`
  // does not go back from call to call.
  absl::string_view Judge(const ConnectionFacts& facts, bool admitted, absl::Duration now);

 private:
  std::optional<absl::Duration> strange_since_;
  struct Unread {
    absl::Duration since;
    int64_t received_bytes;  // Then.
  };
  std::optional<Unread> unread_;
};

}  // namespace causeway::server
