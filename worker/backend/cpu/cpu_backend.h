// Training on CPU cores: CpuTransformer and InnerOptimizer around arenas in ordinary memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/cpu/optimizer.h"
#include "worker/sync/backend.h"

namespace causeway::worker {

// A model on CPU cores whose losses can be asked for.

class CpuEvaluationModel final : public EvaluationModel {
 public:
  // `transformer` outlives this and is used by its calls alone.
  explicit CpuEvaluationModel(CpuTransformer<float>* transformer) : transformer_(*transformer) {}

  int64_t sequence_length() const override { return transformer_.sequence_length(); }
  int micro_batch_sequences() const override { return transformer_.micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override;

 private:
  CpuTransformer<float>& transformer_;
  std::span<const float> parameters_;
};

// Shares its work with the pool, from the calling thread.
class CpuBackend final : public TrainingBackend {
 public:
  // `config` must be complete and `plan` be made from it; both, and the pool, outlive the backend.
  CpuBackend(const v1::RunConfig& config, const FragmentPlan& plan, ThreadPool* pool);

  absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) override;
  absl::Status SetParameters(std::span<const float> parameters) override;
  absl::Status CopyParameters(std::span<float> parameters) override;
  absl::StatusOr<OptimizerState> SaveOptimizer() override;
  absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                std::span<const float> second_moments) override;
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica() override;
  std::string Describe() const override;
  // Where the time of all steps went.
  const KernelSeconds& kernel_seconds() { return model_.kernel_seconds(); }

  int64_t sequence_length() const override { return evaluation_.sequence_length(); }
  int micro_batch_sequences() const override { return evaluation_.micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override {
    return evaluation_.UseParameters(parameters);
  }
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override {
    return evaluation_.Loss(inputs, targets, document_starts);
  }

 private:
  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  ThreadPool* const pool_;
  CpuTransformer<float> model_;
  CpuEvaluationModel evaluation_;
  std::unique_ptr<InnerOptimizer<float>> optimizer_;  // Null: gradients are sent.
  AlignedVector<float> parameters_, gradients_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::vector<int32_t> document_starts_;  // Empty without train.document_masking.
};

}  // namespace causeway::worker
