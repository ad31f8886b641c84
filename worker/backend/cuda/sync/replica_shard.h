// One rank's shard of a DevicePart (device_part.h), on its GPU, and the work under way with it.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_REPLICA_SHARD_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_REPLICA_SHARD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/sync/codec_kernels.h"
#include "worker/backend/cuda/sync/device_part.h"
#include "worker/backend/cuda/sync/leaf_hash.h"
#include "worker/group/shard_plan.h"
#include "worker/sync/leaf_assembly.h"

namespace causeway::worker::cuda {

inline constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// Threads as ReplicaPart has them. Every method makes the device the calling thread's and puts back
// the one before.
class ReplicaShard {
 public:
  // Codes on their way to or from the device.
  struct Slot {
    int fragment = 0;
    uint8_t* on_device = nullptr;
    PinnedBuffer<uint8_t> codes;
    Refusal* refusal_on_device = nullptr;
    PinnedBuffer<Refusal> refusal;
    Event made;    // By a kernel.
    Event copied;  // Both ways.
  };

  // Bytes of device memory that Create allocates for the rank.
  static int64_t Bytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                       const v1::SyncConfig& sync, int rank, bool published_on_device);
  static absl::StatusOr<std::unique_ptr<ReplicaShard>> Create(const FragmentPlan& plan,
                                                              const ShardPlan& shard_plan,
                                                              const v1::SyncConfig& sync,
                                                              const DeviceShard& shard,
                                                              bool published_on_device);
  ~ReplicaShard();

