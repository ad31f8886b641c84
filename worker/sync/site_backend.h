// The backend of a site with GPUs, as process 0 sees it: its own ShardedBackend and those of the
// other processes, if there are any, train together; what these have is asked for over their links.
//
// Tokens go to the others with each step, answers of the coordinator and codes at synchronization
// (worker/sync/remote_part.h), weights and moments when a checkpoint is written or read. Everything
// that a step exchanges goes from GPU to GPU, past this.
//
// Evaluation uses the GPUs of process 0.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/backend.h"
#include "worker/sync/process_link.h"
#include "worker/sync/remote_part.h"
#include "worker/sync/site_calls.h"

namespace causeway::worker {

class SiteBackend : public TrainingBackend {
 public:
  // The ranks of another process.
  struct Other {
    SiteLink* link = nullptr;
    RankRange range;
  };
  // The arguments outlive the backend. `own` has rank 0; all processes have made their backends for
  // the same ShardPlan.
  SiteBackend(const v1::RunConfig& config, const FragmentPlan& plan,
              std::unique_ptr<ShardedBackend> own, const std::vector<Other>& others);

  absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) override;
  absl::Status SetParameters(std::span<const float> parameters) override;
  absl::Status CopyParameters(std::span<float> parameters) override;
  absl::StatusOr<OptimizerState> SaveOptimizer() override;
  absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                std::span<const float> second_moments) override;
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica() override;
  std::string Describe() const override;

  int64_t sequence_length() const override { return own_->evaluation().sequence_length(); }
  int micro_batch_sequences() const override { return own_->evaluation().micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override {
    return own_->evaluation().Loss(inputs, targets, document_starts);
  }

 private:
  struct Process {
    SiteLink* link;
    RankRange range;
    PieceBytes pieces;
  };

  // Sends a call to each, does `own` meanwhile, and waits for all answers; `take` gets them in
  // order. The first error.
  using Bytes = std::function<ByteBuffer(const Process&)>;
  using Take = std::function<absl::Status(const Process&, const ByteBuffer&)>;
  absl::Status OnAll(int method, int64_t argument, const Bytes& bytes,
                     const std::function<absl::Status()>& own, const Take& take);

  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  const std::unique_ptr<ShardedBackend> own_;
  std::vector<Process> others_;
  StepTokens tokens_;
};

// A process's word on its part in a step.
struct StepShare {
  double loss = 0;
  int64_t tokens = 0;
};

// The work of a site's processes beside process 0: answers the calls of SiteBackend, and those of
// its RemotePart, with the backend that has this process's GPUs.

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
  absl::Status MakeParts();
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
  std::vector<std::unique_ptr<ReplicaPart>> parts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PartServer> part_server_
      ABSL_GUARDED_BY(mutex_);  // After the parts: it uses them.
};

}  // namespace causeway::worker
