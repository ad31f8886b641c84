// The buffers of a ReplicaShard for what is on its way: made at the start, as many as the schedule
// says, and more where that does not suffice.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "worker/backend/cuda/sync/device_codec.h"
#include "worker/backend/cuda/sync/replica_shard.h"

namespace causeway::worker::cuda {
namespace {

// Bytes of any fragment's codes, up or down.
int64_t SlotBytes(const Codec& up, const Codec& down, int64_t values) {
  return std::max(EncodedBytes(up, values), EncodedBytes(down, values));
}

// Fragments that are on their way at a time, from the snapshot until the merge's hash is there: one
// is sent per H / F steps, and merged tau steps later. One more, for a worker that takes several
// steps at a time; what is late takes slots of its own.
int FragmentsInFlight(int fragments, const v1::SyncConfig& sync) {
  const int64_t overlap = int64_t{MaxOverlapSteps(sync)} * fragments;
  return static_cast<int>(
      std::min<int64_t>(fragments, overlap / std::max(1, sync.steps_between_syncs()) + 2));
}

// Merges of one step boundary, hashed until the next one or the one after.
constexpr int kMergesAtOnce = 4;

}  // namespace

int64_t ReplicaShard::Bytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                            const v1::SyncConfig& sync, int rank, bool published_on_device) {
  int64_t most_values = 0;
  for (int i = 0; i < plan.fragments(); ++i) {
    most_values = std::max(most_values, shard_plan.shard_size(rank, i));
  }
  const int64_t values = shard_plan.shard_size(rank);
  const int64_t published = published_on_device ? values : most_values;
  const int64_t residual = sync.error_feedback() ? values : 0;
  const int64_t held = sync.keep_in_flight() > 0 ? most_values * kFloatBytes : 0;
  return (published + residual) * kFloatBytes +
         FragmentsInFlight(plan.fragments(), sync) *
             (held + SlotBytes(*FindCodec(sync.codec_up()).value(),
                               *FindCodec(sync.codec_down()).value(), most_values));
}

absl::Status ReplicaShard::PrepareSlots(const v1::SyncConfig& sync) {
  const int in_flight = FragmentsInFlight(plan_.fragments(), sync);
  std::vector<Slot*> slots;
  {
    absl::MutexLock lock(&mutex_);
    for (int i = 0; i < in_flight; ++i) {
      ASSIGN_OR_RETURN(Slot* const slot, MakeSlot());
      slots.push_back(slot);
    }
  }
  for (Slot* const slot : slots) Release(slot);
  for (int i = 0; sync.keep_in_flight() > 0 && i < in_flight; ++i) {
    ASSIGN_OR_RETURN(float* const held, MakeHeld());
    free_held_.push_back(held);
  }
  for (int i = 0; i < std::min(in_flight, kMergesAtOnce); ++i) {
    ASSIGN_OR_RETURN(HashSlot* const hash, MakeHash());
    free_hashes_.push_back(hash);
  }
  return absl::OkStatus();
}

absl::Status ReplicaShard::LoadKernels(const v1::SyncConfig& sync) {
  constexpr int64_t kValues = 256;
  ASSIGN_OR_RETURN(Slot* const slot, Acquire(0));
  float* zeros = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(zeros, memory_.Allocate<float>("zeros", 3 * kValues, ""));
  }
  const auto clear = [&](void* memory, size_t bytes) {
    return CheckCuda(cudaMemsetAsync(memory, 0, bytes, stream_.get()), "clearing zeros");
  };
  RETURN_IF_ERROR(clear(zeros, FloatBytes(3 * kValues)));
  RETURN_IF_ERROR(clear(slot->refusal_on_device, sizeof(Refusal)));
  const int64_t values = std::min(kValues, most_values_);
  LaunchEncode(device_codec_up_,
               {.values = values,
                .base = zeros,
                .target = zeros,
                .residual = sync.error_feedback() ? zeros + kValues : nullptr,
                .decay = decay_,
                .out = slot->on_device,
                .refusal = slot->refusal_on_device},
               stream_.get());
  RETURN_IF_ERROR(clear(slot->on_device, static_cast<size_t>(EncodedBytes(*codec_down_, values))));
  LaunchMerge(device_codec_down_,
              {.values = values,
               .encoded = slot->on_device,
               .base = zeros,
               .published = zeros + 2 * kValues,
               .refusal = slot->refusal_on_device},
              stream_.get());
  RETURN_IF_ERROR(CheckLaunches("loading kernels"));
  Release(slot);
  return absl::OkStatus();  // Allocate waits.
}