  // Null where this rank has nothing of the fragment.
  absl::StatusOr<Slot*> Snapshot(int fragment);
  // Waits for the codes, puts them into the object's places and gives the slot back.
  absl::Status Read(Slot* slot, std::span<uint8_t> object);
  // Gives a slot back that is not read.
  void Abandon(Slot* slot);
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object);
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer);
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha);
  absl::Status SetPublished(int fragment, std::span<const uint8_t> values);
  absl::Status FinishHash(int fragment, LeafSink& leaves);
  bool IsHashed(int fragment);
  absl::Status Mix(int fragment, float alpha);
  absl::Status Hold(int fragment);
  absl::Status CopyHeld(int fragment, std::span<float> values);
  absl::Status SetHeld(int fragment, std::span<const float> values);
  absl::Status CopyPublished(std::span<float> arena);
  bool keeps_residuals() const { return residual_ != nullptr; }
  absl::Status CopyResiduals(std::span<float> arena);
  absl::Status Restore(std::span<const float> published, std::span<const float> residual);

  int rank() const { return shard_.rank; }
  const float* published_on_device() const { return published_; }
  void UseStream(cudaStream_t training) { shard_.training = training; }
  absl::Status HoldUp(cudaStream_t stream);
  const float* PublishedValues(int fragment) const;

 private:
  // Bytes of shared leaves.
  struct SharedRange {
    int64_t in_shard = 0;  // From the fragment's first byte here on.
    int64_t in_fragment = 0;
    int64_t bytes = 0;
  };
  // This rank's part of one fragment.
  struct Part {
    std::span<const ShardPiece> pieces;
    int64_t begin = 0;   // Where the fragment begins in the arena.
    int64_t offset = 0;  // In the shard.
    int64_t values = 0;
    const ArenaPiece* table = nullptr;  // Its pieces, on the device.
    std::vector<HashLeaf> leaves;       // Offsets from the fragment's first byte here on.
    std::vector<int64_t> leaf_numbers;
    const HashLeaf* leaves_on_device = nullptr;
    std::vector<SharedRange> shared;
    int64_t shared_bytes = 0;
    bool keeps_residual = false;
    float* held = nullptr;  // Local values as they were sent; null: none.
  };
  // The host's results of hashing one fragment.
  struct HashSlot {
    unsigned long long* on_device = nullptr;
    PinnedBuffer<unsigned long long> checksums;
    PinnedBuffer<uint8_t> shared;
    Event done;
    Slot* answer = nullptr;  // That was merged before; null: none was.
  };

  ReplicaShard(const FragmentPlan& plan, const ShardPlan& shard_plan, const v1::SyncConfig& sync,
               const DeviceShard& shard);
  absl::Status Allocate(bool published_on_device, const v1::SyncConfig& sync);
  // Slots for what a run has in flight, so that nothing is allocated while it trains.
  absl::Status PrepareSlots(const v1::SyncConfig& sync);
  // Encodes and decodes some zeros: the driver loads a kernel when it is launched first, which may
  // wait for the device.
  absl::Status LoadKernels(const v1::SyncConfig& sync);
  void LayOut(Part& part) const;

  Part& part(int fragment) { return parts_[static_cast<size_t>(fragment)]; }
  // A free slot, or a new one.
  absl::StatusOr<Slot*> Acquire(int fragment) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Slot*> MakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(Slot* slot) ABSL_LOCKS_EXCLUDED(mutex_);
  // Memory for what is held of the fragment, if it has none yet.
  absl::StatusOr<float*> AcquireHeld(Part& part);
  absl::StatusOr<float*> MakeHeld() ABSL_LOCKS_EXCLUDED(mutex_);
  // After the kernel that reads it was launched: what follows on the stream may write it.
  void ReleaseHeld(Part& part);
  absl::StatusOr<HashSlot*> AcquireHash();
  absl::StatusOr<HashSlot*> MakeHash();
  // Copies the pieces of an object to the device.
  absl::StatusOr<Slot*> Upload(const Codec& codec, int fragment, std::span<const uint8_t> object);
  // Makes the synchronizing stream's later work follow the training stream.
  absl::Status FollowTraining();
  // The local values of a fragment; null where they are of no interest.
  float* Local(int fragment) const;
  // Local values have been read.
  absl::Status RecordSnapshot();
  // The fragment's part of the published copy, on the device; and puts it back.
  absl::StatusOr<float*> LoadPublished(const Part& part);
  absl::Status StorePublished(const Part& part, const float* published);
  absl::Status BeginHash(int fragment, const float* published, Slot* answer);
  absl::Status EnsureResiduals(bool of_all_fragments, int fragment);
  MergeJob LocalJob(int fragment, const float* published, float alpha) const;
  // The host's codec's word on the chunk that was refused.
  absl::Status DecodeStatus(const Codec& codec, const Slot& slot);
  absl::Status CopyOut(const float* from, const Part& part, std::span<float> arena);

  const FragmentPlan& plan_;
  const ShardPlan& shard_plan_;
  DeviceShard shard_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const DeviceCodec device_codec_up_;
  const DeviceCodec device_codec_down_;
  const float decay_;
  const double keep_;
  const bool contributes_gradients_;
  std::vector<Part> parts_;  // By fragment.
  int64_t most_values_ = 0;  // Size of the largest part.
  int64_t most_leaves_ = 0;
  int64_t most_shared_bytes_ = 0;

  Stream stream_;  // All kernels, and what must be in their order.
  Stream up_;
  Stream down_;
  Event boundary_;
  Event merged_;
  float* published_ = nullptr;          // Copy of the shard; null: in host memory.
  PinnedBuffer<float> published_host_;  // Otherwise.
  float* loaded_ = nullptr;             // Fragment that was loaded last.
  float* residual_ = nullptr;           // Null until something is kept.
  std::map<int, HashSlot*> hashing_;    // By fragment.
  std::vector<HashSlot*> free_hashes_;
  std::vector<std::unique_ptr<HashSlot>> hashes_;
  std::vector<float*> free_held_;  // Each for the largest part.

  absl::Mutex mutex_;
  DeviceMemory memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Slot*> staged_ ABSL_GUARDED_BY(mutex_);  // Answers, by fragment.
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_REPLICA_SHARD_H_
