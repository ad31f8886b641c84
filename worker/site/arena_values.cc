// The values of a site, wherever they are: in its arena, on a device, or with other ranks.
#include <algorithm>

#include "worker/site/arena_site.h"

namespace causeway::worker {
namespace {

PartCall CopyOf(int fragment, std::span<float> values) {
  return {.method = kPartCopyLocal, .fragment = fragment, .out = MutableBytesOf(values)};
}

}  // namespace

absl::Status ArenaSite::NoReplica() {
  return absl::FailedPreconditionError("there are no values: the last replica was not made");
}

absl::StatusOr<std::span<const float>> ArenaSite::published() {
  if (replica_ == nullptr) return NoReplica();
  if (share_ != nullptr) return share_->published();
  return member_->sync().published();
}

absl::StatusOr<std::unique_ptr<ReplicaPart>> ArenaSite::MakePart() {
  return device_ != nullptr ? device_->MakePart() : share_->MakePart();
}

absl::Status ArenaSite::Settle(bool touched) {
  return ranks_ == nullptr || !touched ? absl::OkStatus() : ranks_->Settle();
}

absl::Status ArenaSite::CopyLocal(int fragment, int64_t first, std::span<float> values) {
  const FragmentRange& range = member_->plan().range(fragment);
  if (device_ != nullptr && ranks_ == nullptr) return device_->CopyLocal(fragment, first, values);
  if (ranks_ != nullptr) {
    std::vector<float> whole(static_cast<size_t>(range.size()));
    RETURN_IF_ERROR(OnReplica(CopyOf(fragment, whole)));
    std::copy_n(whole.begin() + first, values.size(), values.begin());
  } else {
    std::copy_n(share_->arena().begin() + range.begin + first, values.size(), values.begin());
  }
  return absl::OkStatus();
}

absl::Status ArenaSite::SetLocal(int fragment, int64_t first, std::span<const float> values) {
  const FragmentRange& range = member_->plan().range(fragment);
  if (device_ != nullptr && ranks_ == nullptr) return device_->SetLocal(fragment, first, values);
  if (ranks_ != nullptr) {
    std::vector<float> whole(static_cast<size_t>(range.size()));
    if (values.size() < whole.size()) RETURN_IF_ERROR(OnReplica(CopyOf(fragment, whole)));
    std::ranges::copy(values, whole.begin() + first);
    return OnReplica({.method = kPartSetLocal, .fragment = fragment, .in = BytesOf(whole)});
  }
  std::ranges::copy(values, share_->arena().begin() + range.begin + first);
  return absl::OkStatus();
}

std::vector<float> ArenaSite::GapsIn(std::span<const float> arena) const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(match_.gap_values));
  for (const auto& of_fragment : match_.gaps) {
    for (const ArenaRange& gap : of_fragment) {
      values.insert(values.end(), arena.begin() + gap.begin, arena.begin() + gap.end);
    }
  }
  return values;
}

absl::Status ArenaSite::MoveGaps(PartMethod method, std::span<float> gaps) {
  for (int i = 0; i < member_->plan().fragments(); ++i) {
    const std::span<float> here = gaps.first(static_cast<size_t>(GapSize(member_->plan(), i)));
    gaps = gaps.subspan(here.size());
    if (here.empty()) continue;
    PartCall call = {.method = method, .fragment = i};
    if (method == kPartSetGaps) {
      call.in = BytesOf(here);
    } else {
      call.out = MutableBytesOf(here);
    }
    RETURN_IF_ERROR(OnReplica(call));
  }
  return absl::OkStatus();
}

absl::Status ArenaSite::OnReplica(const PartCall& call) {
  return replica_ != nullptr ? replica_->Do(call) : NoReplica();
}

}  // namespace causeway::worker
