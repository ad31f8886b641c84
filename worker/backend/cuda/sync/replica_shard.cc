#include "worker/backend/cuda/sync/replica_shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "worker/backend/cuda/sync/device_codec.h"

namespace causeway::worker::cuda {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kCodecChunk);

absl::Status Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind,
                  const Stream& stream) {
  if (bytes == 0) return absl::OkStatus();
  return CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream.get()),
                   "copying for synchronization");
}

}  // namespace

ReplicaShard::ReplicaShard(const FragmentPlan& plan, const ShardPlan& shard_plan,
                           const v1::SyncConfig& sync, const DeviceShard& shard)
    : plan_(plan),
      shard_plan_(shard_plan),
      shard_(shard),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      device_codec_up_(FindDeviceCodec(sync.codec_up()).value()),
      device_codec_down_(FindDeviceCodec(sync.codec_down()).value()),
      decay_(sync.has_error_feedback_decay() ? static_cast<float>(sync.error_feedback_decay())
                                             : 1.0F),
      keep_(sync.keep_in_flight()),
      contributes_gradients_(sync.contribution() == v1::SyncConfig::GRADIENT),
      parts_(static_cast<size_t>(plan.fragments())) {
  for (int i = 0; i < plan.fragments(); ++i) {
    Part& fragment = part(i);
    fragment.pieces = shard_plan.pieces(shard.rank, i);
    fragment.begin = plan.range(i).begin;
    fragment.values = shard_plan.shard_size(shard.rank, i);
    if (!fragment.pieces.empty()) fragment.offset = fragment.pieces.front().offset;
    LayOut(fragment);
    most_values_ = std::max(most_values_, fragment.values);
    most_leaves_ = std::max<int64_t>(most_leaves_, std::ssize(fragment.leaves));
    most_shared_bytes_ = std::max(most_shared_bytes_, fragment.shared_bytes);
  }
}

ReplicaShard::~ReplicaShard() {
  (void)UseDevice(shard_.device);
  // Nothing is freed that the device still reads; how what is under way ends is of no interest.
  for (const Stream* const stream : {&stream_, &up_, &down_}) {
    if (stream->get() != nullptr) stream->Wait("the end of synchronization").IgnoreError();
  }
}

// Which leaves are hashed here, and which bytes of others are here.
void ReplicaShard::LayOut(Part& fragment) const {
  const int64_t total =
      plan_.range(fragment.pieces.empty() ? 0 : fragment.pieces.front().fragment).size() *
      kFloatBytes;
  for (size_t i = 0; i < fragment.pieces.size();) {
    // A run of pieces without gaps in the arena.
    const int64_t first = fragment.pieces[i].begin;
    const int64_t in_shard = (fragment.pieces[i].offset - fragment.offset) * kFloatBytes;
    int64_t end = first;
    for (; i < fragment.pieces.size() && fragment.pieces[i].begin == end; ++i) {
      end = fragment.pieces[i].end;
    }
    const int64_t begin_byte = (first - fragment.begin) * kFloatBytes;
    const LeafRanges ranges(begin_byte, (end - fragment.begin) * kFloatBytes, total);
    for (int64_t leaf = ranges.first_leaf; leaf < ranges.first_leaf + ranges.leaves; ++leaf) {
      const int64_t leaf_begin = leaf * static_cast<int64_t>(kTreeLeafBytes);
      fragment.leaves.push_back(
          {.offset = in_shard + leaf_begin - begin_byte,
           .bytes = std::min(static_cast<int64_t>(kTreeLeafBytes), total - leaf_begin)});
      fragment.leaf_numbers.push_back(leaf);
    }
    for (const LeafRanges::Range& range : ranges.shared) {
      fragment.shared.push_back({.in_shard = in_shard + range.begin - begin_byte,
                                 .in_fragment = range.begin,
                                 .bytes = range.end - range.begin});
      fragment.shared_bytes += range.end - range.begin;
    }
  }
}

absl::StatusOr<std::unique_ptr<ReplicaShard>> ReplicaShard::Create(const FragmentPlan& plan,
                                                                   const ShardPlan& shard_plan,
                                                                   const v1::SyncConfig& sync,
                                                                   const DeviceShard& shard,
                                                                   bool published_on_device) {
  RETURN_IF_ERROR(UseDevice(shard.device));
  std::unique_ptr<ReplicaShard> device(new ReplicaShard(plan, shard_plan, sync, shard));
  RETURN_IF_ERROR(device->Allocate(published_on_device, sync));
  return device;
}

