// The link between this worker and the coordinator: the connections that bulk transfers go over,
// how many of them are used, and what is measured of them. It outlives exchanges, which come and go
// with a worker that starts anew.
#ifndef CAUSEWAY_COMMON_CLIENT_LINK_H_
#define CAUSEWAY_COMMON_CLIENT_LINK_H_

#include <grpcpp/channel.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/client/connection_tuner.h"
#include "common/client/link_meter.h"
#include "common/rpc/tcp_links.h"

namespace causeway {

// Thread-safe.
class Link {
 public:
  struct Options {
    // A channel of its own for each lane, 0 .. kMaxConnections - 1; called once for each in each
    // generation of credentials (ChannelSecurity::Now).
    std::function<std::shared_ptr<grpc::Channel>(int lane)> make_channel;
    std::function<int64_t()> generation = [] { return int64_t{0}; };
    int connections = 0;  // 0: chosen from what the link carries (connection_tuner.h).
    int64_t max_upload_bytes_per_second = 0;  // 0: no limit.
    int64_t max_download_bytes_per_second = 0;
    // Says what TCP knows of the connections; may be empty. Called by one thread at a time.
    std::function<TcpLink()> tcp;
    // The largest that one connection can have (tcp_wmem, common/rpc/socket_buffers.h); 0: usual.
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

#endif  // CAUSEWAY_COMMON_CLIENT_LINK_H_
