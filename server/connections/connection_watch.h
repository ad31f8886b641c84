// Which connections are ended for what they make gRPC 1.51 keep.
//
// It keeps headers that do not end, without a bound, and what it answers, without a bound, for a
// client that asks and does not read. Both show in what TCP counts, whatever TLS hides:
//
//   - who sends more than kStrangerBytes and has had no call admitted a second later, or more than
//     kMostStrangerBytes before, has shown no credentials, or sends headers that do not end. A
//     client of gRPC's cannot: until they are admitted, flow control lets it send 64 KiB of each of
//     64 calls;
//   - who has not read for a second what he is sent, and has sent kUnreadBytes meanwhile, asks for
//     what he does not want. gRPC's own clients read always.
#ifndef CAUSEWAY_SERVER_CONNECTIONS_CONNECTION_WATCH_H_
#define CAUSEWAY_SERVER_CONNECTIONS_CONNECTION_WATCH_H_

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

// Nothing if the descriptor is no TCP connection.
std::optional<ConnectionFacts> FactsOf(int descriptor);

// The record of one connection. Not thread-safe.
class ConnectionWatch {
 public:
  static constexpr int64_t kStrangerBytes = int64_t{256} << 10;
  static constexpr int64_t kMostStrangerBytes = int64_t{4} << 20;
  static constexpr int64_t kUnreadBytes = int64_t{256} << 10;
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // Why the connection is to be ended, or "". `admitted`: a call over it has been. `now` does not
  // go back from call to call.
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

#endif  // CAUSEWAY_SERVER_CONNECTIONS_CONNECTION_WATCH_H_