absl::Status ReplicaShard::Allocate(bool published_on_device, const v1::SyncConfig& sync) {
  ASSIGN_OR_RETURN(stream_, Stream::Create(/*urgent=*/true));
  ASSIGN_OR_RETURN(up_, Stream::Create());
  ASSIGN_OR_RETURN(down_, Stream::Create());
  ASSIGN_OR_RETURN(boundary_, Event::Create());
  ASSIGN_OR_RETURN(merged_, Event::Create());
  const int64_t values = shard_plan_.shard_size(shard_.rank);
  {
    absl::MutexLock lock(&mutex_);
    if (published_on_device) {
      ASSIGN_OR_RETURN(published_,
                       memory_.Allocate<float>("published copy", values, "--published=host"));
      RETURN_IF_ERROR(CheckCuda(
          cudaMemsetAsync(published_, 0, static_cast<size_t>(values * kFloatBytes), stream_.get()),
          "clearing the published copy"));
    } else {
      ASSIGN_OR_RETURN(loaded_, memory_.Allocate<float>("a fragment of the published copy",
                                                        most_values_, "sync.fragments"));
      ASSIGN_OR_RETURN(published_host_, PinnedBuffer<float>::Create(static_cast<size_t>(values)));
      std::fill_n(published_host_.data(), values, 0.0F);
    }
    for (Part& fragment : parts_) {
      std::vector<ArenaPiece> pieces;
      for (const ShardPiece& piece : fragment.pieces) {
        pieces.push_back({.first = piece.offset - fragment.offset, .begin = piece.begin});
      }
      ASSIGN_OR_RETURN(ArenaPiece * table,
                       memory_.Allocate<ArenaPiece>("tables of pieces", std::ssize(pieces), ""));
      ASSIGN_OR_RETURN(HashLeaf * leaves, memory_.Allocate<HashLeaf>(
                                              "tables of leaves", std::ssize(fragment.leaves), ""));
      RETURN_IF_ERROR(Copy(table, pieces.data(), std::ssize(pieces) * int64_t{sizeof(ArenaPiece)},
                           cudaMemcpyHostToDevice, stream_));
      RETURN_IF_ERROR(Copy(leaves, fragment.leaves.data(),
                           std::ssize(fragment.leaves) * int64_t{sizeof(HashLeaf)},
                           cudaMemcpyHostToDevice, stream_));
      RETURN_IF_ERROR(stream_.Wait("copying tables"));  // `pieces` ends here.
      fragment.table = table;
      fragment.leaves_on_device = leaves;
    }
  }
  if (sync.error_feedback()) RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
  RETURN_IF_ERROR(PrepareSlots(sync));
  RETURN_IF_ERROR(LoadKernels(sync));
  return stream_.Wait("clearing the published copy");
}

absl::Status ReplicaShard::EnsureResiduals(bool of_all_fragments, int fragment) {
  if (residual_ == nullptr) {
    const int64_t values = shard_plan_.shard_size(shard_.rank);
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(
        residual_, memory_.Allocate<float>("error feedback", values, "sync.error_feedback: false"));
    RETURN_IF_ERROR(CheckCuda(
        cudaMemsetAsync(residual_, 0, static_cast<size_t>(values * kFloatBytes), stream_.get()),
        "clearing what error feedback keeps"));
  }
  if (of_all_fragments) {
    for (Part& each : parts_) each.keeps_residual = true;
  } else {
    part(fragment).keeps_residual = true;
  }
  return absl::OkStatus();
}

// --- Streams -------------------------------------------------------------------------------------

absl::Status ReplicaShard::FollowTraining() {
  RETURN_IF_ERROR(boundary_.Record(shard_.training));
  return boundary_.HoldUp(stream_.get());
}

absl::Status ReplicaShard::HoldUp(cudaStream_t stream) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(merged_.Record(stream_.get()));
  return merged_.HoldUp(stream);
}

float* ReplicaShard::Local(int index) const {
  if (shard_.locals != nullptr) return shard_.locals[index];
  return shard_.master + parts_[static_cast<size_t>(index)].offset;
}

const float* ReplicaShard::PublishedValues(int index) const {
  const float* const copy = published_ != nullptr ? published_ : published_host_.data();
  return copy + parts_[static_cast<size_t>(index)].offset;
}

