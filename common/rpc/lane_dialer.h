// Lanes over gRPC, from the side that opens them: a worker's, or a region's to its parent.
//
// A channel for each lane is given; the dialer opens one Exchange.Carry on it whenever it is told
// to. Streams are destroyed by the thread that dials, and by whoever destroys the dialer: gRPC's
// threads must not be the last to let go of a channel. Where a lane has got another channel, since
// the credentials are others, its stream on the former one is ended.
#ifndef CAUSEWAY_COMMON_RPC_LANE_DIALER_H_
#define CAUSEWAY_COMMON_RPC_LANE_DIALER_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/transfer/lane_peer.h"

namespace causeway {

// Thread-safe.
class LaneDialer {
 public:
  // The channel of that lane, its own, as of now.
  using ChannelOf = std::function<std::shared_ptr<grpc::Channel>(int lane)>;
  explicit LaneDialer(ChannelOf channel_of) : channel_of_(std::move(channel_of)) {}
  // Waits for all streams, which somebody has ended.
  ~LaneDialer();
  LaneDialer(const LaneDialer&) = delete;
  LaneDialer& operator=(const LaneDialer&) = delete;

  // Opens a stream and gives it to the peer as that lane. The peer outlives the stream.
  void Dial(int lane, const std::shared_ptr<LanePeer>& peer);
  // Ends, with UNAVAILABLE, the streams whose lanes have other channels now: they are dialed anew.
  // By a thread that may dial.
  void EndOutdated();

 private:
  class Stream;

  const ChannelOf channel_of_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_LANE_DIALER_H_
