// Saves a run now and then, and finds the way back from the store.

#include "server/core/run.h"

namespace causeway::server {
namespace {

// Fragments that keep enough threads busy, however many there are.
constexpr int kMany = 8;
// Fragments that are recovered at once: so many, and more while they take less memory than this.
constexpr int64_t kFewestAtOnce = 4;
constexpr int64_t kBytesAtOnce = int64_t{1} << 30;
// Maintain goes on with the next snapshot for so long: its caller has other things to look after.
constexpr absl::Duration kSavingTime = absl::Seconds(1);

// The part of a sorted array that belongs to one fragment.
template <typename Record>
std::span<const Record> OfFragment(const std::vector<Record>& records, int fragment) {
  const auto of = [](const Record& record) {
    if constexpr (std::is_same_v<Record, v1::Contribution>) {
      return record.header().fragment();
    } else {
      return record.fragment();
    }
  };
  return {std::ranges::lower_bound(records, fragment, {}, of),
          std::ranges::upper_bound(records, fragment, {}, of)};
}

// Returns the snapshots of each fragment that were not whole.
absl::StatusOr<std::vector<std::vector<FragmentRounds::Damaged>>> RecoverFragments(
    Run& own, const RecoveredRun& run, const InitialValues& initial) {
  std::vector<std::vector<FragmentRounds::Damaged>> damaged(own.fragments.size());
  std::vector<absl::Status> recovered(own.fragments.size());
  const auto recover = [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    const auto fragment = static_cast<int>(i);
    FragmentRounds::History history{
        .initial_hash = run.identity.initial_hashes(fragment),
        .initial = [&](std::span<float> values) { return initial(fragment, values); },
        .rounds = OfFragment(run.rounds, fragment),
        .contributions = OfFragment(run.contributions, fragment),
        .snapshots = {},
        .rejections = {}};
    for (const v1::Snapshot& snapshot : OfFragment(run.snapshots, fragment)) {
      history.snapshots.push_back(snapshot.version());
    }
    for (const v1::Member& record : run.members) {
      if (fragment >= record.rejected_size() || record.rejected(fragment).rounds().empty())
        continue;
      const auto& rounds = record.rejected(fragment).rounds();
      history.rejections[record.worker_id()] = {rounds.begin(), rounds.end()};
    }
    auto result = own.fragments[index]->Recover(history);
    recovered[index] = result.status();
    if (result.ok()) damaged[index] = *std::move(result);
  };
  // Reading and hashing take longer than merging: with enough fragments each has one thread for all
  // of it.
  ThreadPool* const threads = own.merge_pool.threads;
  if (threads != nullptr && std::ssize(own.fragments) >= std::min(threads->threads(), kMany)) {
    int64_t largest = 1;
    for (int i = 0; i < own.plan.fragments(); ++i)
      largest = std::max(largest, own.plan.range(i).size());
    const auto bytes = static_cast<int64_t>(FragmentArrays::BytesAtRest(
        static_cast<size_t>(largest), own.optimizer->state_names().size()));
    const int64_t at_once = std::max(kFewestAtOnce, kBytesAtOnce / bytes);
    own.merge_pool.threads = nullptr;
    for (int64_t first = 0; first < std::ssize(own.fragments); first += at_once) {
      threads->ParallelFor(std::min(at_once, std::ssize(own.fragments) - first),
                           [&](int64_t i) { recover(first + i); });
    }
    own.merge_pool.threads = threads;
  } else {
    for (int64_t i = 0; i < std::ssize(own.fragments); ++i) recover(i);
  }
  for (const absl::Status& status : recovered) RETURN_IF_ERROR(status);
  return damaged;
}

absl::Status ForgetOldAnswers(Run& own) {
  std::vector<int64_t> checkpoints;
  {
    absl::MutexLock lock(&own.mutex);
    for (const auto& [id, member] : own.membership.members()) {
      const int64_t step = member.record.heartbeat().checkpoint_step();
      if (member.record.state() != v1::Member::LEFT && step >= 0) checkpoints.push_back(step);
    }
  }
  const int64_t kept = std::max(2, own.options.kept_answers);
  const int64_t max_kept = std::max<int64_t>(kept, own.options.max_kept_answers);
  for (const auto& one : own.fragments) {
    FragmentRounds& fragment = *one;
    const int i = fragment.fragment();
    const int64_t version = fragment.versions().newest();
    int64_t first = version - kept + 1;
    for (const int64_t step : checkpoints) {
      first = std::min(first, own.schedule.RoundsMergedBy(i, step) + 1);
    }
    RETURN_IF_ERROR(fragment.ForgetAnswers(std::max(first, version - max_kept + 1)));
  }
  return absl::OkStatus();
}

// Those that lack most rounds first, until a second has passed. One that finds no room is passed
// over. Returns whether others were due still.
absl::StatusOr<bool> SaveDueSnapshots(Run& own) {
  std::vector<std::pair<int64_t, FragmentRounds*>> due;  // By the rounds since the last one.
  for (const auto& fragment : own.fragments) {
    const int64_t rounds = fragment->versions().newest() - fragment->snapshot_version();
    if (rounds >= own.options.snapshot_every_rounds) due.emplace_back(rounds, fragment.get());
  }
  std::ranges::stable_sort(due, std::greater<>(), [](const auto& one) { return one.first; });
  const absl::Duration end = own.options.clock->Monotonic() + kSavingTime;
  for (const auto& [rounds, fragment] : due) {
    const absl::Status status = fragment->SaveSnapshot();
    if (absl::IsResourceExhausted(status)) {
      // The deltas since the last snapshot are there; it is tried again. A smaller one may fit, and
      // lets its deltas go.
      own.incidents.SnapshotRefused(fragment->fragment(), status);
      continue;
    }
    RETURN_IF_ERROR(status);
    own.incidents.SnapshotSaved(fragment->fragment(), fragment->snapshot_version());
    if (own.options.clock->Monotonic() >= end) return fragment != due.back().second;
  }
  return false;
}

}  // namespace

v1::RunIdentity Run::Identity() const {
  v1::RunIdentity identity;
  identity.set_run_id(options.run_id);
  *identity.mutable_config() = options.config;
  identity.set_config_hash(config_hash);
  identity.set_plan_hash(plan.hash());
  for (const auto& fragment : fragments) {
    identity.add_initial_hashes(fragment->versions().Hash(0).value());
  }
  return identity;
}

absl::Status Run::Recover(const RecoveredRun& run, const InitialValues& initial) {
  const v1::RunIdentity& identity = run.identity;
  if (identity.run_id() != options.run_id || identity.config_hash() != config_hash) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store holds the run ", identity.run_id(),
                     ", which has another configuration than the one asked for"));
  }
  if (identity.plan_hash() != plan.hash() || identity.initial_hashes_size() != plan.fragments()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this release cuts the model of run ", identity.run_id(),
                     " into other fragments than the one that began it: continue with that one"));
  }
  const absl::Duration began = options.clock->Monotonic();
  int64_t rounds = 0;
  int64_t folded = 0;
  ASSIGN_OR_RETURN(const auto damaged, RecoverFragments(*this, run, initial));
  for (size_t i = 0; i < fragments.size(); ++i) {
    for (const auto& [version, why] : damaged[i]) {
      Record("snapshot_damaged",
             absl::StrCat(why.message(), "; recovered from what was saved before it"),
             {{"fragment", i}, {"round", version}, {"reason", std::string(why.message())}});
    }
    const int64_t version = fragments[i]->versions().newest();
    rounds += version;
    folded += version - fragments[i]->snapshot_version();
  }
  const int64_t largest_step = LargestPossibleStep(OpenRounds(), options.config);
  {
    absl::MutexLock lock(&mutex);
    state = run.state;
    budget_announced = state.stop_step() > 0;
    for (v1::Member record : run.members) {
      auto& slots = *record.mutable_had_slots();
      slots.erase(std::remove_if(slots.begin(), slots.end(),
                                 [this](int slot) {
                                   return slot < 0 ||
                                          slot >= options.config.membership().max_workers();
                                 }),
                  slots.end());
      const int64_t given_from_step = record.active_from_step();
      // A former release believed any step.
      record.set_step(std::min(record.step(), largest_step));
      record.set_active_from_step(std::min(given_from_step, largest_step));
      const Member& member = membership.Restore(std::move(record), options.clock->Monotonic());
      GiveParts(member, given_from_step);
      tokens.Begin(member.record.worker_id(), member.record.active_from_step(),
                   member.record.sites());
      // The first of the parts that its parent has given to this region is the lowest.
      if (tier.under_parent && (membership.members().size() == 1 ||
                                member.record.data_slot() < membership.first_slot())) {
        membership.SetFirstSlot(member.record.data_slot());
      }
    }
    for (const v1::Contribution& contribution : run.contributions) {
      const v1::PushHeader& header = contribution.header();
      if (header.worker_id() == tier.own_id) continue;  // Its sites' are counted.
      const int64_t step = schedule.SendStep(header.fragment(), header.round());
      draws.Add(header.worker_id(), DrawsOf(header.draws()), step);
      tokens.Add(header.fragment(), header.worker_id(), header.tokens(), step);
    }
  }
  hash_checks = run.state.hash_checks();
  hash_mismatches = run.state.hash_mismatches();
  const double seconds = absl::ToDoubleSeconds(options.clock->Monotonic() - began);
  Record("recovered",
         absl::StrCat("run ", options.run_id, " goes on after ", rounds, " rounds; ", folded,
                      " of them were merged again in ", seconds, " s and have their hashes"),
         {{"rounds", rounds},
          {"merged_again", folded},
          {"seconds", seconds},
          {"members", run.members.size()}});
  return absl::OkStatus();
}

bool Run::Maintain() {
  const Call call(*this);
  if (!Serving().ok()) return false;
  const absl::StatusOr<bool> more_due = SaveDueSnapshots(*this);
  const absl::Status status = more_due.ok() ? ForgetOldAnswers(*this) : more_due.status();
  if (!status.ok()) {
    Fail(status).IgnoreError();
    return false;
  }
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&mutex);
    ids = membership.LiveIds();
  }
  if (!SaveMembers(ids).ok()) return false;
  SaveRunState().IgnoreError();  // A failure has stopped the coordinator already.
  return *more_due;
}

}  // namespace causeway::server