absl::StatusOr<float*> ReplicaShard::LoadPublished(const Part& fragment) {
  if (published_ != nullptr) return published_ + fragment.offset;
  RETURN_IF_ERROR(Copy(loaded_, published_host_.data() + fragment.offset,
                       fragment.values * kFloatBytes, cudaMemcpyHostToDevice, stream_));
  return loaded_;
}

absl::Status ReplicaShard::StorePublished(const Part& fragment, const float* published) {
  if (published_ != nullptr) return absl::OkStatus();
  return Copy(published_host_.data() + fragment.offset, published, fragment.values * kFloatBytes,
              cudaMemcpyDeviceToHost, stream_);
}

absl::Status ReplicaShard::RecordSnapshot() {
  if (shard_.snapshots_done == nullptr) return absl::OkStatus();
  return CheckCuda(cudaEventRecord(shard_.snapshots_done, stream_.get()), "recording a snapshot");
}

// --- Deltas --------------------------------------------------------------------------------------

absl::StatusOr<ReplicaShard::Slot*> ReplicaShard::Snapshot(int index) {
  Part& fragment = part(index);
  if (fragment.values == 0) return nullptr;
  RETURN_IF_ERROR(UseDevice(shard_.device));
  ASSIGN_OR_RETURN(Slot* const slot, Acquire(index));
  RETURN_IF_ERROR(FollowTraining());
  EncodeJob job{.values = fragment.values,
                .target = Local(index),
                .residual = fragment.keeps_residual ? residual_ + fragment.offset : nullptr,
                .decay = decay_,
                .out = slot->on_device,
                .refusal = slot->refusal_on_device};
  if (contributes_gradients_) {
    job.negates_target = true;
    job.target = shard_.gradients;
    if (shard_.gradients_are_own) {
      job.target += fragment.offset;
    } else {
      job.pieces = fragment.table;
      job.piece_count = static_cast<int>(fragment.pieces.size());
    }
  } else {
    ASSIGN_OR_RETURN(job.base, LoadPublished(fragment));
  }
  RETURN_IF_ERROR(CheckCuda(
      cudaMemsetAsync(slot->refusal_on_device, 0, sizeof(Refusal), stream_.get()), "encoding"));
  LaunchEncode(device_codec_up_, job, stream_.get());
  RETURN_IF_ERROR(CheckLaunches("encoding"));
  RETURN_IF_ERROR(RecordSnapshot());
  if (contributes_gradients_) {
    // The next step begins with writing gradients, not with reading them.
    RETURN_IF_ERROR(CheckCuda(cudaStreamWaitEvent(shard_.training, shard_.snapshots_done, 0),
                              "making training wait for a snapshot of gradients"));
  }
  RETURN_IF_ERROR(slot->made.Record(stream_.get()));
  RETURN_IF_ERROR(slot->made.HoldUp(down_.get()));
  RETURN_IF_ERROR(Copy(slot->codes.data(), slot->on_device,
                       EncodedBytes(*codec_up_, fragment.values), cudaMemcpyDeviceToHost, down_));
  RETURN_IF_ERROR(Copy(slot->refusal.data(), slot->refusal_on_device, sizeof(Refusal),
                       cudaMemcpyDeviceToHost, down_));
  RETURN_IF_ERROR(slot->copied.Record(down_.get()));
  return slot;
}

