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

absl::Status MortalStore::Write(const char* what, const std::function<absl::Status()>& write) {
  RETURN_IF_ERROR(failure_);
  World& world = *options_.world;
  if (!world.faulty() || !world.Chance(options_.death_rate)) return write();
  const bool dies = !world.Chance(kDiskFails);
  const bool takes_effect = world.Chance(0.5);
  world.Count(!dies          ? Happening::kDiskFailed
              : takes_effect ? Happening::kDiedAfterSave
                             : Happening::kDiedBeforeSave);
  world.Trace(dies ? "the coordinator dies " : "the disk fails ",
              takes_effect ? "after " : "before ", what, " took effect");
  if (takes_effect) RETURN_IF_ERROR(write());
  failure_ = DrawError(world);
  (dies ? options_.on_death : options_.on_disk_failure)();
  return failure_;
}

absl::StatusOr<std::optional<server::RecoveredRun>> MortalStore::Recover() {
  return options_.disk->Recover();
}

absl::Status MortalStore::BeginRun(const v1::RunIdentity& identity) {
  return Write("BeginRun", [&] { return options_.disk->BeginRun(identity); });
}

absl::Status MortalStore::SaveContribution(const v1::Contribution& record,
                                           std::span<const uint8_t> object) {
  World& world = *options_.world;
  RETURN_IF_ERROR(failure_);
  if (world.faulty() && world.Chance(options_.death_rate)) {
    world.Count(Happening::kDiskFull);
    world.Trace("the disk is full for the delta of ", record.header().worker_id());
    options_.auditor->NoRoom(record.header().fragment());
    return absl::ResourceExhaustedError("the disk is full");
  }
  return Write("SaveContribution", [&] {
    RETURN_IF_ERROR(options_.disk->SaveContribution(record, object));
    options_.auditor->Stored(record, object);
    return absl::OkStatus();
  });
}

absl::Status MortalStore::SaveRound(const v1::Round& record, std::span<const uint8_t> answer) {
  return Write("SaveRound", [&] {
    RETURN_IF_ERROR(options_.disk->SaveRound(record, answer));
    options_.auditor->RoundStored(record, answer);
    return absl::OkStatus();
  });
}

absl::Status MortalStore::SaveSnapshot(const server::FragmentView& fragment) {
  return Write("SaveSnapshot", [&] { return options_.disk->SaveSnapshot(fragment); });
}

absl::Status MortalStore::DropSnapshot(int fragment, int64_t version) {
  return Write("DropSnapshot", [&] { return options_.disk->DropSnapshot(fragment, version); });
}

absl::Status MortalStore::SaveMembers(std::span<const v1::Member> members) {
  // One by one: it may die between two of them.
  for (const v1::Member& member : members) {
    const bool well = failure_.ok();
    const absl::Status status = Write("SaveMembers", [&] {
      return options_.disk->SaveMembers({&member, 1});
    });
    if (well && !status.ok()) options_.auditor->MembershipUnsure(member.worker_id());
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status MortalStore::SaveRunState(const v1::State& state) {
  return Write("SaveRunState", [&] { return options_.disk->SaveRunState(state); });
}

absl::Status MortalStore::SaveSummary(const nlohmann::json& summary) {
  return Write("SaveSummary", [&] { return options_.disk->SaveSummary(summary); });
}

absl::Status MortalStore::ForgetAnswers(int fragment, int64_t before_round) {
  return Write("ForgetAnswers",
               [&] { return options_.disk->ForgetAnswers(fragment, before_round); });
}

absl::StatusOr<std::vector<uint8_t>> MortalStore::ReadContribution(int fragment, int64_t round,
                                                                   const std::string& worker_id) {
  RETURN_IF_ERROR(failure_);
  return options_.disk->ReadContribution(fragment, round, worker_id);
}

absl::StatusOr<std::vector<uint8_t>> MortalStore::ReadAnswer(int fragment, int64_t round) {
  RETURN_IF_ERROR(failure_);
  return options_.disk->ReadAnswer(fragment, round);
}

absl::StatusOr<server::FragmentSnapshot> MortalStore::ReadSnapshot(int fragment, int64_t version) {
  RETURN_IF_ERROR(failure_);
  return options_.disk->ReadSnapshot(fragment, version);
}

}  // namespace causeway::simulation
