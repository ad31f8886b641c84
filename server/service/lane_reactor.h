// One Exchange.Carry at the coordinator: a lane's stream over gRPC.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/rpc/self_owned.h"
#include "server/access/access.h"
#include "server/transfer/lane_registry.h"
#include "server/transfer/worker_lanes.h"

namespace causeway::server {

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

  void Start();
  // Ends the lane if the token, certificate or name of its peer does not count any more.
  void EndIfRevoked();
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("the worker's lane broke")); }

  void Write(OutgoingMessage message) override;
  void ReadOn() override;
  void End(const absl::Status& status) override;
  absl::Status Admit(bool offers) override;
  bool greeted() override;

 private:
  absl::Status Greet();
  // Resets a lane that has ended, but still writes.
  void Break();
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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

// Exchange of exchange.proto over gRPC: knows nothing of a lane but how it begins, and how it ends
// when its peer's credentials do.

class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service> {
 public:
  // The lanes of the run, or why there are none.
  using FindLanes = std::function<absl::StatusOr<LaneRegistry*>()>;
  // Access and lanes outlive the service.
  ExchangeService(Access& access, FindLanes lanes) : access_(access), lanes_(std::move(lanes)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
      grpc::CallbackServerContext* context) override;

  // Ends the lanes of peers whose token, certificate or name does not count any more.
  void EndRevokedStreams();

 private:
  Access& access_;
  const FindLanes lanes_;
  OpenReactors<LaneReactor> open_;  // Of peers with an identity.
};

}  // namespace causeway::server
