#include "worker/backend/cuda/kernels/device_part.h"

#include <algorithm>
#include <cstring>

#include "common/base/checksum.h"

namespace causeway::worker::cuda {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kCodecChunk);
// Names what is copied.
constexpr char kPublished[] = "copying published values";
constexpr char kCodes[] = "copying codes";
constexpr char kHash[] = "copying a hash";

}  // namespace

DevicePart::DevicePart(const FragmentPlan& plan, const ShardPlan& shard_plan,
                       const v1::SyncConfig& sync, const DeviceShard& shard,
                       DevicePartOptions options)
    : options_(std::move(options)),
      plan_(plan),
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
    most_.values = std::max(most_.values, fragment.values);
    most_.leaves = std::max<int64_t>(most_.leaves, std::ssize(fragment.leaves));
    most_.shared_bytes = std::max(most_.shared_bytes, fragment.shared_bytes);
  }
}

DevicePart::~DevicePart() {
  (void)UseDevice(shard_.device);
  // Nothing is freed that the device still reads; how what is under way ends is of no interest.
  for (const Stream* const stream : {&stream_, &up_, &down_}) {
    if (stream->get() != nullptr) stream->Wait("the end of synchronization").IgnoreError();
  }
}

// Which leaves are hashed here, and which bytes of others are here.
void DevicePart::LayOut(Part& fragment) const {
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

std::vector<MirroredGap> DevicePart::GapsOf(const Part& fragment) const {
  std::vector<MirroredGap> gaps;
  if (!MirrorsGaps(*codec_up_, *codec_down_)) return gaps;
  for (const ShardPiece& piece : fragment.pieces) {
    const int64_t move = piece.offset - fragment.offset - piece.begin;
    for (auto gap = std::ranges::lower_bound(plan_.gaps(), piece.begin, {}, &ArenaGap::begin);
         gap != plan_.gaps().end() && gap->begin < piece.end; ++gap) {
      gaps.push_back({gap->begin + move, gap->end + move, gap->source + move});
    }
  }
  return gaps;
}

absl::StatusOr<std::unique_ptr<DevicePart>> DevicePart::Create(const FragmentPlan& plan,
                                                               const ShardPlan& shard_plan,
                                                               const v1::SyncConfig& sync,
                                                               const DeviceShard& shard,
                                                               DevicePartOptions options) {
  RETURN_IF_ERROR(UseDevice(shard.device));
  std::unique_ptr<DevicePart> part(
      new DevicePart(plan, shard_plan, sync, shard, std::move(options)));
  RETURN_IF_ERROR(part->Allocate(sync));
  return part;
}

absl::Status DevicePart::Allocate(const v1::SyncConfig& sync) {
  ASSIGN_OR_RETURN(stream_, Stream::Create(/*urgent=*/true));
  ASSIGN_OR_RETURN(up_, Stream::Create());
  ASSIGN_OR_RETURN(down_, Stream::Create());
  ASSIGN_OR_RETURN(boundary_, Event::Create());
  ASSIGN_OR_RETURN(merged_, Event::Create());
  slots_ = std::make_unique<PartSlots>(*codec_up_, *codec_down_, most_);
  const int64_t values = shard_plan_.shard_size(shard_.rank);
  if (options_.published_on_device) {
    ASSIGN_OR_RETURN(published_,
                     slots_->Allocate<float>("published copy", values, "--published=host"));
    RETURN_IF_ERROR(ClearAsync(published_, values, stream_.get(), "clearing the published copy"));
  } else {
    ASSIGN_OR_RETURN(loaded_, slots_->Allocate<float>("a fragment of the published copy",
                                                      most_.values, "sync.fragments"));
    ASSIGN_OR_RETURN(published_host_, PinnedBuffer<float>::Create(static_cast<size_t>(values)));
    std::fill_n(published_host_.data(), values, 0.0F);
  }
  for (Part& fragment : parts_) {
    std::vector<ArenaPiece> pieces;
    for (const ShardPiece& piece : fragment.pieces) {
      pieces.push_back({.first = piece.offset - fragment.offset, .begin = piece.begin});
    }
    const std::vector<MirroredGap> gaps = GapsOf(fragment);
    fragment.gap_count = static_cast<int>(gaps.size());
    ASSIGN_OR_RETURN(fragment.gaps, Table("tables of gaps", gaps));
    ASSIGN_OR_RETURN(fragment.table, Table("tables of pieces", pieces));
    ASSIGN_OR_RETURN(fragment.leaves_on_device, Table("tables of leaves", fragment.leaves));
  }
  if (sync.error_feedback()) RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
  RETURN_IF_ERROR(slots_->Prepare(plan_.fragments(), sync));
  RETURN_IF_ERROR(LoadKernels(sync));
  return stream_.Wait("clearing the published copy");
}

template <typename Row>
absl::StatusOr<const Row*> DevicePart::Table(const char* purpose, const std::vector<Row>& rows) {
  ASSIGN_OR_RETURN(Row* const table, slots_->Allocate<Row>(purpose, std::ssize(rows), ""));
  RETURN_IF_ERROR(CopyAsync(table, rows.data(), std::ssize(rows), stream_.get(), purpose));
  RETURN_IF_ERROR(stream_.Wait("copying tables"));
  return table;
}

absl::Status DevicePart::LoadKernels(const v1::SyncConfig& sync) {
  constexpr int64_t kValues = 256;
  constexpr char kZeros[] = "clearing zeros";
  ASSIGN_OR_RETURN(Slot* const slot, slots_->Acquire(0));
  ASSIGN_OR_RETURN(float* const zeros, slots_->Allocate<float>("zeros", 3 * kValues, ""));
  RETURN_IF_ERROR(ClearAsync(zeros, 3 * kValues, stream_.get(), kZeros));
  RETURN_IF_ERROR(ClearAsync(slot->refusal_on_device, 1, stream_.get(), kZeros));
  const int64_t values = std::min(kValues, most_.values);
  LaunchEncode(device_codec_up_,
               {.values = values,
                .base = zeros,
                .target = zeros,
                .residual = sync.error_feedback() ? zeros + kValues : nullptr,
                .decay = decay_,
                .out = slot->on_device,
                .refusal = slot->refusal_on_device},
               stream_.get());
  RETURN_IF_ERROR(
      ClearAsync(slot->on_device, EncodedBytes(*codec_down_, values), stream_.get(), kZeros));
  LaunchMerge(device_codec_down_,
              {.values = values,
               .encoded = slot->on_device,
               .base = zeros,
               .published = zeros + 2 * kValues,
               .refusal = slot->refusal_on_device},
              stream_.get());
  RETURN_IF_ERROR(CheckLaunches("loading kernels"));
  slots_->Release(slot);
  return absl::OkStatus();  // Allocate waits.
}

absl::Status DevicePart::EnsureResiduals(bool of_all_fragments, int fragment) {
  if (residual_ == nullptr) {
    const int64_t values = shard_plan_.shard_size(shard_.rank);
    ASSIGN_OR_RETURN(
        residual_, slots_->Allocate<float>("error feedback", values, "sync.error_feedback: false"));
    RETURN_IF_ERROR(
        ClearAsync(residual_, values, stream_.get(), "clearing what error feedback keeps"));
  }
  if (of_all_fragments) {
    for (Part& each : parts_) each.keeps_residual = true;
  } else {
    part(fragment).keeps_residual = true;
  }
  return absl::OkStatus();
}

// --- Streams -------------------------------------------------------------------------------------

absl::Status DevicePart::FollowTraining() {
  RETURN_IF_ERROR(boundary_.Record(shard_.training));
  return boundary_.HoldUp(stream_.get());
}

absl::Status DevicePart::HoldUp(cudaStream_t stream) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(merged_.Record(stream_.get()));
  return merged_.HoldUp(stream);
}

