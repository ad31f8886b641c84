// The values of a site, wherever they are: in its arena, on devices, or with other ranks.
#include <algorithm>

#include "worker/site/arena_site.h"

namespace causeway::worker {
namespace {

PartCall CopyOf(int fragment, std::span<float> values) {
  return {.method = kPartCopyLocal, .fragment = fragment, .out = MutableBytesOf(values)};
}

}  // namespace

absl::Status SiteValues::Match(std::span<const GivenTensor> tensors,
                               const std::vector<TensorShare>& shares, int ranks) {
  ASSIGN_OR_RETURN(match, MatchTensors(config, plan, tensors));
  for (const std::vector<causeway_range>& of_fragment : match.ranges) {
    ranges.insert(ranges.end(), of_fragment.begin(), of_fragment.end());
  }
  if (ranks == 1) {
    shards = ShardPlan::Whole(plan);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(shards, PlanShares(plan, match, tensors, shares, ranks));
  pieces = PiecesOf(*shards);
  return absl::OkStatus();
}

absl::Status SiteValues::Open(int rank, const std::optional<DeviceOptions>& on_device) {
  if (on_device.has_value()) {
    device_number = on_device->devices.front();
    for (const int device : on_device->devices) {
      ASSIGN_OR_RETURN(devices.emplace_back(), OpenDeviceValues(plan, *shards, rank++, device,
                                                                config.sync(), match, *on_device));
    }
  } else {
    ASSIGN_OR_RETURN(share,
                     HostShare::Create(plan, *shards, rank, config.sync(), Untrained(match)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReplicaPart>> SiteValues::MakePart(size_t device) {
  return share != nullptr ? share->MakePart() : devices[device]->MakePart();
}

absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> SiteValues::MakeParts() {
  std::vector<std::unique_ptr<ReplicaPart>> parts(std::max<size_t>(1, devices.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    ASSIGN_OR_RETURN(parts[i], MakePart(i));
  }
  return parts;
}

std::span<const causeway_range> SiteValues::Ranges(int fragment) const {
  return fragment == CAUSEWAY_ALL ? ranges : match.ranges[static_cast<size_t>(fragment)];
}

absl::Status ArenaSite::NoReplica() {
  return absl::FailedPreconditionError("there are no values: the last replica was not made");
}

absl::StatusOr<std::span<const float>> ArenaSite::published() {
  if (replica_ == nullptr) return NoReplica();
  if (values_.share != nullptr) return values_.share->published();
  return member_->sync().published();
}

absl::Status ArenaSite::Settle(bool touched) {
  return ranks_ == nullptr || !touched ? absl::OkStatus() : ranks_->Settle();
}

absl::Status ArenaSite::CopyLocal(int fragment, int64_t first, std::span<float> values) {
  const auto size = static_cast<size_t>(member_->plan().range(fragment).size());
  if (values.size() == size) return OnReplica(CopyOf(fragment, values));
  std::vector<float> whole(size);
  RETURN_IF_ERROR(OnReplica(CopyOf(fragment, whole)));
  std::copy_n(whole.begin() + first, values.size(), values.begin());
  return absl::OkStatus();
}

absl::Status ArenaSite::SetLocal(int fragment, int64_t first, std::span<const float> values) {
  std::vector<float> whole(static_cast<size_t>(member_->plan().range(fragment).size()));
  if (values.size() < whole.size()) RETURN_IF_ERROR(OnReplica(CopyOf(fragment, whole)));
  std::ranges::copy(values, whole.begin() + first);
  return OnReplica({.method = kPartSetLocal, .fragment = fragment, .in = BytesOf(whole)});
}

std::vector<float> ArenaSite::GapsIn(std::span<const float> arena) const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(values_.match.gap_values));
  for (const auto& of_fragment : values_.match.gaps) {
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
