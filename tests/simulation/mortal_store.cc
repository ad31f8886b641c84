#include "tests/simulation/mortal_store.h"

namespace causeway::simulation {
namespace {

// The share of deaths that leave a process behind whose disk has failed.
constexpr double kDiskFails = 0.3;

absl::Status DrawError(World& world) {
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kInternal, absl::StatusCode::kUnknown, absl::StatusCode::kDataLoss,
      absl::StatusCode::kUnavailable};
  return {kCodes[world.Between(0, 3)], "the disk failed"};
}

}  // namespace

absl::Status MortalStore::Write(absl::string_view call, absl::FunctionRef<void(Kept&)> change) {
  if (!Strikes()) return MemoryStore::Write(call, change);
  World& world = *options_.world;
  const bool dies = !world.Chance(kDiskFails);
  const bool takes_effect = world.Chance(0.5);
  world.Count(!dies          ? "disks_failed"
              : takes_effect ? "deaths_after_a_save"
                             : "deaths_before_a_save");
  world.Trace(dies ? "the coordinator dies " : "the disk fails ",
              takes_effect ? "after " : "before ", call, " took effect");
  if (takes_effect) RETURN_IF_ERROR(MemoryStore::Write(call, change));
  FailWith(DrawError(world));
  (dies ? options_.on_death : options_.on_disk_failure)();
  return failure();
}

absl::Status MortalStore::SaveContribution(const v1::Contribution& record,
                                           std::span<const uint8_t> object) {
  if (Strikes()) {
    options_.world->Count("disks_full");
    options_.world->Trace("the disk is full for the delta of ", record.header().worker_id());
    options_.auditor->NoRoom(record.header().fragment());
    return absl::ResourceExhaustedError("the disk is full");
  }
  return MemoryStore::SaveContribution(record, object);
}

absl::Status MortalStore::SaveMembers(std::span<const v1::Member> members) {
  // One by one: it may die between two of them.
  for (const v1::Member& member : members) {
    const bool well = failure().ok();
    const absl::Status status = MemoryStore::SaveMembers({&member, 1});
    if (well && !status.ok()) options_.auditor->MembershipUnsure(member.worker_id());
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace causeway::simulation
