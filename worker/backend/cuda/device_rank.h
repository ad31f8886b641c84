// One GPU's part in a training step: its model, its share of the optimizer, and what it exchanges
// with the other GPUs of the site.
//
// The device's memory, in arena order: bf16 weights and fp32 gradients of the whole model, fp32
// master weights and moments of the rank's own pieces (ZeRO-1). Where gradients are divided, too,
// it has those of the own pieces and of some layers at a time (staged_gradients.h, ZeRO-2). A step
// is enqueued without waiting:
//
//   training stream   micro-steps | norm | update of the own pieces
//   exchange stream   sums of gradient buckets beside the last backward pass, or of layers beside
//                     every one; bf16 weights of all ranks beside the next forward pass
//
// Micro-steps are two recorded graphs, the first of a step and all others; where the exchange
// stream takes part (the first and the last micro-step of several GPUs, and every one where
// gradients are divided) they are issued one by one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/cuda_evaluation.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/device_optimizer.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/staged_gradients.h"
#include "worker/backend/cuda/step_probe.h"
#include "worker/sync/backend.h"
#include "worker/sync/local_group.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker::cuda {

// The thread that serves one GPU.

// Runs tasks in the order in which they are posted. After one that fails, those that follow are
// dropped until Wait has returned its error. Post and Wait are called by one thread.
class DeviceThread {
 public:
  using Task = std::function<absl::Status()>;

  // `failed` is called on this thread with every error, at once. Destroyed, it runs what was posted
  // to its end.
  explicit DeviceThread(std::function<void(const absl::Status&)> failed)
      : failed_(std::move(failed)), queue_(1) {}
  // RESOURCE_EXHAUSTED if there is no thread: nothing is run then.
  const absl::Status& started() const { return queue_.started(); }

  void Post(Task task);
  // Until all tasks are done: the first error since the last Wait.
  absl::Status Wait();

 private:
  const std::function<void(const absl::Status&)> failed_;
  absl::Status status_;  // The queue's thread has it.
  WorkQueue queue_;      // Last: it uses the above.
};

// Made and used by one thread, whose device is the rank's; what is said to be the host's may be
// called by another one while that thread is idle.
class DeviceRank {
 public:
  // All that is pointed at outlives the rank.
  struct Options {
    const v1::RunConfig* config = nullptr;
    const FragmentPlan* plan = nullptr;
    const ShardPlan* shards = nullptr;
    LocalGroup* group = nullptr;  // Null with one GPU.
    DeviceInfo device;
    int rank = 0;
    Recompute recompute = Recompute::kNone;
    bool graphs = true;
    bool shard_gradients = false;  // With several GPUs.
    MakeGemm make_gemm;
    MakeAttention make_attention;  // Null: own kernels.
    int64_t muon_rank_values = 0;  // kMuonRankValues.
    StepProbe* probe = nullptr;    // Null: none.
  };
  struct Result {
    StepLoss loss;
    GradientNorm norm;  // Unspecified for a step without update.
  };

  // Allocates everything, runs each kind of micro-step once and records the graphs.
  static absl::StatusOr<std::unique_ptr<DeviceRank>> Create(const Options& options);
  ~DeviceRank();
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  // The host's: where micro-step `slot` of this rank is to be read to, 0 .. slots() - 1.
  MicroBatch HostTokens(int slot);
  int slots() const { return slots_; }

  // The own pieces, from or to an array in arena order. These wait.
  absl::Status SetMaster(std::span<const float> arena);
  absl::Status SetMoments(std::span<const float> first, std::span<const float> second);
  absl::Status CopyMaster(std::span<float> arena);
  absl::Status CopyMoments(std::span<float> first, std::span<float> second);

  // A step: Begin, MicroStep for each slot, Finish, Wait. All but Wait only enqueue.
  // `refresh_all`: the bf16 weights are made anew of the master weights; otherwise those of other
  // ranks in the fragments named.
  absl::Status Begin(bool refresh_all, const std::vector<int>& refresh_fragments);
  absl::Status MicroStep(int slot);
  // With an optimizer: norm and update; `update` counts from 1.
  absl::Status Finish(int64_t step, int64_t update);
  absl::StatusOr<Result> Wait();

  // Evaluation: the bf16 weights become those of `parameters`, until Begin refreshes all. Waits.
  absl::Status UseParameters(std::span<const float> parameters);
  DeviceEvaluator& evaluator() { return evaluator_; }

  // For synchronization, all of the device's.
  const DeviceArrays& arrays() const { return arrays_; }
  cudaStream_t training_stream() const { return stream_.get(); }
  // The next update waits for it; recorded by others.
  cudaEvent_t snapshots_done() const { return snapshots_done_.get(); }
  int device() const { return options_.device.index; }
  size_t memory_bytes() const { return memory_.bytes(); }
  std::string attention() const {
    return attention_ == nullptr ? kOwnAttention : attention_->name();
  }
  double LearningRate(int64_t step) const { return optimizer_->LearningRate(step); }

 private:
  explicit DeviceRank(const Options& options);
  absl::Status Allocate();
  absl::Status AllocateGradients();
  absl::Status ListGaps();
  absl::Status Rehearse();
  // This rank's first micro-step overwrites, and the others add.
  CudaTransformer::Pass PassOf(bool first) const;
  absl::Status CopyTokens(int slot);
  // Between the device and an array in arena order. These wait.
  absl::Status FillPieces(const std::vector<StateRange>& ranges, float* own,
                          std::span<const float> from);
  absl::Status CopyPieces(const std::vector<StateRange>& ranges, const float* own,
                          std::span<float> to);
  absl::Status SumBuckets(int stage);
  // call(where it begins, its bounds from there) for those buckets, as one batch of the group's.
  template <typename Which, typename Call>
  absl::Status InABatch(const Which& which, const Call& call);
  absl::Status GatherWeights(const std::function<bool(const ShardBucket&)>& which);
  absl::Status WaitForExchange();
  bool alone() const { return options_.group == nullptr; }
  bool has_optimizer() const { return optimizer_ != nullptr; }

  const Options options_;
  const int slots_;
  const int64_t micro_tokens_;  // Tokens per micro-batch.
  const bool document_masking_;
  int64_t slot_values_ = 0;         // Size of one slot: inputs, targets, order, documents.
  std::vector<StateRange> ranges_;  // The own pieces.
  TokenOrder token_order_;

  // Memory before what uses it, so that it is freed last.
  DeviceMemory memory_;
  Stream stream_;
  Stream exchange_;
  Event snapshots_done_, gradients_ready_, exchanged_;
  std::vector<Event> weights_gathered_;  // By stage.
  PinnedBuffer<int32_t> host_tokens_;
  PinnedBuffer<Result> host_result_;
  DeviceArrays arrays_;
  DeviceTokens tokens_;
  StepLoss* loss_ = nullptr;
  std::unique_ptr<StagedGradients> staged_gradients_;  // Null: whole ones, arrays_.gradients.
  // Ranges of several GPUs with whole gradients: between tensors, where sums over the GPUs may
  // leave anything.
  ClearedRange* gaps_ = nullptr;
  int64_t gap_count_ = 0;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<AttentionProvider> attention_;  // Null: own kernels.
  std::unique_ptr<CudaTransformer> transformer_;
  DeviceEvaluator evaluator_;
  std::unique_ptr<DeviceOptimizer> optimizer_;  // Null: gradients are what is synchronized.
  Graph first_micro_step_, next_micro_step_;
};

}  // namespace causeway::worker::cuda
