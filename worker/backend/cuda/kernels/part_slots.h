// Codes on their way to and from a device: which kernel makes them, and the buffers of a DevicePart
// (device_part.h) for them, made at the start, as many as the schedule says, and more where that
// does not suffice.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker::cuda {

// The codecs of devices beside those of hosts: which kernel is which codec, and what a refusal
// says.

// INVALID_ARGUMENT for an id without one.
absl::StatusOr<DeviceCodec> FindDeviceCodec(v1::Codec id);

// Bytes of so many values' codes.
int64_t EncodedBytes(const Codec& codec, int64_t values);

// The first value that was refused, -1 if none was.
int64_t RefusedIndex(const Refusal& refusal);

// codec.Encode's word on a value that was refused, under the number `index`; OK if none was.
absl::Status EncodeStatus(const Codec& codec, const Refusal& refusal, int64_t index);

inline constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// Device memory that DevicePart::Create allocates for a rank, to within a few megabytes.
int64_t DeviceReplicaBytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                           const v1::SyncConfig& sync, int rank, bool published_on_device);

// The device is the calling thread's. The training thread calls everything; other threads acquire
// and release code slots, too.
class PartSlots {
 public:
  // Of the largest fragment's part.
  struct Sizes {
    int64_t values = 0;
    int64_t leaves = 0;
    int64_t shared_bytes = 0;
  };

  // Codes on their way to or from the device.
  struct Codes {
    int fragment = 0;
    uint8_t* on_device = nullptr;
    PinnedBuffer<uint8_t> codes;
    Refusal* refusal_on_device = nullptr;
    PinnedBuffer<Refusal> refusal;
    Event made;    // By a kernel.
    Event copied;  // Both ways.
  };

  // The host's results of hashing one fragment.
  struct Hash {
    unsigned long long* on_device = nullptr;
    PinnedBuffer<unsigned long long> checksums;
    PinnedBuffer<uint8_t> shared;
    Event done;
    Codes* answer = nullptr;  // That was merged before; null: none was.
  };

  PartSlots(const Codec& up, const Codec& down, const Sizes& sizes)
      : codec_up_(up), codec_down_(down), sizes_(sizes) {}

  // Makes what a run has in flight, so that nothing is allocated while it trains.
  absl::Status Prepare(int fragments, const v1::SyncConfig& sync);

  // A free one, or a new one.
  absl::StatusOr<Codes*> Acquire(int fragment) ABSL_LOCKS_EXCLUDED(mutex_);
  void Release(Codes* slot) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Hash*> AcquireHash();
  void ReleaseHash(Hash* slot) { free_hashes_.push_back(slot); }
  // Memory for the values of the largest part.
  absl::StatusOr<float*> AcquireHeld();
  void ReleaseHeld(float* values) { free_held_.push_back(values); }

  // DeviceMemory::Allocate, from any thread.
  template <typename T>
  absl::StatusOr<T*> Allocate(const char* purpose, int64_t count, const char* lower)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return memory_.Allocate<T>(purpose, count, lower);
  }

 private:
  absl::StatusOr<Codes*> MakeCodes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Hash*> MakeHash();
  absl::StatusOr<float*> MakeHeld();

  const Codec& codec_up_;
  const Codec& codec_down_;
  const Sizes sizes_;
  std::vector<Hash*> free_hashes_;
  std::vector<std::unique_ptr<Hash>> hashes_;
  std::vector<float*> free_held_;

  absl::Mutex mutex_;
  DeviceMemory memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Codes>> codes_ ABSL_GUARDED_BY(mutex_);
  std::vector<Codes*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker::cuda