float* DevicePart::Local(int index) const {
  if (shard_.locals != nullptr) return shard_.locals[index];
  return shard_.master + parts_[static_cast<size_t>(index)].offset;
}

absl::StatusOr<float*> DevicePart::LoadPublished(const Part& fragment) {
  if (published_ != nullptr) return published_ + fragment.offset;
  RETURN_IF_ERROR(CopyAsync(loaded_, published_host_.data() + fragment.offset, fragment.values,
                            stream_.get(), kPublished));
  return loaded_;
}

absl::Status DevicePart::StorePublished(const Part& fragment, const float* published) {
  if (published_ != nullptr) return absl::OkStatus();
  return CopyAsync(published_host_.data() + fragment.offset, published, fragment.values,
                   stream_.get(), kPublished);
}

absl::Status DevicePart::RecordSnapshot() {
  if (shard_.snapshots_done == nullptr) return absl::OkStatus();
  return CheckCuda(cudaEventRecord(shard_.snapshots_done, stream_.get()), "recording a snapshot");
}

// --- Verbs ---------------------------------------------------------------------------------------

absl::Status DevicePart::Do(const PartCall& call) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  switch (call.method) {
    case kPartCopyPublished:
    case kPartCopyResiduals:
    case kPartRestorePublished:
    case kPartRestoreResidual:
      return CopyArena(call);
    case kPartSnapshot:
    case kPartFinishHash:
      return absl::InternalError("Snapshot and FinishHash are methods of their own");
    case kPartCopyLocal:
    case kPartSetLocal:
    case kPartCopyGaps:
    case kPartSetGaps:
      if (options_.use_local) return options_.use_local(call);
      return absl::UnimplementedError("whoever has a device's local values copies them");
    default:
      break;
  }
  if (part(call.fragment).values > 0) RETURN_IF_ERROR(DoToFragment(call));
  const bool changes_weights = call.method == kPartMerge || call.method == kPartMix;
  if (changes_weights && options_.weights_changed) options_.weights_changed(call.fragment);
  return absl::OkStatus();
}

