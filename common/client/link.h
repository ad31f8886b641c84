// The link between this worker and the coordinator: the connections that bulk transfers go over,
// how many of them are used, and what is measured of them. It outlives exchanges, which come and go
// with a worker that starts anew.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/tcp_links.h"
#include "common/transfer/lane_client.h"

namespace causeway {

enum class Direction { kUp = 0, kDown = 1 };

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

// Observes its lanes: what objects carry while at least one is under way says how many connections
// are worth having. Thread-safe.
class Link final : public LaneObserver {
 public:
  struct Options {
    // Lane 0 has the second channel, and so on: the first is the session's, which no bulk transfer
    // holds up.
    std::shared_ptr<RenewedChannels> channels;
    int connections = 0;  // 0: chosen from what the link carries (ConnectionTuner).
    int64_t max_upload_bytes_per_second = 0;  // 0: no limit.
    int64_t max_download_bytes_per_second = 0;
    // Says what TCP knows of the connections; may be empty. Called by one thread at a time.
    std::function<TcpLink()> tcp;
    // The largest that one connection can have (tcp_wmem, common/rpc/tcp_links.h); 0: usual.
    int64_t send_buffer_bytes = 0;
    Clock* clock = Clock::Real();  // Outlives the link.
    // A lane that should move is given up after this and three round trips without a byte.
    absl::Duration stalled_after = absl::Seconds(30);
  };
  explicit Link(Options options);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Options& options() const { return options_; }

  // How many lanes objects should go over.
  int connections() const;

  // Payload of objects that crossed, of all exchanges.
  int64_t bytes(Direction direction) const;

  void OnChunk(bool sent, int64_t bytes, bool again) override;
  void OnResume() override;
  void OnFlow(bool sent) override;
  void OnEnd(bool sent, bool whole) override;
  void OnBlocked(bool blocked) override;
  void OnTrouble(const std::string& what, const absl::Status& why) override;

  // When a stream in that direction is to be given up, three round trips included. Longer while TCP
  // carries something: every one of many connections waits for its turn on a thin link, and may not
  // have got a whole chunk for that long.
  absl::Duration stall_limit(Direction direction) const;
  // Asks TCP again, unless that was a moment ago.
  void Refresh();
  // For a heartbeat.
  v1::LinkReport Report();

 private:
  struct Way {
    ConnectionTuner tuner;
    int64_t bytes = 0;
    double goodput = 0;  // Bytes per second, smoothed; 0: not known yet.
    int under_way = 0;   // Objects.
    // Bytes that crossed, and the time, while objects were under way since one was last whole.
    int64_t sample_bytes = 0;
    absl::Duration sample_time = absl::ZeroDuration();
    absl::Duration busy_since = absl::ZeroDuration();  // While objects are under way.
  };
  Way& way(bool sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ways_[sent ? 0 : 1]; }
  int LanesWorthHaving() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::array<Way, 2> ways_ ABSL_GUARDED_BY(mutex_);  // By Direction.
  int64_t resent_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t resumes_ ABSL_GUARDED_BY(mutex_) = 0;
  // An object is ready, and no connection takes it; and how long that was so, in all.
  std::optional<absl::Duration> blocked_since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration blocked_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  TcpLink tcp_ ABSL_GUARDED_BY(mutex_);
  // Bytes that TCP had carried at a moment, up and down. The samples go back to stalled_after.
  struct Carried {
    absl::Duration at;
    std::array<int64_t, 2> bytes;
  };
  std::deque<Carried> carried_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex asking_;  // Before the other.
  absl::Duration refreshed_ ABSL_GUARDED_BY(asking_) = -absl::InfiniteDuration();
};

}  // namespace causeway
