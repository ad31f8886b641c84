// Holds a process's part of the run's values, wherever they are: in an arena, or on devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/site/device_values.h"
#include "worker/sync/host_part.h"

namespace causeway::worker {

struct SiteValues {
  // Both outlive it.
  SiteValues(const v1::RunConfig& of_run, const FragmentPlan& cut) : config(of_run), plan(cut) {}

  // First. Ranks are processes, or devices of one. Of one alone, `shares` do not count. Errors of
  // MatchTensors and PlanShares.
  absl::Status Match(std::span<const GivenTensor> tensors, const std::vector<TensorShare>& shares,
                     int ranks);
  // Then makes room for that rank's values, or from it on for a rank's on each device. Errors of
  // OpenDeviceValues and HostShare.
  absl::Status Open(int rank, const std::optional<DeviceOptions>& on_device);

  // One for each device; in an arena one.
  absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> MakeParts();
  absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart(size_t device = 0);
  // Whether the local values of a fragment are known: with values on devices, if all of these were
  // gathered from last.
  bool HasLocal(int fragment) const {
    return std::ranges::all_of(
        devices, [fragment](const auto& device) { return device->HasGathered(fragment); });
  }
  // Empty with values on devices; of several ranks, this one's pieces count.
  std::span<float> arena() { return share == nullptr ? std::span<float>() : share->arena(); }
  // The pieces of one fragment, or with CAUSEWAY_ALL of all.
  std::span<const causeway_range> Ranges(int fragment) const;

  const v1::RunConfig& config;
  const FragmentPlan& plan;
  TensorMatch match;
  std::vector<causeway_range> ranges;  // Of all fragments.
  std::optional<ShardPlan> shards;
  std::vector<std::vector<causeway_piece>> pieces;  // What each rank owns; empty of one alone.
  // One of them; both outlive the replica, and the ranks.
  std::vector<std::unique_ptr<DeviceValues>> devices;
  std::unique_ptr<HostShare> share;
  int device_number = -1;  // Of the first device.
};

}  // namespace causeway::worker