// --- Deltas --------------------------------------------------------------------------------------

// A slot's codes; none where the rank has nothing of the fragment.
class DevicePart::SlotCodes final : public ReplicaPart::Codes {
 public:
  SlotCodes(DevicePart& part, Slot* slot) : part_(part), slot_(slot) {}
  ~SlotCodes() override { part_.Abandon(slot_); }
  absl::Status Read(std::span<uint8_t> object) override {
    return part_.Read(std::exchange(slot_, nullptr), object);
  }

 private:
  DevicePart& part_;
  Slot* slot_;
};

absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> DevicePart::Snapshot(int index) {
  Part& fragment = part(index);
  if (fragment.values == 0) return std::make_unique<SlotCodes>(*this, nullptr);
  RETURN_IF_ERROR(UseDevice(shard_.device));
  ASSIGN_OR_RETURN(Slot* const slot, slots_->Acquire(index));
  RETURN_IF_ERROR(FollowTraining());
  EncodeJob job{.values = fragment.values,
                .target = Local(index),
                .gaps = fragment.gaps,
                .gap_count = fragment.gap_count,
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
  RETURN_IF_ERROR(ClearAsync(slot->refusal_on_device, 1, stream_.get(), "encoding"));
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
  RETURN_IF_ERROR(CopyAsync(slot->codes.data(), slot->on_device,
                            EncodedBytes(*codec_up_, fragment.values), down_.get(), kCodes));
  RETURN_IF_ERROR(CopyAsync(slot->refusal.data(), slot->refusal_on_device, 1, down_.get(), kCodes));
  RETURN_IF_ERROR(slot->copied.Record(down_.get()));
  return std::make_unique<SlotCodes>(*this, slot);
}

void DevicePart::Abandon(Slot* slot) {
  if (slot == nullptr) return;
  (void)UseDevice(shard_.device);
  // A device that is lost does not write any more.
  slot->copied.Wait("codes that nobody reads").IgnoreError();
  slots_->Release(slot);
}

absl::Status DevicePart::Read(Slot* slot, std::span<uint8_t> object) {
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
  slots_->Release(slot);
  return status;
}

absl::StatusOr<DevicePart::Slot*> DevicePart::Upload(const Codec& codec, int index,
                                                     std::span<const uint8_t> object) {
  const Part& fragment = part(index);
  ASSIGN_OR_RETURN(Slot* const slot, slots_->Acquire(index));
  for (const ShardPiece& piece : fragment.pieces) {
    std::memcpy(slot->codes.data() + EncodedBytes(codec, piece.offset - fragment.offset),
                object.data() + EncodedBytes(codec, piece.begin - fragment.begin),
                static_cast<size_t>(EncodedBytes(codec, piece.size())));
  }
  RETURN_IF_ERROR(CopyAsync(slot->on_device, slot->codes.data(),
                            EncodedBytes(codec, fragment.values), up_.get(), kCodes));
  RETURN_IF_ERROR(ClearAsync(slot->refusal_on_device, 1, up_.get(), "clearing a refusal"));
  RETURN_IF_ERROR(slot->copied.Record(up_.get()));
  return slot;
}

absl::Status DevicePart::DecodeStatus(const Codec& codec, const Slot& slot) {
  const int64_t refused = RefusedIndex(slot.refusal[0]);
  if (refused < 0) return absl::OkStatus();
  const Part& fragment = part(slot.fragment);
  const int64_t first = refused / kChunk * kChunk;
  const int64_t values = std::min(kChunk, fragment.values - first);
  // It is as it was.
  std::vector<float> base(static_cast<size_t>(values));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  RETURN_IF_ERROR(CopyAsync(base.data(), PublishedValues(slot.fragment) + first, values,
                            stream_.get(), kPublished));
  RETURN_IF_ERROR(stream_.Wait("fetching what was refused"));
  const std::span<const uint8_t> codes(slot.codes.data() + EncodedBytes(codec, first),
                                       static_cast<size_t>(EncodedBytes(codec, values)));
  RETURN_IF_ERROR(
      Annotate(codec.Validate(codes, base), absl::StrCat("counted from value ", first)));
  return absl::InternalError(absl::StrCat("the device refuses value ", refused, " of fragment ",
                                          slot.fragment, ", the host does not"));
}

absl::Status DevicePart::FoldLate(int index, std::span<const uint8_t> object) {
  Part& fragment = part(index);
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
  RETURN_IF_ERROR(
      CopyAsync(slot->refusal.data(), slot->refusal_on_device, 1, stream_.get(), kCodes));
  RETURN_IF_ERROR(stream_.Wait("folding a late delta"));
  const absl::Status status = DecodeStatus(*codec_up_, *slot);
  slots_->Release(slot);
  return status;
}

// --- Answers -------------------------------------------------------------------------------------

absl::Status DevicePart::StageAnswer(int index, std::span<const uint8_t> answer) {
  ASSIGN_OR_RETURN(Slot* const slot, Upload(*codec_down_, index, answer));
  Slot* before = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(staged_[index], slot);
  }
  Abandon(before);
  return absl::OkStatus();
}

