// The inner optimizer (worker/backend/cpu/optimizer.h) on one GPU of a site: it keeps master
// weights and moments of the GPU's own pieces (ShardPlan), in fp32, and writes their bf16 weights.
//
// The norm is that of the whole gradient, over all GPUs, and is never seen by the host before the
// update: one that is not finite makes the update change nothing.
//
// Muon's matrices are whole when they are orthogonalized, some of one shape at a time, a **wave**:
// the GPUs gather the momenta of its pieces, each orthogonalizes its share of the matrices and
// sends them to all, which update what they own. Beside the products of a wave, on a stream of its
// own, the momenta of the next one are gathered and the matrices of the last one sent. Nothing is
// kept of a wave but what the own pieces became, so that it takes three waves of memory, however
// large the model. Second moments are AdamW's alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/adamw.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/step_probe.h"
#include "worker/sync/local_group.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker::cuda {

// Muon's orthogonalization (worker/backend/cpu/optimizer.h) of many equally shaped matrices at
// once, as batches of bf16 products.

// `count` matrices of one shape.
struct MatrixBatch {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t count = 0;
};

// Used by one thread.
class NewtonSchulz {
 public:
  // Allocates for the batches that Orthogonalize will be called with.
  static absl::StatusOr<NewtonSchulz> Create(const std::vector<MatrixBatch>& batches,
                                             DeviceMemory* memory, Gemm* gemm);

  // Enqueues: replaces each of the matrices [count, rows, cols], X = U S V^T, by about U V^T.
  absl::Status Orthogonalize(const MatrixBatch& batch, __nv_bfloat16* matrices,
                             cudaStream_t stream) const;

 private:
  explicit NewtonSchulz(Gemm* gemm) : gemm_(gemm) {}
  absl::Status Iterate(const MatrixBatch& batch, const __nv_bfloat16* from, __nv_bfloat16* to,
                       cudaStream_t stream) const;

  Gemm* gemm_;
  __nv_bfloat16* next_ = nullptr;        // The matrices after an iteration.
  __nv_bfloat16* gram_ = nullptr;        // A = X X^T, or X^T X of tall ones.
  __nv_bfloat16* polynomial_ = nullptr;  // b A + c A^2
  double* scratch_ = nullptr;
};

// The arrays of one GPU. `master` has the rank's own pieces (ShardPiece::offset), and so have the
// gradients where they are divided; the others are in arena order.
struct DeviceArrays {
  float* master = nullptr;
  float* gradients = nullptr;
  bool gradients_are_own = false;
  __nv_bfloat16* weights = nullptr;
};

// A run of values that lie together in the arena and in an array of a rank's own.
struct StateRange {
  int64_t begin = 0;   // In the arena.
  int64_t offset = 0;  // In the array.
  int64_t size = 0;
};
// Appends a range, or makes the last one longer by it.
void AppendStateRange(const StateRange& range, std::vector<StateRange>* ranges);

// The values of matrices of Muon's that a rank orthogonalizes at a time, unless a matrix has more:
// enough to keep a GPU busy.
inline constexpr int64_t kMuonRankValues = int64_t{1} << 24;

// Used by one thread.
class DeviceOptimizer {
 public:
  // The arguments outlive the optimizer; `group` is null with one GPU, `probe` unless a step is to
  // be measured. `train` is complete.
  // `exchange` is where the group's operations run beside the stream of the other calls.
  static absl::StatusOr<std::unique_ptr<DeviceOptimizer>> Create(
      const FragmentPlan& plan, const v1::TrainConfig& train, const ShardPlan& shards, int rank,
      LocalGroup* group, const DeviceArrays& arrays, int64_t muon_rank_values, DeviceMemory* memory,
      Gemm* gemm, StepProbe* probe, cudaStream_t stream, cudaStream_t exchange);

  // Enqueues Muon's products once, on random values: when their way of computing is measured.
  absl::Status Rehearse(cudaStream_t stream);

  // Enqueues the norm: the own pieces of the gradients are the whole step's by then.
  absl::Status ComputeNorm(cudaStream_t stream);
  // Enqueues the update of what ComputeNorm found finite. `step` as InnerOptimizer's, `update`
  // counts from 1. Not again before the stream has come to its end.
  absl::Status Update(int64_t step, int64_t update, cudaStream_t stream);

  // On the device; what ComputeNorm wrote.
  const GradientNorm* norm() const { return norm_; }
  double LearningRate(int64_t step) const;

  // Own pieces, as `master`.
  float* first_moments() const { return m_; }
  // The part of the own pieces that AdamW updates, in order of their places in the arena.
  float* second_moments() const { return v_; }
  const std::vector<StateRange>& second_moment_ranges() const { return second_ranges_; }

