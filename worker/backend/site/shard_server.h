// The work of a site's processes beside process 0: answers the calls of SiteBackend, and those of
// its RemotePart, with the backend that has this process's GPUs.
#ifndef CAUSEWAY_WORKER_BACKEND_SITE_SHARD_SERVER_H_
#define CAUSEWAY_WORKER_BACKEND_SITE_SHARD_SERVER_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/sharded_backend.h"
#include "worker/backend/step_tokens.h"
#include "worker/group/site_link.h"
#include "worker/sync/remote_part.h"

namespace causeway::worker {

class ShardServer {
 public:
  // The arguments outlive the server.
  ShardServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
              std::unique_ptr<ShardedBackend> backend);

  // For SiteLink::Start, on its thread: what need not wait for a step's end.
  bool HandleAtOnce(SiteCall& call);
  // On the training thread, in the order of NextCall. Errors: the link's; those of the backend are
  // answered. INVALID_ARGUMENT is answered to unknown methods.
  absl::Status Handle(SiteCall& call);

 private:
  absl::StatusOr<ByteBuffer> Do(SiteCall& call);
  absl::StatusOr<ByteBuffer> Step(const SiteCall& call);
  absl::Status MakePart();
  std::vector<float> Arena() const {
    return std::vector<float>(static_cast<size_t>(plan_.arena_size()));
  }

  SiteLink& link_;
  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  const std::unique_ptr<ShardedBackend> backend_;
  const RankRange range_;
  const PieceBytes pieces_;
  const StepTokens layout_;
  std::vector<float> first_moments_;  // Until the second ones come.
  absl::Mutex mutex_;                 // Guards which parts there are.
  std::unique_ptr<ReplicaPart> part_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PartServer> part_server_ ABSL_GUARDED_BY(mutex_);  // After the part: it uses it.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_SITE_SHARD_SERVER_H_
