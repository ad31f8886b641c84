// One Exchange.Pull: waits, without a thread, until its object is there, and sends it in chunks.
#ifndef CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_
#define CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "server/core/coordinator.h"
#include "server/service/self_owned.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class PullReactor final
    : public SelfOwned<PullReactor, grpc::ServerWriteReactor<v1::PullResponse>> {
 public:
  // Both outlive the reactor.
  PullReactor(Coordinator& coordinator, WorkQueue& work, const v1::PullRequest& request)
      : coordinator_(coordinator), work_(work), request_(request) {}

  void Start();
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  absl::Status CheckRequest() const;
  // The object is there, or never comes. Called once, from any thread.
  void Begin(const absl::StatusOr<std::shared_ptr<const PullObject>>& object);
  absl::Status CheckObject(const PullObject& object) const;
  void WriteNextChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  WorkQueue& work_;
  const v1::PullRequest request_;

  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const PullObject> object_ ABSL_GUARDED_BY(mutex_);  // Null until Begin.
  int64_t offset_ ABSL_GUARDED_BY(mutex_) = 0;                        // Of the next chunk.
  v1::PullResponse response_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_