absl::Status ReplicaShard::Read(Slot* slot, std::span<uint8_t> object) {
  if (slot == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(slot->copied.Wait("waiting for codes"));
  const Part& fragment = part(slot->fragment);
  absl::Status status;
  const int64_t refused = RefusedIndex(slot->refusal[0]);
  for (const ShardPiece& piece : fragment.pieces) {
    const int64_t first = piece.offset - fragment.offset;
    const int64_t in_fragment = piece.begin - fragment.begin;
    if (refused >= first && refused < first + piece.size()) {
      status = EncodeStatus(*codec_up_, slot->refusal[0], in_fragment + refused - first);
    }
    std::memcpy(object.data() + EncodedBytes(*codec_up_, in_fragment),
                slot->codes.data() + EncodedBytes(*codec_up_, first),
                static_cast<size_t>(EncodedBytes(*codec_up_, piece.size())));
  }
  Release(slot);
  return status;
}

absl::StatusOr<ReplicaShard::Slot*> ReplicaShard::Upload(const Codec& codec, int index,
                                                         std::span<const uint8_t> object) {
  const Part& fragment = part(index);
  ASSIGN_OR_RETURN(Slot* const slot, Acquire(index));
  for (const ShardPiece& piece : fragment.pieces) {
    std::memcpy(slot->codes.data() + EncodedBytes(codec, piece.offset - fragment.offset),
                object.data() + EncodedBytes(codec, piece.begin - fragment.begin),
                static_cast<size_t>(EncodedBytes(codec, piece.size())));
  }
  RETURN_IF_ERROR(Copy(slot->on_device, slot->codes.data(), EncodedBytes(codec, fragment.values),
                       cudaMemcpyHostToDevice, up_));
  RETURN_IF_ERROR(CheckCuda(cudaMemsetAsync(slot->refusal_on_device, 0, sizeof(Refusal), up_.get()),
                            "clearing a refusal"));
  RETURN_IF_ERROR(slot->copied.Record(up_.get()));
  return slot;
}

absl::Status ReplicaShard::DecodeStatus(const Codec& codec, const Slot& slot) {
  const int64_t refused = RefusedIndex(slot.refusal[0]);
  if (refused < 0) return absl::OkStatus();
  const Part& fragment = part(slot.fragment);
  const int64_t first = refused / kChunk * kChunk;
  const int64_t values = std::min(kChunk, fragment.values - first);
  // It is as it was.
  std::vector<float> base(static_cast<size_t>(values));
  if (published_ != nullptr) {
    RETURN_IF_ERROR(Copy(base.data(), published_ + fragment.offset + first, values * kFloatBytes,
                         cudaMemcpyDeviceToHost, stream_));
    RETURN_IF_ERROR(stream_.Wait("fetching what was refused"));
  } else {
    RETURN_IF_ERROR(stream_.Wait("fetching what was refused"));
    std::copy_n(published_host_.data() + fragment.offset + first, values, base.begin());
  }
  const std::span<const uint8_t> codes(slot.codes.data() + EncodedBytes(codec, first),
                                       static_cast<size_t>(EncodedBytes(codec, values)));
  RETURN_IF_ERROR(
      Annotate(codec.Validate(codes, base), absl::StrCat("counted from value ", first)));
  return absl::InternalError(absl::StrCat("the device refuses value ", refused, " of fragment ",
                                          slot.fragment, ", the host does not"));
}

absl::Status ReplicaShard::FoldLate(int index, std::span<const uint8_t> object) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/false, index));
  ASSIGN_OR_RETURN(Slot* const slot, Upload(*codec_up_, index, object));
  RETURN_IF_ERROR(slot->copied.HoldUp(stream_.get()));
  FoldJob job{.values = fragment.values,
              .encoded = slot->on_device,
              .residual = residual_ + fragment.offset,
              .refusal = slot->refusal_on_device};
  ASSIGN_OR_RETURN(job.base, LoadPublished(fragment));
  LaunchFold(device_codec_up_, job, stream_.get());
  RETURN_IF_ERROR(CheckLaunches("folding a late delta"));
  RETURN_IF_ERROR(Copy(slot->refusal.data(), slot->refusal_on_device, sizeof(Refusal),
                       cudaMemcpyDeviceToHost, stream_));
  RETURN_IF_ERROR(stream_.Wait("folding a late delta"));
  const absl::Status status = DecodeStatus(*codec_up_, *slot);
  Release(slot);
  return status;
}

// --- Answers -------------------------------------------------------------------------------------

absl::Status ReplicaShard::StageAnswer(int index, std::span<const uint8_t> answer) {
  if (part(index).values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  ASSIGN_OR_RETURN(Slot* const slot, Upload(*codec_down_, index, answer));
  Slot* before = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(staged_[index], slot);
  }
  Abandon(before);
  return absl::OkStatus();
}

MergeJob ReplicaShard::LocalJob(int index, const float* published, float alpha) const {
  const Part& fragment = parts_[static_cast<size_t>(index)];
  return {.values = fragment.values,
          .base = published,
          .local = Local(index),
          .alpha = alpha,
          .beta = 1.0F - alpha,
          .held = fragment.held,
          .keep = keep_,
          .weights = shard_.weights,
          .pieces = fragment.table,
          .piece_count = static_cast<int>(fragment.pieces.size())};
}

