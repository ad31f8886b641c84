#include "worker/backend/cuda/kernels/part_slots.h"

#include <algorithm>

#include "common/codec/difference_codec.h"
#include "common/params/run_config.h"

namespace causeway::worker::cuda {

absl::StatusOr<DeviceCodec> FindDeviceCodec(v1::Codec id) {
  constexpr std::pair<v1::Codec, DeviceCodec> kKernels[] = {
      {v1::FP32, DeviceCodec::kFp32}, {v1::BF16, DeviceCodec::kBf16},
      {v1::INT8, DeviceCodec::kInt8}, {v1::INT4, DeviceCodec::kInt4},
      {v1::E3M0, DeviceCodec::kE3m0}, {v1::E2M1, DeviceCodec::kE2m1},
      {v1::LM2, DeviceCodec::kLm2},   {v1::SIGN1, DeviceCodec::kSign1}};
  for (const auto& [known, codec] : kKernels) {
    if (known == id) return codec;
  }
  return absl::InvalidArgumentError(absl::StrCat("devices have no codec ", static_cast<int>(id)));
}

int64_t EncodedBytes(const Codec& codec, int64_t values) {
  return static_cast<int64_t>(codec.EncodedBytes(static_cast<size_t>(values)));
}

int64_t RefusedIndex(const Refusal& refusal) {
  return refusal.index_inverted == 0 ? -1 : static_cast<int64_t>(~refusal.index_inverted);
}

absl::Status EncodeStatus(const Codec& codec, const Refusal& refusal, int64_t index) {
  if (refusal.index_inverted == 0) return absl::OkStatus();
  const auto number = static_cast<size_t>(index);
  if (codec.id() == v1::FP32) return EndsNotFinite(number, refusal.base, refusal.target);
  const float largest =
      codec.id() == v1::BF16 ? std::bit_cast<float>(kLargestBf16CodecBits) : kLargestBlockMagnitude;
  return TooLarge(codec, number, refusal.difference, refusal.base, refusal.target, largest);
}

namespace {

template <typename T>
absl::StatusOr<T*> TakeLast(std::vector<T*>& free) {
  T* const last = free.back();
  free.pop_back();
  return last;
}

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

int64_t DeviceReplicaBytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
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

absl::Status PartSlots::Prepare(int fragments, const v1::SyncConfig& sync) {
  const int in_flight = FragmentsInFlight(fragments, sync);
  std::vector<Codes*> made;
  {
    absl::MutexLock lock(&mutex_);
    for (int i = 0; i < in_flight; ++i) {
      ASSIGN_OR_RETURN(Codes* const slot, MakeCodes());
      made.push_back(slot);
    }
  }
  for (Codes* const slot : made) Release(slot);
  for (int i = 0; sync.keep_in_flight() > 0 && i < in_flight; ++i) {
    ASSIGN_OR_RETURN(float* const held, MakeHeld());
    free_held_.push_back(held);
  }
  for (int i = 0; i < std::min(in_flight, kMergesAtOnce); ++i) {
    ASSIGN_OR_RETURN(Hash* const hash, MakeHash());
    free_hashes_.push_back(hash);
  }
  return absl::OkStatus();
}

absl::StatusOr<PartSlots::Codes*> PartSlots::Acquire(int fragment) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Codes* const slot, free_.empty() ? MakeCodes() : TakeLast(free_));
  slot->fragment = fragment;
  return slot;
}

absl::StatusOr<PartSlots::Codes*> PartSlots::MakeCodes() {
  auto slot = std::make_unique<Codes>();
  const int64_t bytes = SlotBytes(codec_up_, codec_down_, sizes_.values);
  ASSIGN_OR_RETURN(slot->on_device,
                   memory_.Allocate<uint8_t>("codes in flight", bytes, "sync.overlap_steps"));
  ASSIGN_OR_RETURN(slot->refusal_on_device, memory_.Allocate<Refusal>("refusals", 1, ""));
  ASSIGN_OR_RETURN(slot->codes, PinnedBuffer<uint8_t>::Create(static_cast<size_t>(bytes)));
  ASSIGN_OR_RETURN(slot->refusal, PinnedBuffer<Refusal>::Create(1));
  ASSIGN_OR_RETURN(slot->made, Event::Create());
  // The device may be a step behind.
  ASSIGN_OR_RETURN(slot->copied, Event::Create(/*timing=*/false, /*sleeps=*/true));
  codes_.push_back(std::move(slot));
  return codes_.back().get();
}

void PartSlots::Release(Codes* slot) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

absl::StatusOr<float*> PartSlots::AcquireHeld() {
  return free_held_.empty() ? MakeHeld() : TakeLast(free_held_);
}

absl::StatusOr<float*> PartSlots::MakeHeld() {
  return Allocate<float>("local values in flight", sizes_.values, "sync.keep_in_flight: 0");
}

absl::StatusOr<PartSlots::Hash*> PartSlots::AcquireHash() {
  return free_hashes_.empty() ? MakeHash() : TakeLast(free_hashes_);
}

absl::StatusOr<PartSlots::Hash*> PartSlots::MakeHash() {
  auto slot = std::make_unique<Hash>();
  ASSIGN_OR_RETURN(slot->on_device,
                   Allocate<unsigned long long>("checksums of leaves", sizes_.leaves, ""));
  ASSIGN_OR_RETURN(slot->checksums,
                   PinnedBuffer<unsigned long long>::Create(static_cast<size_t>(sizes_.leaves)));
  ASSIGN_OR_RETURN(slot->shared,
                   PinnedBuffer<uint8_t>::Create(static_cast<size_t>(sizes_.shared_bytes)));
  ASSIGN_OR_RETURN(slot->done, Event::Create());
  hashes_.push_back(std::move(slot));
  return hashes_.back().get();
}

}  // namespace causeway::worker::cuda
