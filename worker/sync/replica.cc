#include "worker/sync/replica.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_format.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

bool MirrorsGaps(const Codec& up, const Codec& down) {
  return up.needs_error_feedback() || down.needs_error_feedback();
}

void MirrorIntoGaps(const FragmentPlan& plan, int64_t begin, std::span<const float> base,
                    std::span<float> target, std::span<float> residual) {
  const int64_t end = begin + std::ssize(base);
  for (auto gap = std::ranges::lower_bound(plan.gaps(), begin, {}, &ArenaGap::begin);
       gap != plan.gaps().end() && gap->begin < end; ++gap) {
    for (int64_t i = gap->begin; i < gap->end; ++i) {
      const int64_t mirrored = gap->source + (i - gap->begin) % (gap->begin - gap->source);
      const auto to = static_cast<size_t>(i - begin);
      const auto from = static_cast<size_t>(mirrored - begin);
      target[to] = base[to] - (base[from] - target[from]);
      if (!residual.empty()) residual[to] = residual[from];
    }
  }
}

void MixValues(std::span<const float> published, std::span<const float> held, double keep_in_flight,
               float alpha, std::span<float> local) {
  const float beta = 1.0F - alpha;
  if (!held.empty()) {
    for (size_t i = 0; i < local.size(); ++i) {
      const double in_flight = double{local[i]} - double{held[i]};
      local[i] = static_cast<float>(double{published[i]} + keep_in_flight * in_flight);
    }
  } else if (alpha == 0) {
    std::ranges::copy(published, local.begin());
  } else {
    for (size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * published[i];
  }
}

size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  size_t bytes = 0;
  for (const v1::Codec id : {sync.codec_up(), sync.codec_down()}) {
    const Codec& codec = *FindCodec(id).value();
    for (int i = 0; i < plan.fragments(); ++i) {
      bytes += codec.EncodedBytes(static_cast<size_t>(plan.range(i).size()));
    }
  }
  int64_t largest = 0;
  for (int i = 0; i < plan.fragments(); ++i) largest = std::max(largest, plan.range(i).size());
  return bytes + static_cast<size_t>(largest) * sizeof(float);
}

namespace {

constexpr auto kLeaf = static_cast<int64_t>(kTreeLeafBytes);

absl::Status CheckBytes(const Codec& codec, size_t bytes, int64_t values) {
  const size_t expected = codec.EncodedBytes(static_cast<size_t>(values));
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%d values in %s take %d bytes, not %d", values,
                                                    codec.name(), expected, bytes));
}

}  // namespace

absl::StatusOr<EncodedObject> Replica::Delta::Encode() {
  EncodedObject object;
  object.bytes.resize(bytes_);
  for (const std::unique_ptr<ReplicaPart::Codes>& codes : codes_) {
    RETURN_IF_ERROR(codes->Read(object.bytes));
  }
  object.leaves = LeafChecksums(object.bytes);
  return object;
}

Replica::Replica(const FragmentPlan& plan, const v1::SyncConfig& sync,
                 std::vector<std::unique_ptr<ReplicaPart>> parts)
    : plan_(plan),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      parts_(std::move(parts)) {}

absl::Status Replica::Do(const PartCall& call) {
  absl::Status first;
  std::vector<ReplicaPart::Rest> rests;
  // Own parts are the first ones, and are done when they have begun: the others work meanwhile.
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    if (call.method == kPartCopyResiduals && !(*part)->KeepsResiduals()) continue;
    absl::StatusOr<ReplicaPart::Rest> rest = (*part)->Begin(call);
    first.Update(rest.status());
    if (!first.ok()) break;
    if (*rest != nullptr) rests.push_back(*std::move(rest));
  }
  for (const ReplicaPart::Rest& rest : rests) first.Update(rest());
  return first;
}

absl::StatusOr<std::unique_ptr<Replica::Delta>> Replica::Snapshot(int fragment) {
  std::vector<std::unique_ptr<ReplicaPart::Codes>> codes(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    ASSIGN_OR_RETURN(codes[i], parts_[i]->Snapshot(fragment));
  }
  const auto values = static_cast<size_t>(plan_.range(fragment).size());
  return std::make_unique<Delta>(codec_up_->EncodedBytes(values), std::move(codes));
}

absl::Status Replica::FoldLate(int fragment, std::span<const uint8_t> object) {
  RETURN_IF_ERROR(CheckBytes(*codec_up_, object.size(), plan_.range(fragment).size()));
  return Do({.method = kPartFoldLate, .fragment = fragment, .in = object});
}

absl::Status Replica::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  RETURN_IF_ERROR(CheckBytes(*codec_down_, answer.size(), plan_.range(fragment).size()));
  return Do({.method = kPartStageAnswer, .fragment = fragment, .in = answer});
}

absl::Status Replica::Merge(int fragment, std::span<const uint8_t> answer, float alpha) {
  RETURN_IF_ERROR(CheckBytes(*codec_down_, answer.size(), plan_.range(fragment).size()));
  return Do({.method = kPartMerge, .fragment = fragment, .alpha = alpha, .in = answer});
}

absl::StatusOr<uint64_t> Replica::FinishMerge(int fragment) {
  LeafSink hash;
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->AskForHash(fragment));
  }
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->FinishHash(fragment, hash));
  }
  return hash.Root(plan_.range(fragment).size() * static_cast<int64_t>(sizeof(float)));
}

