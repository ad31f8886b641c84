// A replica's values on the GPUs of this process. Snapshot, encoding, merging and hashing are
// kernels on a stream of their own beside the training stream. Codes cross to the host and back, 8
// bytes per leaf of a hash, and the bytes of leaves that several devices share.
//
// A merge's kernel holds up the training stream until it has written the weights. A snapshot's
// kernel holds up an optimizer's update while it reads them. With the published copy on the device
// that is all; where it lies in the host's memory, a merge begins with the transfer of the
// fragment's part of it.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_DEVICE_PART_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_DEVICE_PART_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/group/shard_plan.h"
#include "worker/sync/replica_part.h"

namespace causeway::worker::cuda {

// A training backend's view of one rank. All of it outlives the part.
struct DeviceShard {
  int device = 0;
  int rank = 0;  // In the shard plan.
  // Master weights: the rank's own, in the order of its pieces, without gaps.
  float* master = nullptr;
  // In place of it, by fragment: its values alone, which may lie elsewhere at every step boundary;
  // null where they are the published ones and are of no interest.
  float* const* locals = nullptr;
  // The gradients of the step just done, before clipping: the whole arena, of which the own pieces
  // count, or these alone, as `master`. Null unless gradients are what is contributed.
  const float* gradients = nullptr;
  bool gradients_are_own = false;
  // For computing: the whole arena. A merge writes the own pieces.
  __nv_bfloat16* weights = nullptr;
  // The one that steps are issued to. Nothing is recorded of it while synchronization is called.
  cudaStream_t training = nullptr;
  // Recorded after every snapshot: an update of master weights waits for it, on the device. May be
  // null.
  cudaEvent_t snapshots_done = nullptr;
};

struct DevicePartOptions {
  // True: the published copy is in device memory, 4 bytes per value. False: it is in pinned host
  // memory, and is copied to the device for every snapshot and back from it after every merge.
  bool published_on_device = true;
  // Called when the weights of a fragment will have changed, by kernels that the training stream
  // waits for: other ranks need them.
  std::function<void(int fragment)> weights_changed;
};

class ReplicaShard;

// Device memory that DevicePart::Create allocates for a rank, to within a few megabytes.
int64_t DeviceReplicaBytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                           const v1::SyncConfig& sync, int rank, bool published_on_device);

class DevicePart final : public ReplicaPart {
 public:
  // Plans outlive the part. RESOURCE_EXHAUSTED with what is needed for what.
  static absl::StatusOr<std::unique_ptr<DevicePart>> Create(const FragmentPlan& plan,
                                                            const ShardPlan& shard_plan,
                                                            const v1::SyncConfig& sync,
                                                            std::vector<DeviceShard> shards,
                                                            DevicePartOptions options);
  ~DevicePart() override;

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) override;
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object) override;
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer) override;
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) override;
  absl::Status SetPublished(int fragment, std::span<const uint8_t> values) override;
  absl::Status FinishHash(int fragment, LeafSink& leaves) override;
  bool IsHashed(int fragment) override;
  absl::Status Mix(int fragment, float alpha) override;
  absl::Status Hold(int fragment) override;
  absl::Status CopyHeld(int fragment, std::span<float> values) override;
  absl::Status SetHeld(int fragment, std::span<const float> values) override;
  absl::Status CopyPublished(std::span<float> arena) override;
  bool KeepsResiduals() const override;
  absl::Status CopyResiduals(std::span<float> arena) override;
  absl::Status Restore(std::span<const float> published, std::span<const float> residual) override;

  // The published copy of a rank of this process, on its device, in the order of its pieces; null
  // where it is in host memory. Kernels that read it wait for `training`, at a step boundary.
  const float* published_on_device(int rank) const;

  // Steps are issued to that stream from now on.
  void UseStream(cudaStream_t training);
  // Makes what is issued to that stream later follow all kernels so far.
  absl::Status HoldUp(cudaStream_t stream);
  // The published copy of a fragment of the first rank, wherever it is: kernels may read it.
  const float* PublishedValues(int fragment) const;

 private:
  class DeviceCodes;

  explicit DevicePart(DevicePartOptions options);

  const DevicePartOptions options_;
  std::vector<std::unique_ptr<ReplicaShard>> shards_;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_DEVICE_PART_H_