 private:
  // The constants of a step, copied to the device at its update.
  struct Constants {
    AdamWStep<float> adamw{0, 0, 0, 0, 1};
    MuonConstants muon;
  };
  // Muon's matrices of one shape.
  struct Group {
    int64_t rows = 0;
    int64_t cols = 0;
    std::vector<int64_t> offsets;  // In the arena.
  };
  // A run of a wave's updates that one rank computes.
  struct Segment {
    int64_t begin = 0;
    int64_t size = 0;
    int rank = 0;
  };
  // Matrices of one shape side by side.
  struct Wave {
    std::string name;  // As a probe has it.
    MatrixBatch batch;
    int64_t first_slice = 0;  // Own pieces: muon_slices_ [first_slice, last_slice).
    int64_t last_slice = 0;
    std::vector<Segment> momenta;         // By the rank whose piece it is.
    std::vector<Segment> orthogonalized;  // By the rank that does it.
    int64_t values() const { return batch.rows * batch.cols * batch.count; }
  };
  // The memory of a wave. The training stream waits for what the exchange stream has done with it,
  // and the other way round.
  struct Buffer {
    __nv_bfloat16* updates = nullptr;
    Event momenta_ready, gathered, orthogonalized, sent;
  };

  DeviceOptimizer(const v1::TrainConfig& train, const ShardPlan& shards, int rank,
                  LocalGroup* group, const DeviceArrays& arrays, StepProbe* probe,
                  cudaStream_t exchange)
      : train_(train),
        shards_(shards),
        rank_(rank),
        group_(group),
        arrays_(arrays),
        probe_(probe),
        exchange_(exchange) {}
  void Lay(const FragmentPlan& plan, int64_t muon_rank_values);
  void LayAdamW(const PlacedTensor& tensor);
  // `offsets` of matrices of the group, as many as a wave has at most.
  void LayWave(const Group& group, std::span<const int64_t> offsets);
  absl::Status Allocate(DeviceMemory& memory, Gemm* gemm, cudaStream_t stream);
  absl::Status AllocateMuon(DeviceMemory& memory, Gemm* gemm);
  // The matrices of a wave that a rank orthogonalizes: [first, last).
  std::pair<int64_t, int64_t> Share(const Wave& wave, int rank) const;
  Buffer& BufferOf(size_t wave) { return buffers_[wave % buffers_.size()]; }

  absl::Status UpdateMuon(cudaStream_t stream);
  // The three parts of a wave, which are enqueued in this order.
  absl::Status GatherMomenta(size_t wave, cudaStream_t stream);
  absl::Status Orthogonalize(size_t wave, cudaStream_t stream);
  absl::Status UpdatePieces(size_t wave, cudaStream_t stream);
  // The rank's share of the matrices in a buffer.
  absl::Status OrthogonalizeShare(const Wave& wave, __nv_bfloat16* updates, cudaStream_t stream);
  // On the exchange stream, after `before`, which the training stream records now; `after` is
  // recorded when it is done.
  absl::Status Send(const std::vector<Segment>& segments, const Buffer& buffer, const Event& before,
                    const Event& after, cudaStream_t stream);
  MuonArguments ArgumentsOf(const Wave& wave) const;
  // Values of the own pieces that a wave has.
  int64_t OwnValues(const Wave& wave) const;
  // Where in the gradients that value is which has these places in the arena and in `master`.
  int64_t GradientOf(int64_t in_arena, int64_t own) const {
    return arrays_.gradients_are_own ? own : in_arena;
  }

  const v1::TrainConfig train_;
  const ShardPlan& shards_;
  const int rank_;
  LocalGroup* const group_;
  const DeviceArrays arrays_;
  StepProbe* const probe_;
  const cudaStream_t exchange_;

  std::vector<OptimizerSlice> adamw_slices_;
  std::vector<OptimizerSlice> muon_slices_;
  std::vector<StateRange> second_ranges_;
  std::vector<Wave> waves_;
  std::vector<StateRange> norm_ranges_;  // The own pieces.

  OptimizerSlice* device_adamw_slices_ = nullptr;
  OptimizerSlice* device_muon_slices_ = nullptr;
  Constants* constants_ = nullptr;  // On the device.
  PinnedBuffer<Constants> host_constants_;
  float* m_ = nullptr;
  float* v_ = nullptr;
  std::vector<Buffer> buffers_;
  std::optional<NewtonSchulz> newton_schulz_;
  double* sums_ = nullptr;  // [ranks]
  double* norm_scratch_ = nullptr;
  GradientNorm* norm_ = nullptr;
};

}  // namespace causeway::worker::cuda
