// How many connections a link is worth, learnt from what it carried.
//
// One connection carries as much per round trip as its window and its send buffer hold: a long link
// needs several. More than that do harm, as together they fill the queues on the way until these
// drop. So, from 4 on:
//
//   - Where TCP paces what it sends (BBR), there are as many as hold what the link was seen to have
//     under way, with some room to spare. As long as the buffers are what limits, that is more than
//     there are; then it stays. It never shrinks, for a link at rest says nothing.
//   - Otherwise (CUBIC, Reno) every loss holds a connection down for a long while, too. What helps
//     is tried: the number is doubled as long as that raises the goodput by 15 %, and halved again
//     once it did not, but not below what the buffers ask for.
//
// Deterministic: the same measurements lead to the same number. Not thread-safe.
#ifndef CAUSEWAY_COMMON_CLIENT_CONNECTION_TUNER_H_
#define CAUSEWAY_COMMON_CLIENT_CONNECTION_TUNER_H_

#include <cstdint>

#include "absl/time/time.h"

namespace causeway {

inline constexpr int kMaxConnections = 16;

// Figures of a link's connections.
struct ConnectionTraits {
  absl::Duration rtt;             // Without queues; zero: not known.
  int64_t send_buffer_bytes = 0;  // The largest that one can have (tcp_wmem); 0: not known.
  bool paced = false;             // By BBR.
};

class ConnectionTuner {
 public:
  // 1 .. kMaxConnections: always so many. 0: as many as help.
  explicit ConnectionTuner(int connections);

  int connections() const { return connections_; }

  // With connections(), so many bytes crossed in that time, while at least one object was under
  // way. What took no time to speak of, or crossed a short link, says nothing and is passed over.
  void Note(int64_t bytes, absl::Duration time, const ConnectionTraits& traits);

 private:
  // So many hold what is under way at that rate.
  static int Needed(double bytes_per_second, const ConnectionTraits& traits);
  void GrowTo(int connections);
  void Search(double bytes_per_second);

  const bool fixed_;
  int connections_;
  // The search compares with the goodput of half as many connections, bytes per second; 0: there
  // was none.
  double baseline_ = 0;
  bool found_ = false;
  // With the present number: connections are new, and not up to their rate yet.
  absl::Duration settling_;
  double bytes_ = 0;
  absl::Duration time_;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLIENT_CONNECTION_TUNER_H_
