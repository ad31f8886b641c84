#include "common/rpc/lane_dialer.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"

namespace causeway {
namespace {

constexpr char kCarryMethod[] = "/causeway.v1.Exchange/Carry";

}  // namespace

class LaneDialer::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                 public LaneStream,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<LanePeer> peer, int number, std::shared_ptr<grpc::Channel> channel)
      : peer_(std::move(peer)), number_(number), channel_(std::move(channel)), stub_(channel_) {}

  int number() const { return number_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  void Start() {
    stub_.PrepareBidiStreamingCall(&context_, kCarryMethod, {}, this);
    AddHold();  // Writes and reads are started by whoever has something to do.
    const LanePeer::LanePtr lane = peer_->Open(number_, shared_from_this());
    {
      absl::MutexLock lock(&mutex_);
      lane_ = lane;
      StartRead(&incoming_);
    }
    StartCall();
    peer_->Written(lane);
  }

  void Write(OutgoingMessage message) override {
    grpc::ByteBuffer buffer = LaneMessageToBuffer(std::move(message));
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    outgoing_.Swap(&buffer);
    StartWrite(&outgoing_);
  }
  void ReadOn() override {
    absl::MutexLock lock(&mutex_);
    if (!ended_) StartRead(&incoming_);
  }
  void End(const absl::Status& status) override {
    {
      absl::MutexLock lock(&mutex_);
      if (why_.ok()) why_ = status;
      if (!LetGo()) return;
    }
    context_.TryCancel();
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    const LanePeer::LanePtr lane = Lane();
    // gRPC 1.51 gives an empty message for what is none, such as a proxy's page: the end says why.
    const bool is_none = ok && incoming_.Length() == 0;
    if (is_none) context_.TryCancel();
    if (!ok || is_none || lane == nullptr) {
      bool releases = false;
      {
        absl::MutexLock lock(&mutex_);
        releases = LetGo();
      }
      if (releases) RemoveHold();
      return;
    }
    if (peer_->Receive(lane, TakeMessage(incoming_))) ReadOn();
  }
  void OnWriteDone(bool ok) override {
    const LanePeer::LanePtr lane = Lane();
    if (ok && lane != nullptr) peer_->Written(lane);  // Else the read says why.
  }
  void OnDone(const grpc::Status& end) override {
    absl::Status why = FromGrpcStatus(end);
    LanePeer::LanePtr lane;
    {
      absl::MutexLock lock(&mutex_);
      if (!why_.ok()) why = why_;  // This side ended it.
      lane = std::move(lane_);
    }
    if (why.ok()) why = absl::UnavailableError("the coordinator ended the lane");
    peer_->Close(lane, why);
    // The lane holds this stream, whose context holds the channel. The last to let go of a channel
    // waits for gRPC's threads, so it must not be one of them.
    lane.reset();
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

  bool done() {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  void AwaitDone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

 private:
  LanePeer::LanePtr Lane() {
    absl::MutexLock lock(&mutex_);
    return ended_ ? nullptr : lane_;
  }
  // No operation may be started any more. True for the one who is to remove the hold.
  bool LetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !std::exchange(ended_, true); }

  const std::shared_ptr<LanePeer> peer_;
  const int number_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  absl::Mutex mutex_;
  LanePeer::LanePtr lane_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);  // It was ended on this side.
};

LaneDialer::~LaneDialer() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(streams_);
  }
  for (const auto& stream : streams) stream->AwaitDone();
}

void LaneDialer::Dial(int lane, const std::shared_ptr<LanePeer>& peer) {
  const auto stream = std::make_shared<Stream>(peer, lane, channel_of_(lane));
  // Outlive the lock.
  std::vector<std::shared_ptr<Stream>> done;
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(streams_, [&done](const std::shared_ptr<Stream>& one) {
      if (!one->done()) return false;
      done.push_back(one);
      return true;
    });
    streams_.push_back(stream);
  }
  stream->Start();
}

void LaneDialer::EndOutdated() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  for (const auto& stream : streams) {
    if (stream->done() || stream->channel() == channel_of_(stream->number())) continue;
    stream->End(Renewal());
  }
}

}  // namespace causeway
