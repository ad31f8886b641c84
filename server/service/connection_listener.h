// Takes the connections of a port, as many as a gate allows, and hands them on.
//
// In gRPC's place: 1.51 knows no limit of connections, and stops listening for good when accept()
// fails for want of a file descriptor (CVE-2023-4785). This listener refuses what is too much by
// closing it, and survives without descriptors: it keeps a spare one, with which it takes and
// closes what waits.
//
// The connections belong to whoever takes them. When one has ended is found out by looking: a
// descriptor is another socket, or none, by then. That happens when a connection would be refused.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/rpc/tcp_address.h"
#include "server/access/rate_limiter.h"

namespace causeway::server {

// How many connections a server takes, in total and from one network.
//
// Who may take part is found out only after a connection has been taken, so strangers can hold as
// many as there are. A part of them is therefore kept for networks from which a call was admitted
// before. A network is an IPv4 address, or the 64 bits of an IPv6 address that a site owns.
//
// Thread-safe.
class ConnectionGate {
 public:
  struct Limits {
    int total = 0;
    int per_network = 0;
    int for_members = 0;  // Part of the total that is kept for networks of members.
  };

  explicit ConnectionGate(const Limits& limits) : limits_(limits) {}

  // Counts a connection from there until Leave; RESOURCE_EXHAUSTED says which limit it meets.
  absl::Status Enter(const TcpAddress& peer);
  void Leave(const TcpAddress& peer);
  // A call from there was admitted.
  void Know(const TcpAddress& peer);

  int connections() const;

 private:
  using Network = std::array<uint8_t, 16>;
  static Network NetworkOf(const TcpAddress& address);

  const Limits limits_;
  mutable absl::Mutex mutex_;
  int total_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Network, int> of_network_ ABSL_GUARDED_BY(mutex_);
  std::set<Network> known_ ABSL_GUARDED_BY(mutex_);
};

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

// Why accept() gave no connection, and so what to do about it.
enum class AcceptFailure {
  kConnection,   // It ended while it waited, or its network did: the next one may be well.
  kDescriptors,  // None is left: what waits cannot be taken.
  kMemory,       // The kernel's: it passes, or the machine needs more.
  kListener,     // The listening socket is bad, or not allowed: waiting may not mend it.
};
AcceptFailure ClassifyAcceptError(int error);

// Start and Stop are called by one thread, the others by any.
class ConnectionListener {
 public:
  // The descriptor is the taker's: connected, non-blocking. Called on the listener's thread.
  using Taker = std::function<void(int listener, int descriptor)>;

  // Binds all addresses of "HOST:PORT" and listens; port 0: any free one, the same for all. A
  // wildcard of either family listens on both. Connections wait until Start. Both references
  // outlive the listener. INVALID_ARGUMENT for a malformed address, UNAVAILABLE if none of the
  // addresses can be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Listen(const std::string& address,
                                                                    ConnectionGate& gate,
                                                                    const Clock& clock);
  ~ConnectionListener() { Stop(); }
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  int port() const { return port_; }
  // RESOURCE_EXHAUSTED if its thread could not be started.
  absl::Status Start(Taker take);
  // A call of that peer, with its port, was admitted.
  void Know(const TcpAddress& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the connections that ConnectionWatch finds. Call about ten times a second.
  void EndHostile() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes no connection any more, and gives the port back. Those that were taken live on.
  void Stop();

 private:
  struct Taken {
    ino_t socket = 0;  // Inode of the socket when it was taken.
    TcpAddress peer;
    bool known = false;  // A call over it was admitted.
    ConnectionWatch watch = {};
  };
  // Finds a peer's connection.
  using PeerKey = std::pair<std::array<uint8_t, 16>, uint16_t>;
  static PeerKey KeyOf(const TcpAddress& peer) { return {peer.ip, peer.port}; }

  ConnectionListener(ConnectionGate& gate, const Clock& clock);
  absl::Status Bind(const TcpAddress& address);
  void AcceptLoop();
  // False if the next try had better wait.
  bool AcceptOne(int listener);
  void Take(int listener, OwnedDescriptor connection, const TcpAddress& peer);
  absl::Status Admit(const TcpAddress& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the connections that have ended.
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(int descriptor, const Taken& taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const std::string& line);

  ConnectionGate& gate_;
  const Clock& clock_;
  int port_ = 0;
  std::vector<OwnedDescriptor> listeners_;
  OwnedDescriptor wake_;   // An eventfd: the end.
  OwnedDescriptor spare_;  // For the day when there are no others.
  Taker take_;
  std::thread thread_;
  RateLimiter lines_;
  absl::Mutex mutex_;
  std::map<int, Taken> taken_ ABSL_GUARDED_BY(mutex_);  // By descriptor.
  // The newest connection of each peer, whose port may have had an older one.
  std::map<PeerKey, int> newest_ ABSL_GUARDED_BY(mutex_);
  absl::Duration swept_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
};

}  // namespace causeway::server
