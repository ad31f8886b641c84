// How many connections a link is worth, learnt from what it carried.
//
// One connection carries as much per round trip as its window and its send buffer hold, and after
// a loss less for a long while: a long link needs several. Each costs memory and CPU time, so there
// are no more than help: from 4 on, their number is doubled as long as that raises the goodput by
// 15 %, and halved again once it did not.
//
// Deterministic: the same measurements lead to the same number. Not thread-safe.
#ifndef CAUSEWAY_WORKER_LINK_CONNECTION_TUNER_H_
#define CAUSEWAY_WORKER_LINK_CONNECTION_TUNER_H_

#include <cstdint>

#include "absl/time/time.h"

namespace causeway::worker {

inline constexpr int kMaxConnections = 16;

class ConnectionTuner {
 public:
  // 1 .. kMaxConnections: always so many. 0: as many as help.
  explicit ConnectionTuner(int connections);

  int connections() const { return connections_; }

  // With connections(), so many bytes crossed in that time, over a link of that round-trip time
  // (zero: not known). What is too small to fill the link, or took no time to speak of, says
  // nothing and is passed over.
  void Note(int64_t bytes, absl::Duration time, absl::Duration rtt);

 private:
  int connections_;
  bool settled_;
  // Of the number before this one, bytes per second; 0: there was none.
  double baseline_ = 0;
  // With the present number.
  int samples_ = 0;
  double bytes_ = 0;
  double seconds_ = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_CONNECTION_TUNER_H_
