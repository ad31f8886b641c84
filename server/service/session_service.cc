#include "server/service/session_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"
#include "common/rpc/wire.h"
#include "server/service/self_owned.h"

namespace causeway::server {
namespace {

// A worker that does not read falls behind by round outcomes; this many are hours of them.
constexpr size_t kMaxQueuedMessages = 10'000;

class SessionReactor final
    : public SelfOwned<SessionReactor,
                       grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>>,
      public SessionSink {
 public:
  explicit SessionReactor(Coordinator& coordinator) : coordinator_(coordinator) {}

  void Start() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (incarnation_ != 0 && !left_) coordinator_.Disconnected(worker_id_, incarnation_);
      Close(absl::OkStatus());
      return;
    }
    const absl::Status status = incarnation_ == 0 ? Join() : HandleMessage();
    if (!status.ok()) {
      if (incarnation_ != 0) coordinator_.Disconnected(worker_id_, incarnation_);
      Close(status);
      return;
    }
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      if (!end_.has_value()) end_ = absl::UnavailableError("the stream broke");
    }
    Continue();
  }

  void OnCancel() override { Close(absl::CancelledError("the worker's stream broke")); }

  void Send(const v1::CoordinatorMessage& message) override {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    outgoing_.push_back(message);
    if (outgoing_.size() > kMaxQueuedMessages) {
      end_ = absl::ResourceExhaustedError("the worker does not read its session");
      outgoing_.resize(writing_ ? 1 : 0);
    }
    Continue();
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
    Continue();
  }

 private:
  absl::Status Join() {
    if (!incoming_.has_join()) {
      return absl::InvalidArgumentError("the first message of a session must be a Join");
    }
    absl::StatusOr<v1::Welcome> welcome = coordinator_.Join(incoming_.join(), shared_from_this());
    if (!welcome.ok()) return welcome.status();
    worker_id_ = incoming_.join().worker_id();
    incarnation_ = welcome->incarnation();
    v1::CoordinatorMessage message;
    *message.mutable_welcome() = *std::move(welcome);
    absl::MutexLock lock(&mutex_);
    // Since Join returned, other threads may have queued messages; Welcome precedes them.
    outgoing_.push_front(std::move(message));
    welcomed_ = true;
    Continue();
    return absl::OkStatus();
  }

  absl::Status HandleMessage() {
    const absl::Status status = coordinator_.Handle(worker_id_, incarnation_, incoming_);
    left_ |= status.ok() && incoming_.has_leave();
    return status;
  }

  // Starts the next write, or finishes once nothing is left to write.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (welcomed_ && !outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
      return;
    }
    if (!end_.has_value()) return;
    finished_ = true;
    Finish(ToGrpcStatus(*end_));
  }

  Coordinator& coordinator_;
  // Touched by the read callbacks alone, which never overlap.
  v1::WorkerMessage incoming_;
  std::string worker_id_;
  uint64_t incarnation_ = 0;  // 0: not joined yet.
  bool left_ = false;

  absl::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // outgoing_.front() is being written.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerUnaryReactor* SessionService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeRequest* request,
                                                   v1::DescribeResponse* response) {
  absl::Status status;
  if (request->wire_version() != kWireVersion) {
    status = absl::FailedPreconditionError(
        absl::StrCat("wire_version differs: the worker has ", request->wire_version(),
                     ", the coordinator ", kWireVersion, "; install the coordinator's release (",
                     kSoftwareVersion, ") on the worker"));
  } else {
    *response = coordinator_.Describe();
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* SessionService::Attach(
    grpc::CallbackServerContext*) {
  return SessionReactor::Make(coordinator_);
}

}  // namespace causeway::server
