// Training on the GPUs of one machine, or of this process where a site has several: a thread and a
// DeviceRank for each. A step's micro-batches are dealt out in turn; gradients are summed, the
// update is divided, and its weights gathered (device_rank.h). docs/gpu.md walks through a step.
//
// Everything is enqueued while the GPUs work, and the host waits once, at the end of a step. An
// error of one GPU ends what the others do for it, and is returned by this call and by all that
// follow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/device_rank.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/device_part.h"
#include "worker/sync/backend.h"
#include "worker/sync/local_group.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker::cuda {

class CudaBackend final : public ShardedBackend, public EvaluationModel {
 public:
  // One per device, in their order.
  using Groups = std::vector<std::unique_ptr<LocalGroup>>;

  struct Options {
    std::vector<DeviceInfo> devices;  // At least one.
    MakeGemm make_gemm;
    // The ranks of the site, of which the devices are those from `first_rank` on; 0: as many as
    // there are devices.
    int ranks = 0;
    int first_rank = 0;
    // Called where there are several ranks, for those of the devices.
    std::function<absl::StatusOr<Groups>(const std::vector<DeviceInfo>&)> make_groups;
    MakeAttention make_attention;  // Null: own kernels.
    // Called instead where what make_attention made leaves too little memory. Null: nothing is.
    MakeAttention make_sparing_attention;
    std::optional<Recompute> recompute;  // None: as little as the memory allows.
    bool graphs = true;
    bool shard_gradients = false;     // Each of several GPUs keeps its share (staged_gradients.h).
    bool published_on_device = true;  // The published copy: or in host memory.
    int64_t least_bucket = int64_t{1} << 20;  // As ShardPlan's.
    int64_t muon_rank_values = kMuonRankValues;
    StepProbe* probe = nullptr;  // With one device: outlives the backend.
  };

  // `config` must be complete and `plan` be made from it; both outlive the backend.
  // INVALID_ARGUMENT for a model or a batch that these devices do not take, RESOURCE_EXHAUSTED,
  // with what needs how much and what lowers it, if it does not fit them.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const v1::RunConfig& config,
                                                             const FragmentPlan& plan,
                                                             const Options& options);
  ~CudaBackend() override;

  absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) override;
  absl::Status SetParameters(std::span<const float> parameters) override;
  absl::Status CopyParameters(std::span<float> parameters) override;
  absl::StatusOr<OptimizerState> SaveOptimizer() override;
  absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                std::span<const float> second_moments) override;
  std::string Describe() const override;
  const ShardPlan& shards() const override { return shards_; }
  RankRange range() const override {
    return {options_.first_rank, static_cast<int>(options_.devices.size())};
  }
  absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> MakeParts() override;
  void RefreshWeights() override { weights_stale_ = true; }

  EvaluationModel& evaluation() override { return *this; }
  int64_t sequence_length() const override { return config_.model().sequence_length(); }
  int micro_batch_sequences() const override { return config_.train().micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override;

  // The level of recomputation in backward passes.
  Recompute recompute() const { return recompute_; }
  // Who computes attention (AttentionProvider::name).
  std::string attention() const { return ranks_.front()->attention(); }
  // Bytes allocated on the device that has the most.
  size_t memory_bytes() const;

 private:
  CudaBackend(const v1::RunConfig& config, const FragmentPlan& plan, const Options& options);
  absl::Status Build();
  // Bytes that a GPU's rank leaves free where recomputation is chosen here: synchronization
  // allocates them later.
  int64_t LaterBytes(size_t device) const;
  std::vector<DeviceShard> Shards() const;
  int RankOf(size_t device) const { return options_.first_rank + static_cast<int>(device); }
  // The first level that fits, of those that may be.
  absl::Status BuildLevels();
  absl::Status BuildRanks(Recompute recompute, const MakeAttention& make_attention);
  // The same on all threads; the first error of any, which is final.
  absl::Status OnAll(const std::function<absl::Status(DeviceRank&)>& task);
  absl::Status OnFirst(const std::function<absl::Status(DeviceRank&)>& task);
  // Waits for all threads. The error of the one that failed by itself.
  absl::Status FirstError();
  // The same; from then on the backend is broken.
  absl::Status WaitForAll();

  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  const Options options_;
  const ShardPlan shards_;
  const bool has_optimizer_;
  Recompute recompute_ = Recompute::kNone;
  Groups groups_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;  // Made and destroyed by their threads.
  std::vector<std::unique_ptr<DeviceThread>> threads_;
  int64_t updates_ = 0;
  bool weights_stale_ = true;          // The bf16 weights are not those of the master weights.
  std::vector<int> merged_fragments_;  // Since the last step.
  bool built_ = false;
  absl::Status broken_;
};

}  // namespace causeway::worker::cuda
