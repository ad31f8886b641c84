// A site of several processes on CPUs: every process computes the gradient of its share of a step's
// micro-batches, process 0 does everything else.
//
//   process 0   parameters and tokens -->  own share, then + theirs in order of the processes ->
//   update process i                              share i  --> losses and gradient
//
// The others keep nothing from step to step: what is in a checkpoint is process 0's, and continues
// with any number of processes. Per step, 4 bytes per parameter go to each of them and come back.
//
// The result has the same bits with the same number of processes, whatever their threads: losses
// are added up by micro-batch, which is one process's order, gradients by process, which is not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/sync/process_link.h"
#include "worker/sync/site_calls.h"

namespace causeway::worker {

// Process 0's: the processes behind `links`, of which the first is process 1.
class RemoteHelpers : public StepHelpers {
 public:
  // All that is referred to outlives the helpers.
  RemoteHelpers(const v1::RunConfig& config, const FragmentPlan& plan, ThreadPool* pool,
                std::vector<SiteLink*> links);

  int count() const override { return static_cast<int>(links_.size()); }
  absl::Status Begin(std::span<const float> parameters, const StepTokens& tokens) override;
  absl::Status Finish(std::span<float> gradients, std::span<TokenLoss> losses) override;

 private:
  const int64_t micro_batches_;
  const size_t arena_;
  ThreadPool* const pool_;
  const std::vector<SiteLink*> links_;
  std::vector<uint64_t> calls_;  // Calls of the step under way.
};

// Another process's: answers process 0's calls. One thread.
class StepServer {
 public:
  // All that is referred to outlives the server. `range` is this process's.
  StepServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
             ThreadPool* pool, const RankRange& range);

  // False if the call is not one of its own. Errors: the link's; others are answered.
  absl::StatusOr<bool> Handle(SiteCall& call);

 private:
  // Fills `answer_`.
  absl::Status Compute(std::span<const uint8_t> share);

  SiteLink& link_;
  const v1::RunConfig& config_;
  const RankRange range_;
  const size_t arena_;
  const StepTokens layout_;
  CpuTransformer<float> model_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::vector<int32_t> document_starts_;
  ByteBuffer parameters_;
  ByteBuffer answer_;  // Losses, then the gradient.
};

}  // namespace causeway::worker
