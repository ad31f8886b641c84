// Breaks the TCP connections that cross a link, as a failing firewall does: both ends are reset.
//
// An end accepts a reset only at exactly the next byte that it expects, and answers a reset that is
// merely near with a packet that says which byte that is (RFC 5961). So a connection stays broken:
// each later packet of it is dropped and answered with a reset at what the packet acknowledges.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/wan/wire_packet.h"

namespace causeway::wan {

// The two ends of a link.
enum class End { kNear = 0, kFar = 1 };

// Not thread-safe.
class ConnectionBreaker {
 public:
  struct Reset {
    End to;
    std::vector<uint8_t> frame;
  };

  // The fate of a packet that enters the link at that end.
  struct Verdict {
    bool drop = false;
    std::vector<Reset> resets;
  };
  Verdict Observe(End from, const TcpHeader& header);

  // From now on all connections seen so far are broken. The resets to begin with.
  std::vector<Reset> BreakAll();

  int64_t connections_broken() const { return connections_broken_; }

 private:
  struct LastPacket {
    End from;
    TcpHeader header;
  };

  std::map<TcpEndpoints, LastPacket> seen_;  // By sender.
  std::set<TcpEndpoints> broken_;            // By sender.
  int64_t connections_broken_ = 0;
};

}  // namespace causeway::wan
