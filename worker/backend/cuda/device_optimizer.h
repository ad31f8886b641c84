// The inner optimizer (worker/train/optimizer.h) on one GPU of a site: it keeps master weights and
// moments of the GPU's own pieces (ShardPlan), in fp32, and writes their bf16 weights.
//
// The norm is that of the whole gradient, over all GPUs, and is never seen by the host before the
// update: one that is not finite makes the update change nothing. Muon's matrices are whole when
// they are orthogonalized: the GPUs gather the momenta of all pieces, each orthogonalizes its share
// of the matrices and sends them to all.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_OPTIMIZER_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_OPTIMIZER_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/optim/adamw.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/adamw.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/gradient_norm.h"
#include "worker/backend/cuda/muon.h"
#include "worker/backend/cuda/newton_schulz.h"
#include "worker/group/local_group.h"
#include "worker/group/shard_plan.h"

namespace causeway::worker::cuda {

// The arrays of one GPU. `master` has the rank's own pieces (ShardPiece::offset), the others are in
// arena order.
struct DeviceArrays {
  float* master = nullptr;
  float* gradients = nullptr;
  __nv_bfloat16* weights = nullptr;
};

// Used by one thread.
class DeviceOptimizer {
 public:
  // What is pointed at and referred to outlives the optimizer; `group` is null with one GPU.
  // `train` is complete.
  static absl::StatusOr<std::unique_ptr<DeviceOptimizer>> Create(
      const FragmentPlan& plan, const v1::TrainConfig& train, const ShardPlan& shards, int rank,
      LocalGroup* group, const DeviceArrays& arrays, DeviceMemory* memory, Gemm* gemm,
      cudaStream_t stream);

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
  float* second_moments() const { return v_; }

 private:
  // The constants of a step, copied to the device at its update.
  struct Constants {
    AdamWStep<float> adamw{0, 0, 0, 0, 1};
    MuonConstants muon;
  };
  // Muon's matrices of one shape: packed side by side in updates_ from `first` on.
  struct Group {
    MatrixBatch batch;
    int64_t first = 0;
    std::vector<int64_t> offsets;  // Of the matrices in the arena.
  };
  // A run of updates_ that one rank computes.
  struct Segment {
    int64_t begin = 0;
    int64_t size = 0;
    int rank = 0;
  };

  DeviceOptimizer(const v1::TrainConfig& train, const ShardPlan& shards, int rank,
                  LocalGroup* group, const DeviceArrays& arrays)
      : train_(train), shards_(shards), rank_(rank), group_(group), arrays_(arrays) {}
  void Lay(const FragmentPlan& plan);
  void LayMuon(const PlacedTensor& tensor);
  absl::Status Allocate(DeviceMemory& memory, Gemm* gemm, cudaStream_t stream);
  // The matrices of a group that a rank orthogonalizes: [first, last).
  std::pair<int64_t, int64_t> Share(const Group& group, int rank) const;
  absl::Status Send(const std::vector<Segment>& segments, cudaStream_t stream);
  absl::Status UpdateMuon(cudaStream_t stream);
  // The rank's share of the matrices in updates_.
  absl::Status Orthogonalize(cudaStream_t stream);

  const v1::TrainConfig train_;
  const ShardPlan& shards_;
  const int rank_;
  LocalGroup* const group_;
  const DeviceArrays arrays_;

  std::vector<AdamWSlice> adamw_slices_;
  std::vector<MuonSlice> muon_slices_;
  std::vector<Group> groups_;
  int64_t updates_size_ = 0;
  std::vector<Segment> momenta_;                          // By the rank whose piece it is.
  std::vector<Segment> orthogonalized_;                   // By the rank that did it.
  std::vector<std::pair<int64_t, int64_t>> norm_ranges_;  // Of the arena: the own pieces.

  AdamWSlice* device_adamw_slices_ = nullptr;
  MuonSlice* device_muon_slices_ = nullptr;
  Constants* constants_ = nullptr;  // On the device.
  PinnedBuffer<Constants> host_constants_;
  float* m_ = nullptr;
  float* v_ = nullptr;
  __nv_bfloat16* updates_ = nullptr;
  std::optional<NewtonSchulz> newton_schulz_;
  double* sums_ = nullptr;  // [ranks]
  double* norm_scratch_ = nullptr;
  GradientNorm* norm_ = nullptr;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_OPTIMIZER_H_