absl::StatusOr<ReplicaShard::Slot*> ReplicaShard::Acquire(int fragment) {
  absl::MutexLock lock(&mutex_);
  Slot* slot = nullptr;
  if (free_.empty()) {
    ASSIGN_OR_RETURN(slot, MakeSlot());
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  slot->fragment = fragment;
  return slot;
}

absl::StatusOr<ReplicaShard::Slot*> ReplicaShard::MakeSlot() {
  auto slot = std::make_unique<Slot>();
  const int64_t bytes = SlotBytes(*codec_up_, *codec_down_, most_values_);
  ASSIGN_OR_RETURN(slot->on_device,
                   memory_.Allocate<uint8_t>("codes in flight", bytes, "sync.overlap_steps"));
  ASSIGN_OR_RETURN(slot->refusal_on_device, memory_.Allocate<Refusal>("refusals", 1, ""));
  ASSIGN_OR_RETURN(slot->codes, PinnedBuffer<uint8_t>::Create(static_cast<size_t>(bytes)));
  ASSIGN_OR_RETURN(slot->refusal, PinnedBuffer<Refusal>::Create(1));
  ASSIGN_OR_RETURN(slot->made, Event::Create());
  // The device may be a step behind.
  ASSIGN_OR_RETURN(slot->copied, Event::Create(/*timing=*/false, /*sleeps=*/true));
  slots_.push_back(std::move(slot));
  return slots_.back().get();
}

void ReplicaShard::Release(Slot* slot) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

void ReplicaShard::Abandon(Slot* slot) {
  if (slot == nullptr) return;
  (void)UseDevice(shard_.device);
  // A device that is lost does not write any more.
  slot->copied.Wait("codes that nobody reads").IgnoreError();
  Release(slot);
}

absl::StatusOr<float*> ReplicaShard::AcquireHeld(Part& fragment) {
  if (fragment.held != nullptr) return fragment.held;
  if (free_held_.empty()) {
    ASSIGN_OR_RETURN(fragment.held, MakeHeld());
  } else {
    fragment.held = free_held_.back();
    free_held_.pop_back();
  }
  return fragment.held;
}

absl::StatusOr<float*> ReplicaShard::MakeHeld() {
  absl::MutexLock lock(&mutex_);
  return memory_.Allocate<float>("local values in flight", most_values_, "sync.keep_in_flight: 0");
}

void ReplicaShard::ReleaseHeld(Part& fragment) {
  if (fragment.held != nullptr) free_held_.push_back(std::exchange(fragment.held, nullptr));
}

absl::StatusOr<ReplicaShard::HashSlot*> ReplicaShard::AcquireHash() {
  if (!free_hashes_.empty()) {
    HashSlot* const slot = free_hashes_.back();
    free_hashes_.pop_back();
    return slot;
  }
  return MakeHash();
}

absl::StatusOr<ReplicaShard::HashSlot*> ReplicaShard::MakeHash() {
  auto slot = std::make_unique<HashSlot>();
  {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(slot->on_device,
                     memory_.Allocate<unsigned long long>("checksums of leaves", most_leaves_, ""));
  }
  ASSIGN_OR_RETURN(slot->checksums,
                   PinnedBuffer<unsigned long long>::Create(static_cast<size_t>(most_leaves_)));
  ASSIGN_OR_RETURN(slot->shared,
                   PinnedBuffer<uint8_t>::Create(static_cast<size_t>(most_shared_bytes_)));
  ASSIGN_OR_RETURN(slot->done, Event::Create());
  hashes_.push_back(std::move(slot));
  return hashes_.back().get();
}

}  // namespace causeway::worker::cuda
