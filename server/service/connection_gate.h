// How many connections a server takes, in total and from one network.
//
// Who may take part is found out only after a connection has been taken, so strangers can hold as
// many as there are. A part of them is therefore kept for networks from which a call was admitted
// before. A network is an IPv4 address, or the 64 bits of an IPv6 address that a site owns.
//
// Thread-safe.
#ifndef CAUSEWAY_SERVER_SERVICE_CONNECTION_GATE_H_
#define CAUSEWAY_SERVER_SERVICE_CONNECTION_GATE_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/tcp_address.h"

namespace causeway::server {

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_CONNECTION_GATE_H_