MergeJob DevicePart::LocalJob(int index, const float* published, float alpha) const {
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

absl::Status DevicePart::Merge(int index, std::span<const uint8_t> answer, float alpha) {
  Part& fragment = part(index);
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

absl::Status DevicePart::BeginHash(int index, const float* published, Slot* answer) {
  const Part& fragment = part(index);
  ASSIGN_OR_RETURN(HashSlot* const hash, slots_->AcquireHash());
  hash->answer = answer;
  LaunchLeafHashes(published, fragment.leaves_on_device, std::ssize(fragment.leaves),
                   hash->on_device, stream_.get());
  RETURN_IF_ERROR(CheckLaunches("hashing the published copy"));
  RETURN_IF_ERROR(CopyAsync(hash->checksums.data(), hash->on_device, std::ssize(fragment.leaves),
                            stream_.get(), kHash));
  int64_t place = 0;
  for (const SharedRange& range : fragment.shared) {
    RETURN_IF_ERROR(CopyAsync(hash->shared.data() + place,
                              reinterpret_cast<const uint8_t*>(published) + range.in_shard,
                              range.bytes, stream_.get(), kHash));
    place += range.bytes;
  }
  if (answer != nullptr) {
    RETURN_IF_ERROR(
        CopyAsync(answer->refusal.data(), answer->refusal_on_device, 1, stream_.get(), kCodes));
  }
  RETURN_IF_ERROR(hash->done.Record(stream_.get()));
  hashing_[index] = hash;
  return absl::OkStatus();
}

absl::Status DevicePart::FinishHash(int index, LeafSink& leaves) {
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
  slots_->ReleaseHash(hash);
  if (answer == nullptr) return absl::OkStatus();
  const absl::Status status = DecodeStatus(*codec_down_, *answer);
  slots_->Release(answer);
  return status;
}

bool DevicePart::IsHashed(int index) {
  const auto found = hashing_.find(index);
  if (found == hashing_.end() || !UseDevice(shard_.device).ok()) return true;
  return found->second->done.IsReached();
}

absl::Status DevicePart::Mix(int index, float alpha) {
  Part& fragment = part(index);
  RETURN_IF_ERROR(FollowTraining());
  ASSIGN_OR_RETURN(const float* const published, LoadPublished(fragment));
  LaunchMix(LocalJob(index, published, alpha), stream_.get());
  RETURN_IF_ERROR(CheckLaunches("mixing"));
  ReleaseHeld(fragment);
  return HoldUp(shard_.training);
}

}  // namespace causeway::worker::cuda