absl::Status ReplicaShard::Merge(int index, std::span<const uint8_t> answer, float alpha) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  Slot* slot = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto staged = staged_.find(index);
    if (staged != staged_.end()) {
      slot = staged->second;
      staged_.erase(staged);
    }
  }
  if (slot == nullptr) {
    ASSIGN_OR_RETURN(slot, Upload(*codec_down_, index, answer));
  }
  RETURN_IF_ERROR(slot->copied.HoldUp(stream_.get()));
  RETURN_IF_ERROR(FollowTraining());
  ASSIGN_OR_RETURN(float* const published, LoadPublished(fragment));
  MergeJob job = LocalJob(index, published, alpha);
  job.encoded = slot->on_device;
  job.published = published;
  job.refusal = slot->refusal_on_device;
  LaunchMerge(device_codec_down_, job, stream_.get());
  RETURN_IF_ERROR(CheckLaunches("merging"));
  ReleaseHeld(fragment);
  RETURN_IF_ERROR(HoldUp(shard_.training));
  RETURN_IF_ERROR(StorePublished(fragment, published));
  return BeginHash(index, published, slot);
}

absl::Status ReplicaShard::BeginHash(int index, const float* published, Slot* answer) {
  const Part& fragment = part(index);
  ASSIGN_OR_RETURN(HashSlot* const hash, AcquireHash());
  hash->answer = answer;
  LaunchLeafHashes(published, fragment.leaves_on_device, std::ssize(fragment.leaves),
                   hash->on_device, stream_.get());
  RETURN_IF_ERROR(CheckLaunches("hashing the published copy"));
  RETURN_IF_ERROR(Copy(hash->checksums.data(), hash->on_device,
                       std::ssize(fragment.leaves) * int64_t{sizeof(unsigned long long)},
                       cudaMemcpyDeviceToHost, stream_));
  int64_t place = 0;
  for (const SharedRange& range : fragment.shared) {
    RETURN_IF_ERROR(Copy(hash->shared.data() + place,
                         reinterpret_cast<const uint8_t*>(published) + range.in_shard, range.bytes,
                         cudaMemcpyDeviceToHost, stream_));
    place += range.bytes;
  }
  if (answer != nullptr) {
    RETURN_IF_ERROR(Copy(answer->refusal.data(), answer->refusal_on_device, sizeof(Refusal),
                         cudaMemcpyDeviceToHost, stream_));
  }
  RETURN_IF_ERROR(hash->done.Record(stream_.get()));
  hashing_[index] = hash;
  return absl::OkStatus();
}

absl::Status ReplicaShard::FinishHash(int index, LeafSink& leaves) {
  const auto found = hashing_.find(index);
  if (found == hashing_.end()) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  HashSlot* const hash = found->second;
  hashing_.erase(found);
  RETURN_IF_ERROR(hash->done.Wait("waiting for the published copy's hash"));
  const Part& fragment = part(index);
  for (size_t i = 0; i < fragment.leaves.size(); ++i) {
    leaves.SetLeaf(fragment.leaf_numbers[i], hash->checksums[i]);
  }
  int64_t place = 0;
  for (const SharedRange& range : fragment.shared) {
    leaves.AddShared(range.in_fragment,
                     {hash->shared.data() + place, static_cast<size_t>(range.bytes)});
    place += range.bytes;
  }
  Slot* const answer = std::exchange(hash->answer, nullptr);
  free_hashes_.push_back(hash);
  if (answer == nullptr) return absl::OkStatus();
  const absl::Status status = DecodeStatus(*codec_down_, *answer);
  Release(answer);
  return status;
}

bool ReplicaShard::IsHashed(int index) {
  const auto found = hashing_.find(index);
  if (found == hashing_.end() || !UseDevice(shard_.device).ok()) return true;
  return found->second->done.IsReached();
}