bool Replica::IsMerged(int fragment) {
  return std::ranges::all_of(parts_, [&](const auto& part) { return part->IsHashed(fragment); });
}

absl::StatusOr<uint64_t> Replica::SetPublished(int fragment, std::span<const uint8_t> values) {
  RETURN_IF_ERROR(Do({.method = kPartSetPublished, .fragment = fragment, .in = values}));
  return FinishMerge(fragment);
}

absl::Status Replica::Mix(int fragment, float alpha) {
  return Do({.method = kPartMix, .fragment = fragment, .alpha = alpha});
}

absl::Status Replica::Hold(int fragment) { return Do({.method = kPartHold, .fragment = fragment}); }

absl::StatusOr<std::vector<float>> Replica::Held(int fragment) {
  std::vector<float> values(static_cast<size_t>(plan_.range(fragment).size()));
  RETURN_IF_ERROR(
      Do({.method = kPartCopyHeld, .fragment = fragment, .out = MutableBytesOf(values)}));
  return values;
}

absl::Status Replica::SetHeld(int fragment, std::span<const float> values) {
  return Do({.method = kPartSetHeld, .fragment = fragment, .in = BytesOf(values)});
}

absl::StatusOr<std::span<const float>> Replica::Published() {
  const std::span<const float> whole = parts_[0]->WholePublished();
  if (!whole.empty()) return whole;
  published_.resize(static_cast<size_t>(plan_.arena_size()));
  RETURN_IF_ERROR(Do({.method = kPartCopyPublished, .out = MutableBytesOf(published_)}));
  return published_;
}

absl::StatusOr<Replica::State> Replica::Save() {
  State state;
  state.published.resize(static_cast<size_t>(plan_.arena_size()));
  RETURN_IF_ERROR(Do({.method = kPartCopyPublished, .out = MutableBytesOf(state.published)}));
  if (std::ranges::any_of(parts_, [](const auto& part) { return part->KeepsResiduals(); })) {
    state.residual.resize(state.published.size());
    RETURN_IF_ERROR(Do({.method = kPartCopyResiduals, .out = MutableBytesOf(state.residual)}));
  }
  return state;
}

absl::Status Replica::Restore(State state) {
  RETURN_IF_ERROR(Do({.method = kPartRestorePublished, .in = BytesOf(state.published)}));
  if (state.residual.empty()) return absl::OkStatus();
  return Do({.method = kPartRestoreResidual, .in = BytesOf(state.residual)});
}

LeafRanges::LeafRanges(int64_t begin, int64_t end, int64_t total) {
  first_leaf = (begin + kLeaf - 1) / kLeaf;
  const int64_t behind = end == total ? (end + kLeaf - 1) / kLeaf : end / kLeaf;
  leaves = std::max<int64_t>(behind - first_leaf, 0);
  const int64_t whole_begin = std::min(first_leaf * kLeaf, end);
  const int64_t whole_end = leaves == 0 ? whole_begin : std::min(behind * kLeaf, end);
  if (begin < whole_begin) shared.push_back({begin, whole_begin});
  if (whole_end < end) shared.push_back({whole_end, end});
}

void LeafSink::SetLeaf(int64_t leaf, uint64_t checksum) {
  taken_.add_numbers(leaf);
  taken_.add_checksums(checksum);
}

void LeafSink::AddShared(int64_t offset, std::span<const uint8_t> bytes) {
  taken_.add_offsets(offset);
  taken_.add_shared(bytes.data(), bytes.size());
}

absl::StatusOr<uint64_t> LeafSink::Root(int64_t bytes) const {
  std::vector<uint64_t> checksums(static_cast<size_t>((bytes + kLeaf - 1) / kLeaf));
  std::map<int64_t, std::string> whole;  // Leaves of shared bytes.
  bool fits = taken_.numbers_size() == taken_.checksums_size() &&
              taken_.offsets_size() == taken_.shared_size();
  for (int i = 0; fits && i < taken_.numbers_size(); ++i) {
    const int64_t leaf = taken_.numbers(i);
    fits = leaf >= 0 && leaf < std::ssize(checksums);
    if (fits) checksums[static_cast<size_t>(leaf)] = taken_.checksums(i);
  }
  for (int i = 0; fits && i < taken_.shared_size(); ++i) {
    int64_t offset = taken_.offsets(i);
    absl::string_view part = taken_.shared(i);
    fits = offset >= 0 && offset <= bytes && std::ssize(part) <= bytes - offset;
    while (fits && !part.empty()) {
      const int64_t leaf = offset / kLeaf;
      std::string& to = whole[leaf];
      to.resize(static_cast<size_t>(std::min(kLeaf, bytes - leaf * kLeaf)));
      const auto place = static_cast<size_t>(offset % kLeaf);
      const size_t size = std::min(part.size(), to.size() - place);
      part.copy(&to[place], size);
      offset += static_cast<int64_t>(size);
      part.remove_prefix(size);
    }
  }
  if (!fits) {
    return absl::DataLossError("another process of this site sends leaves beyond the fragment");
  }
  for (const auto& [leaf, content] : whole) {
    checksums[static_cast<size_t>(leaf)] = Checksum64(absl::string_view(content));
  }
  return TreeRoot(checksums);
}

}  // namespace causeway::worker
