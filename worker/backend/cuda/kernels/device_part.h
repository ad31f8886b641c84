// One rank's part of a replica, on its GPU (worker/sync/replica.h). Snapshot, encoding,
// merging and hashing are kernels on a stream of their own beside the training stream. Codes cross
// to the host and back, 8 bytes per leaf of a hash, and the bytes of leaves that several devices
// share.
//
// A merge's kernel holds up the training stream until it has written the weights. A snapshot's
// kernel holds up an optimizer's update while it reads them. With the published copy on the device
// that is all; where it lies in the host's memory, a merge begins with the transfer of the
// fragment's part of it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/part_slots.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

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
  // waits for: other ranks need them. Of a process's parts the last one alone has it.
  std::function<void(int fragment)> weights_changed;
  // kPartCopyLocal, kPartSetLocal and the same of gaps, of a trainer's values. Null: nobody asks
  // for these.
  std::function<absl::Status(const PartCall& call)> use_local = nullptr;
};

// Every method makes the device the calling thread's and puts back the one before.
class DevicePart final : public ReplicaPart {
 public:
  // Plans outlive the part. RESOURCE_EXHAUSTED with what is needed for what.
  static absl::StatusOr<std::unique_ptr<DevicePart>> Create(const FragmentPlan& plan,
                                                            const ShardPlan& shard_plan,
                                                            const v1::SyncConfig& sync,
                                                            const DeviceShard& shard,
                                                            DevicePartOptions options);
  ~DevicePart() override;

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) override;
  absl::Status Do(const PartCall& call) override;
  absl::Status FinishHash(int fragment, LeafSink& leaves) override;
  bool IsHashed(int fragment) override;
  bool KeepsResiduals() const override { return residual_ != nullptr; }

  // Steps are issued to that stream from now on.
  void UseStream(cudaStream_t training) { shard_.training = training; }
  // Makes what is issued to that stream later follow all kernels so far.
  absl::Status HoldUp(cudaStream_t stream);
  // The published copy of a fragment, wherever it is: kernels may read it.
  const float* PublishedValues(int fragment) const {
    return PublishedCopy() + parts_[static_cast<size_t>(fragment)].offset;
  }

 private:
  using Slot = PartSlots::Codes;
  using HashSlot = PartSlots::Hash;
  class SlotCodes;

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
    const MirroredGap* gaps = nullptr;  // The same.
    int gap_count = 0;
    std::vector<HashLeaf> leaves;  // Offsets from the fragment's first byte here on.
    std::vector<int64_t> leaf_numbers;
    const HashLeaf* leaves_on_device = nullptr;
    std::vector<SharedRange> shared;
    int64_t shared_bytes = 0;
    bool keeps_residual = false;
    float* held = nullptr;  // Local values as they were sent; null: none.
  };
  DevicePart(const FragmentPlan& plan, const ShardPlan& shard_plan, const v1::SyncConfig& sync,
             const DeviceShard& shard, DevicePartOptions options);
  absl::Status Allocate(const v1::SyncConfig& sync);
  // Rows on the device.
  template <typename Row>
  absl::StatusOr<const Row*> Table(const char* purpose, const std::vector<Row>& rows);
  // Encodes and decodes some zeros: the driver loads a kernel when it is launched first, which may
  // wait for the device.
  absl::Status LoadKernels(const v1::SyncConfig& sync);
  void LayOut(Part& part) const;
  // Lists those of the part's pieces, from its first value on.
  std::vector<MirroredGap> GapsOf(const Part& part) const;

  Part& part(int fragment) { return parts_[static_cast<size_t>(fragment)]; }
  // Waits for the codes, puts them into the object's places and gives the slot back.
  absl::Status Read(Slot* slot, std::span<uint8_t> object);
  // Gives a slot back that is not read.
  void Abandon(Slot* slot);
  // The verbs of Do: copies of arenas, and what is done to a fragment of which something is here.
  absl::Status CopyArena(const PartCall& call);
  absl::Status DoToFragment(const PartCall& call);
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object);
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer);
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha);
  absl::Status Mix(int fragment, float alpha);

  // Memory for what is held of the fragment, if it has none yet.
  absl::Status AcquireHeld(Part& part);
  // After the kernel that reads it was launched: what follows on the stream may write it.
  void ReleaseHeld(Part& part);
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
  // The published copy of the shard, wherever it is.
  float* PublishedCopy() const {
    return published_ != nullptr ? published_ : published_host_.data();
  }

  const DevicePartOptions options_;
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
  PartSlots::Sizes most_;    // Of the largest part.

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
  std::unique_ptr<PartSlots> slots_;

  absl::Mutex mutex_;
  std::map<int, Slot*> staged_ ABSL_GUARDED_BY(mutex_);  // Answers, by fragment.
};

}  // namespace causeway::worker::cuda
