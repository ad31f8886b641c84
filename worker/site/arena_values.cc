// The values of a site, wherever they are: in its arena, on a device, or with other ranks.
#include <algorithm>

#include "worker/site/arena_site.h"

namespace causeway::worker {

absl::StatusOr<std::span<const float>> ArenaSite::published() {
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
    RETURN_IF_ERROR(ranks_->CopyLocal(fragment, whole));
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
    if (values.size() < whole.size()) RETURN_IF_ERROR(ranks_->CopyLocal(fragment, whole));
    std::ranges::copy(values, whole.begin() + first);
    return ranks_->SetLocal(fragment, whole);
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

absl::StatusOr<std::vector<float>> ArenaSite::WholeOfRanks(int fragment) {
  std::vector<float> local;
  if (ranks_ == nullptr || match_.gaps[static_cast<size_t>(fragment)].empty()) return local;
  local.resize(static_cast<size_t>(member_->plan().range(fragment).size()));
  RETURN_IF_ERROR(CopyLocal(fragment, 0, local));
  return local;
}

absl::StatusOr<std::vector<float>> ArenaSite::Gaps() {
  std::vector<float> values;
  for (int i = 0; i < member_->plan().fragments(); ++i) {
    const int64_t begin = member_->plan().range(i).begin;
    const std::vector<ArenaRange>& gaps = match_.gaps[static_cast<size_t>(i)];
    ASSIGN_OR_RETURN(const std::vector<float> local, WholeOfRanks(i));
    for (const ArenaRange& gap : gaps) {
      values.resize(values.size() + static_cast<size_t>(gap.end - gap.begin));
      const auto here = std::span(values).last(static_cast<size_t>(gap.end - gap.begin));
      if (local.empty()) {
        RETURN_IF_ERROR(CopyLocal(i, gap.begin - begin, here));
      } else {
        std::copy_n(local.begin() + (gap.begin - begin), here.size(), here.begin());
      }
    }
  }
  return values;
}

absl::Status ArenaSite::SetGaps(std::span<const float> values) {
  for (int i = 0; i < member_->plan().fragments(); ++i) {
    const int64_t begin = member_->plan().range(i).begin;
    const std::vector<ArenaRange>& gaps = match_.gaps[static_cast<size_t>(i)];
    ASSIGN_OR_RETURN(std::vector<float> local, WholeOfRanks(i));
    for (const ArenaRange& gap : gaps) {
      const auto here = values.first(static_cast<size_t>(gap.end - gap.begin));
      values = values.subspan(here.size());
      if (local.empty()) {
        RETURN_IF_ERROR(SetLocal(i, gap.begin - begin, here));
      } else {
        std::ranges::copy(here, local.begin() + (gap.begin - begin));
      }
    }
    if (!local.empty()) RETURN_IF_ERROR(SetLocal(i, 0, local));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