absl::Status ReplicaShard::SetPublished(int index, std::span<const uint8_t> values) {
  const Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  float* published = published_ == nullptr ? nullptr : published_ + fragment.offset;
  if (published == nullptr) RETURN_IF_ERROR(stream_.Wait("the published copy"));
  for (const ShardPiece& piece : fragment.pieces) {
    const uint8_t* const from = values.data() + (piece.begin - fragment.begin) * kFloatBytes;
    if (published == nullptr) {
      std::memcpy(published_host_.data() + piece.offset, from,
                  static_cast<size_t>(piece.size() * kFloatBytes));
    } else {
      RETURN_IF_ERROR(Copy(published_ + piece.offset, from, piece.size() * kFloatBytes,
                           cudaMemcpyHostToDevice, stream_));
    }
  }
  if (published == nullptr) {
    ASSIGN_OR_RETURN(published, LoadPublished(fragment));
  }
  RETURN_IF_ERROR(BeginHash(index, published, /*answer=*/nullptr));
  return stream_.Wait("copying the published state");  // `values` may go.
}

absl::Status ReplicaShard::Mix(int index, float alpha) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(FollowTraining());
  ASSIGN_OR_RETURN(const float* const published, LoadPublished(fragment));
  LaunchMix(LocalJob(index, published, alpha), stream_.get());
  RETURN_IF_ERROR(CheckLaunches("mixing"));
  ReleaseHeld(fragment);
  return HoldUp(shard_.training);
}

// --- What is trained in flight -------------------------------------------------------------------

absl::Status ReplicaShard::Hold(int index) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  ASSIGN_OR_RETURN(float* const held, AcquireHeld(fragment));
  RETURN_IF_ERROR(FollowTraining());
  RETURN_IF_ERROR(
      Copy(held, Local(index), fragment.values * kFloatBytes, cudaMemcpyDeviceToDevice, stream_));
  return RecordSnapshot();
}

absl::Status ReplicaShard::CopyHeld(int index, std::span<float> values) {
  const Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(Copy(values.data() + (piece.begin - fragment.begin),
                         fragment.held + (piece.offset - fragment.offset),
                         piece.size() * kFloatBytes, cudaMemcpyDeviceToHost, stream_));
  }
  return stream_.Wait("copying local values in flight");
}

absl::Status ReplicaShard::SetHeld(int index, std::span<const float> values) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  ASSIGN_OR_RETURN(float* const held, AcquireHeld(fragment));
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(Copy(held + (piece.offset - fragment.offset),
                         values.data() + (piece.begin - fragment.begin), piece.size() * kFloatBytes,
                         cudaMemcpyHostToDevice, stream_));
  }
  return stream_.Wait("restoring local values in flight");
}

// --- Checkpoints ---------------------------------------------------------------------------------

absl::Status ReplicaShard::CopyOut(const float* from, const Part& fragment,
                                   std::span<float> arena) {
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(Copy(arena.data() + piece.begin, from + piece.offset,
                         piece.size() * kFloatBytes, cudaMemcpyDeviceToHost, stream_));
  }
  return absl::OkStatus();
}

absl::Status ReplicaShard::CopyPublished(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  if (published_ == nullptr) {
    RETURN_IF_ERROR(stream_.Wait("the published copy"));
    for (const ShardPiece& piece : shard_plan_.pieces(shard_.rank)) {
      std::copy_n(published_host_.data() + piece.offset, piece.size(), arena.begin() + piece.begin);
    }
    return absl::OkStatus();
  }
  for (const Part& fragment : parts_) RETURN_IF_ERROR(CopyOut(published_, fragment, arena));
  return stream_.Wait("copying the published copy");
}

absl::Status ReplicaShard::CopyResiduals(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  for (const Part& fragment : parts_) {
    if (fragment.keeps_residual) RETURN_IF_ERROR(CopyOut(residual_, fragment, arena));
  }
  return stream_.Wait("copying what error feedback keeps");
}

absl::Status ReplicaShard::Restore(std::span<const float> published,
                                   std::span<const float> residual) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  if (!residual.empty()) RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  for (const ShardPiece& piece : shard_plan_.pieces(shard_.rank)) {
    const int64_t bytes = piece.size() * kFloatBytes;
    if (published_ == nullptr) {
      std::memcpy(published_host_.data() + piece.offset, published.data() + piece.begin,
                  static_cast<size_t>(bytes));
    } else {
      RETURN_IF_ERROR(Copy(published_ + piece.offset, published.data() + piece.begin, bytes,
                           cudaMemcpyHostToDevice, stream_));
    }
    if (residual.empty()) continue;
    RETURN_IF_ERROR(Copy(residual_ + piece.offset, residual.data() + piece.begin, bytes,
                         cudaMemcpyHostToDevice, stream_));
  }
  return stream_.Wait("restoring the published copy");
}

}  // namespace causeway::worker::cuda
