// Channels and servers with the settings that bulk transfers over long links need.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/lane_peer.h"

namespace causeway {

// Target of MakeChannel for HOST:PORT, or for several with commas between (SplitAddresses): then
// the channel goes to the first of them that answers, and tries all again when that is gone. Names
// in a list are looked up here, a single one whenever the channel connects. Where the environment
// has a proxy for one of a list (tcp_stream.h), the target is the first that answers now, alone
// (SecurityTo knows the others). Blocks for some seconds then. UNAVAILABLE if none of a list has an
// address: it may get one.
absl::StatusOr<std::string> ChannelTarget(absl::string_view addresses);

// A channel to HOST:PORT, or a ChannelTarget, with keepalive, quick reconnects and bounded
// messages. `connection` numbers the TCP connections to one peer: channels with different numbers
// never share one. `security` is made once for all of them, by MakeChannelSecurity.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int connection,
                                           const ChannelSecurity& security);

// A call with one answer, over that channel, which ends within `timeout`:
// CallOver(channel, &v1::Admin::Stub::Pause, request, timeout).
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> CallOver(const std::shared_ptr<grpc::Channel>& channel,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                                  const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Response response;
  Stub stub(channel);
  RETURN_IF_ERROR(FromGrpcStatus((stub.*method)(&context, request, &response)));
  return response;
}

// Channels to one peer that are made anew once the files of their security have changed, or once
// the first does not reach the one of several places to which they go. Thread-safe.
class RenewedChannels {
 public:
  // As MakeChannel.
  RenewedChannels(std::string address, ChannelSecurity security)
      : address_(std::move(address)), security_(std::move(security)) {}
  // That of now: another one than before after a change. Who drops the former one may wait for
  // gRPC's threads, so it must not be one of them.
  std::shared_ptr<grpc::Channel> Now(int connection = 0);
  // Drops all but connection 0, which nobody uses for now.
  void KeepFirst();

 private:
  const std::string address_;
  const ChannelSecurity security_;
  absl::Mutex mutex_;
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  // By connection; null: not asked for yet.
  std::vector<std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
};

// Returns what a channel to these addresses, with their ChannelTarget, expects. Whoever of several
// answers shows the certificate of the first host, unless `security` names another one.
ChannelSecurity SecurityTo(absl::string_view addresses, absl::string_view target,
                           ChannelSecurity security);

// Limits of what connections may take, and of how long an idle one is kept.
struct ConnectionLimits {
  // Until TLS and HTTP/2 have introduced themselves.
  absl::Duration handshake = absl::Seconds(20);
  // Without a call. A worker's connections may rest between two rounds; it opens them again.
  absl::Duration idle = absl::Minutes(30);
  // Then the peer is to connect anew, and show its credentials again: calls that are under way have
  // `grace` to end by themselves. gRPC makes it up to a tenth more or less.
  absl::Duration age = absl::Hours(24);
  absl::Duration grace = absl::Minutes(5);
  // Bounds gRPC's own buffers: near it, windows shrink and new calls are refused.
  int64_t memory_bytes = int64_t{1} << 30;
};

// The same limits for a server: bounded messages, streams and memory; no shared port.
void ConfigureServer(grpc::ServerBuilder& builder, const ConnectionLimits& limits);

// Prepares a process that carries fragments. glibc gives receive buffers back to the system and
// faults them in again, which halves the rate of a stream; gRPC wakes a thread for every few
// packets, unless it is told to wait until a frame is there; Abseil checks the order of all locks.
// Call first in main(), before any other thread runs. What the environment says of gRPC's
// experiments stands.
void TuneForStreams();

// Lanes over gRPC, from the side that opens them: a worker's, or a region's to its parent.
//
// A channel for each lane is given; the dialer opens one Exchange.Carry on it whenever it is told
// to. Streams are destroyed by the thread that dials, and by whoever destroys the dialer: gRPC's
// threads must not be the last to let go of a channel. Where a lane has got another channel, since
// the credentials are others, its stream on the former one is ended.

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

// Messages of bulk transfers in gRPC's own buffers: see chunk_message.h.

// A message as a raw method receives it, where it lies. Leaves `buffer` empty.
MessageBytes TakeMessage(grpc::ByteBuffer& buffer);

// A LaneMessage that holds a chunk. It borrows `data`, 1 .. kChunkBytes of them,
// which must not change before `owner` is released, on any thread, when the message has left.
// chunk.data_bytes is taken from `data`.
grpc::ByteBuffer ChunkToBuffer(ChunkFields chunk, std::span<const uint8_t> data,
                               std::shared_ptr<const void> owner);

// A message of a lane, a chunk or a control message.
grpc::ByteBuffer LaneMessageToBuffer(OutgoingMessage message);

// Any message, serialized; and back. INVALID_ARGUMENT if it is malformed.
grpc::ByteBuffer MessageToBuffer(const google::protobuf::MessageLite& message);
absl::Status BufferToMessage(const grpc::ByteBuffer& buffer,
                             google::protobuf::MessageLite& message);

}  // namespace causeway
