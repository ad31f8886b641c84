#include "server/service/lane_reactor.h"

#include <grpcpp/alarm.h>

#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {
namespace {

// For a message that is on its way when the lane ends. A worker that does not take it by then is
// reset, and is not told why.
constexpr absl::Duration kLastWrite = absl::Seconds(1);

}  // namespace

class LaneReactor final
    : public SelfOwned<LaneReactor, grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>,
      public WorkerLaneStream {
 public:
  // Access and registry outlive the reactor; the context is the call's. The registry is null only
  // where the peer is an error.
  LaneReactor(Access& access, LaneRegistry* registry, grpc::CallbackServerContext* context,
              absl::StatusOr<Peer> peer)
      : access_(access), registry_(registry), context_(context), peer_(std::move(peer)) {}
  // OnCancel has returned by now. gRPC counts, which the thread sanitizer does not see.
  ~LaneReactor() override { absl::MutexLock lock(&mutex_); }

  void Start() {
    absl::Status status = peer_.status();
    if (status.ok()) status = registry_->Open(peer_->Name(), shared_from_this());
    if (!status.ok()) return End(status);
    ReadOn();
  }

  // Ends the lane if the token, certificate or name of its peer does not count any more.
  void EndIfRevoked() {
    const absl::Status status = access_.CheckStillValid(*peer_);
    if (!status.ok()) End(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok)
      return End(absl::OkStatus());  // The worker leaves, or broke: then OnCancel says so, too.
    std::shared_ptr<WorkerLanes> worker;
    LanePeer::LanePtr lane;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return;
      worker = worker_;
      lane = lane_;
    }
    if (worker == nullptr) {
      const absl::Status status = Greet();
      if (!status.ok()) return End(status);
      return ReadOn();
    }
    if (worker->Receive(lane, TakeMessage(incoming_))) ReadOn();
  }

  void OnWriteDone(bool ok) override {
    std::shared_ptr<WorkerLanes> worker;
    LanePeer::LanePtr lane;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      outgoing_.Clear();
      FinishIfIdle();
      if (ended_) return last_write_.Cancel();
      worker = worker_;
      lane = lane_;
    }
    if (!ok) return End(absl::UnavailableError("the lane broke"));
    if (worker != nullptr) worker->Written(lane);
  }

  void OnCancel() override { End(absl::CancelledError("the worker's lane broke")); }

  void Write(OutgoingMessage message) override {
    grpc::ByteBuffer buffer = LaneMessageToBuffer(std::move(message));
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    writing_ = true;
    outgoing_.Swap(&buffer);
    StartWrite(&outgoing_);
  }

  void ReadOn() override {
    absl::MutexLock lock(&mutex_);
    if (!ended_) StartRead(&incoming_);
  }

  void End(const absl::Status& status) override {
    std::shared_ptr<WorkerLanes> worker;
    LanePeer::LanePtr lane;
    bool writes = false;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return;
      ended_ = true;
      status_ = status;
      worker = std::move(worker_);
      lane = std::move(lane_);
      writes = writing_;
      FinishIfIdle();
    }
    // The status waits behind a message that is being written.
    if (writes) {
      last_write_.Set(absl::ToChronoTime(absl::Now() + kLastWrite),
                      [weak = weak_from_this()](bool expired) {
                        const std::shared_ptr<LaneReactor> self = weak.lock();
                        if (expired && self != nullptr) self->Break();
                      });
    }
    // May release the last reference but the caller's.
    if (worker != nullptr) worker->Close(lane, status);
  }

  absl::Status Admit(bool offers) override {
    std::shared_ptr<WorkerLanes> worker;
    {
      absl::MutexLock lock(&mutex_);
      worker = worker_;
    }
    if (worker == nullptr) return absl::CancelledError("the lane is over");
    return access_.CheckMessage(*peer_, offers ? Action::kPush : Action::kPull,
                                worker->worker_id());
  }

  bool greeted() override {
    absl::MutexLock lock(&mutex_);
    return worker_ != nullptr || ended_;
  }

 private:
  absl::Status Greet() {
    v1::LaneMessage message;
    RETURN_IF_ERROR(BufferToMessage(incoming_, message));
    if (!message.control().has_greeting()) {
      return absl::InvalidArgumentError("the first message of a lane must be its greeting");
    }
    const v1::Greeting& greeting = message.control().greeting();
    RETURN_IF_ERROR(access_.CheckWorker(*peer_, Action::kPull, greeting.worker_id()));
    ASSIGN_OR_RETURN(std::shared_ptr<WorkerLanes> worker, registry_->Join(greeting));
    const LanePeer::LanePtr lane = worker->Open(greeting.lane(), shared_from_this());
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ended = ended_;
      if (!ended) {
        worker_ = worker;
        lane_ = lane;
      }
    }
    if (!ended) {
      worker->Written(lane);
      return absl::OkStatus();
    }
    const absl::Status broke = absl::CancelledError("the worker's lane broke");
    worker->Close(lane, broke);
    return broke;
  }

  // Resets a lane that has ended, but still writes.
  void Break() {
    {
      absl::MutexLock lock(&mutex_);
      if (!writing_) return;
      cancelling_ = true;
    }
    context_->TryCancel();
    absl::MutexLock lock(&mutex_);
    cancelling_ = false;
    FinishIfIdle();
  }

  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_ || writing_ || cancelling_ || finished_) return;
    finished_ = true;
    Finish(ToGrpcStatus(status_));
  }

  Access& access_;
  LaneRegistry* const registry_;
  grpc::CallbackServerContext* const context_;
  const absl::StatusOr<Peer> peer_;
  // Touched by one callback at a time, until the end.
  grpc::ByteBuffer incoming_;

  absl::Mutex mutex_;
  std::shared_ptr<WorkerLanes> worker_ ABSL_GUARDED_BY(mutex_);  // Once it has greeted.
  LanePeer::LanePtr lane_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // Once ended_.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // The context is still needed.
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm last_write_;  // Set once, by End.
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExchangeService::Carry(
    grpc::CallbackServerContext* context) {
  absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kPull);
  const bool may_be_revoked = peer.ok() && peer->identity.has_value();
  const absl::StatusOr<LaneRegistry*> lanes = lanes_();
  if (peer.ok() && !lanes.ok()) peer = lanes.status();
  LaneReactor* const lane =
      LaneReactor::Make(access_, lanes.value_or(nullptr), context, std::move(peer));
  if (may_be_revoked) open_.Add(*lane);
  return lane;
}

void ExchangeService::EndRevokedStreams() {
  for (const auto& lane : open_.All()) lane->EndIfRevoked();
}

}  // namespace causeway::server
