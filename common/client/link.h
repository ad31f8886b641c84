// The link between this worker and the coordinator: the connections that bulk transfers go over,
// how many of them are used, and what is measured of them. It outlives exchanges, which come and go
// with a worker that starts anew.
#pragma once

#include <grpcpp/channel.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/rpc/tcp_links.h"

namespace causeway {

// Measures what the link to the coordinator carries, in both directions: for heartbeats, the
// summary, and the choice of how many connections to use.

enum class Direction { kUp = 0, kDown = 1 };

// Thread-safe.
class LinkMeter {
 public:
  // The clock outlives the meter.
  explicit LinkMeter(const Clock* clock) : clock_(clock) {}

  // Bytes that crossed while at least one object was under way, since the last sample.
  struct Sample {
    int64_t bytes = 0;
    absl::Duration time;
  };

  // An object gets under way: its first bytes may flow.
  void Begin(Direction direction);
  void Add(Direction direction, int64_t bytes);
  // It is whole, or given up, which `whole` says.
  Sample End(Direction direction, bool whole);

  void AddResent(int64_t chunks);
  void AddResume();
  // An object was ready, and no connection took it.
  void AddBlocked(absl::Duration time);

  int64_t bytes(Direction direction) const;
  // Smoothed; 0: not known yet.
  double goodput_bytes_per_second(Direction direction) const;
  // Fills in what the meter knows of.
  void Report(v1::LinkReport& report) const;

 private:
  struct Way {
    int64_t bytes = 0;
    double goodput = 0;
    int under_way = 0;
    // Since the last sample.
    int64_t sample_bytes = 0;
    absl::Duration sample_time = absl::ZeroDuration();
    absl::Duration busy_since;  // While objects are under way.
  };

  Way& way(Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ways_[static_cast<size_t>(direction)];
  }

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::array<Way, 2> ways_ ABSL_GUARDED_BY(mutex_);
  int64_t resent_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t resumes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration blocked_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

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

// Thread-safe.
class Link {
 public:
  struct Options {
    // A channel of its own for each lane, 0 .. kMaxConnections - 1; called once for each in each
    // generation of credentials (ChannelSecurity::Now).
    std::function<std::shared_ptr<grpc::Channel>(int lane)> make_channel;
    std::function<int64_t()> generation = [] { return int64_t{0}; };
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
    // How often those who wait look at the clock.
    absl::Duration poll = absl::Seconds(1);
  };
  explicit Link(Options options);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Options& options() const { return options_; }
  LinkMeter& meter() { return meter_; }

  // One TCP connection. Its channel connects by itself, and again when it breaks. It is another one
  // in another generation; who lets go of the former one must be none of gRPC's threads.
  std::shared_ptr<grpc::Channel> channel(int lane);
  // How many lanes objects should go over.
  int connections() const;

  // An object ended (LinkMeter::End): learns from it.
  void EndObject(Direction direction, bool whole);

  // When a stream in that direction is to be given up, three round trips included. Longer while TCP
  // carries something: every one of many connections waits for its turn on a thin link, and may not
  // have got a whole chunk for that long.
  absl::Duration stall_limit(Direction direction) const;
  // Asks TCP again, unless that was a moment ago.
  void Refresh();
  // For a heartbeat.
  v1::LinkReport Report();

 private:
  const Options options_;
  LinkMeter meter_;
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  ConnectionTuner up_ ABSL_GUARDED_BY(mutex_);
  ConnectionTuner down_ ABSL_GUARDED_BY(mutex_);
  TcpLink tcp_ ABSL_GUARDED_BY(mutex_);
  // Bytes that TCP had carried at a moment, up and down. The samples go back to stalled_after.
  struct Carried {
    absl::Duration at;
    std::array<int64_t, 2> bytes;
  };
  std::deque<Carried> carried_ ABSL_GUARDED_BY(mutex_);
  absl::Duration refreshed_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
};

}  // namespace causeway
