// CoordinatorImpl's writes to its store, and its way back from it.
#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "server/core/coordinator_impl.h"

namespace causeway::server {
namespace {

// Fragments that keep enough threads busy, however many there are.
constexpr int kMany = 8;
// Fragments that are recovered at once: so many, and more while they take less memory than this.
constexpr int64_t kFewestAtOnce = 4;
constexpr int64_t kBytesAtOnce = int64_t{1} << 30;
// Maintain goes on with the next snapshot for so long: its caller has other things to look after.
constexpr absl::Duration kSavingTime = absl::Seconds(1);

int FragmentOfRecord(const v1::Contribution& record) { return record.header().fragment(); }
template <typename Record>
int FragmentOfRecord(const Record& record) {
  return record.fragment();
}

// The part of a sorted array that belongs to one fragment.
template <typename Record>
std::span<const Record> OfFragment(const std::vector<Record>& records, int fragment) {
  const auto begin = std::partition_point(records.begin(), records.end(), [&](const Record& r) {
    return FragmentOfRecord(r) < fragment;
  });
  const auto end = std::partition_point(
      begin, records.end(), [&](const Record& r) { return FragmentOfRecord(r) == fragment; });
  return {begin, end};
}

}  // namespace

v1::RunIdentity CoordinatorImpl::Identity() const {
  v1::RunIdentity identity;
  identity.set_run_id(options_.run_id);
  *identity.mutable_config() = options_.config;
  identity.set_config_hash(config_hash_);
  identity.set_plan_hash(plan_.hash());
  for (const auto& fragment : fragments_) {
    identity.add_initial_hashes(fragment->PublishedHash(0).value());
  }
  return identity;
}

absl::Status CoordinatorImpl::RecoverFragments(const RecoveredRun& run,
                                               const InitialValues& initial) {
  std::vector<absl::Status> recovered(fragments_.size());
  const auto recover = [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    const auto fragment = static_cast<int>(i);
    FragmentRounds::History history{
        .initial_hash = run.identity.initial_hashes(fragment),
        .initial = [&](std::span<float> values) { return initial(fragment, values); },
        .rounds = OfFragment(run.rounds, fragment),
        .contributions = OfFragment(run.contributions, fragment),
        .snapshots = {}};
    for (const v1::Snapshot& snapshot : OfFragment(run.snapshots, fragment)) {
      history.snapshots.push_back(snapshot.version());
    }
    recovered[index] = fragments_[index]->Recover(history);
  };
  // Reading and hashing take longer than merging: with enough fragments each has one thread for all
  // of it.
  ThreadPool* const threads = merge_pool_.threads;
  if (threads != nullptr && std::ssize(fragments_) >= std::min(threads->threads(), kMany)) {
    int64_t largest = 1;
    for (int i = 0; i < plan_.fragments(); ++i) largest = std::max(largest, plan_.range(i).size());
    const auto bytes = static_cast<int64_t>(FragmentArrays::BytesAtRest(
        static_cast<size_t>(largest), optimizer_->state_names().size()));
    const int64_t at_once = std::max(kFewestAtOnce, kBytesAtOnce / bytes);
    merge_pool_.threads = nullptr;
    for (int64_t first = 0; first < std::ssize(fragments_); first += at_once) {
      threads->ParallelFor(std::min(at_once, std::ssize(fragments_) - first),
                           [&](int64_t i) { recover(first + i); });
    }
    merge_pool_.threads = threads;
  } else {
    for (int64_t i = 0; i < std::ssize(fragments_); ++i) recover(i);
  }
  for (const absl::Status& status : recovered) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Recover(const RecoveredRun& run, const InitialValues& initial) {
  const v1::RunIdentity& identity = run.identity;
  if (identity.run_id() != options_.run_id || identity.config_hash() != config_hash_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store holds the run ", identity.run_id(),
                     ", which has another configuration than the one asked for"));
  }
  if (identity.plan_hash() != plan_.hash() || identity.initial_hashes_size() != plan_.fragments()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this release cuts the model of run ", identity.run_id(),
                     " into other fragments than the one that began it: continue with that one"));
  }
  const absl::Duration began = options_.clock->Monotonic();
  int64_t rounds = 0;
  int64_t folded = 0;
  RETURN_IF_ERROR(RecoverFragments(run, initial));
  for (size_t i = 0; i < fragments_.size(); ++i) {
    for (const auto& [version, why] : fragments_[i]->damaged_snapshots()) {
      Record("snapshot_damaged",
             absl::StrCat(why.message(), "; recovered from what was saved before it"),
             {{"fragment", i}, {"round", version}, {"reason", std::string(why.message())}});
    }
    for (const v1::Member& record : run.members) {
      if (static_cast<int>(i) >= record.rejected_size()) continue;
      const auto& rounds_out = record.rejected(static_cast<int>(i)).rounds();
      if (rounds_out.empty()) continue;
      fragments_[i]->RestoreRejections(record.worker_id(), {rounds_out.begin(), rounds_out.end()});
    }
    rounds += fragments_[i]->version();
    folded += fragments_[i]->rounds_since_snapshot();
  }
  const int64_t largest_step = LargestPossibleStep(OpenRounds(), options_.config);
  {
    absl::MutexLock lock(&members_mutex_);
    state_ = run.state;
    budget_announced_ = state_.stop_step() > 0;
    for (const v1::Member& record : run.members) {
      accounts_[record.worker_id()] = record;
      Member member = ReadMember(record);
      std::erase_if(member.had_slots, [this](int slot) {
        return slot < 0 || slot >= options_.config.membership().max_workers();
      });
      GiveParts(member, member.active_from_step);
      // A former release believed any step.
      member.step = std::min(member.step, largest_step);
      member.active_from_step = std::min(member.active_from_step, largest_step);
      tokens_.Begin(member.id, member.active_from_step, member.sites);
      // The first of the parts that its parent has given to this region is the lowest.
      if (region() &&
          (&record == &run.members.front() || member.data_slot < membership_.first_slot())) {
        membership_.SetFirstSlot(member.data_slot);
      }
      membership_.Restore(std::move(member), options_.clock->Monotonic());
    }
    for (const v1::Contribution& contribution : run.contributions) {
      const v1::PushHeader& header = contribution.header();
      if (region() && header.worker_id() == options_.region->id) continue;  // Those of its sites.
      const int64_t step = schedule_.SendStep(header.fragment(), header.round());
      draws_.Add(header.worker_id(), DrawsOf(header.draws()), step);
      tokens_.Add(header.fragment(), header.worker_id(), header.tokens(), step);
    }
  }
  hash_checks_ = run.state.hash_checks();
  hash_mismatches_ = run.state.hash_mismatches();
  const double seconds = absl::ToDoubleSeconds(options_.clock->Monotonic() - began);
  Record("recovered",
         absl::StrCat("run ", options_.run_id, " goes on after ", rounds, " rounds; ", folded,
                      " of them were merged again in ", seconds, " s and have their hashes"),
         {{"rounds", rounds},
          {"merged_again", folded},
          {"seconds", seconds},
          {"members", run.members.size()}});
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::SaveMembers(std::span<const std::string> worker_ids) {
  if (worker_ids.empty()) return absl::OkStatus();
  absl::Status status;
  {
    absl::MutexLock save_lock(&save_mutex_);
    std::vector<std::map<std::string, std::set<int64_t>>> rejections;
    for (const auto& fragment : fragments_) rejections.push_back(fragment->rejections());
    std::vector<v1::Member> records;
    {
      absl::MutexLock lock(&members_mutex_);
      for (const std::string& id : worker_ids) {
        v1::Member& record = records.emplace_back(accounts_[id]);
        WriteMember(*membership_.Find(id), record);
        record.clear_rejected();
        if (std::ranges::none_of(rejections, [&](const auto& of) { return of.contains(id); })) {
          continue;
        }
        for (auto& of_fragment : rejections) {
          const std::set<int64_t>& out = of_fragment[id];
          record.add_rejected()->mutable_rounds()->Assign(out.begin(), out.end());
        }
      }
    }
    status = options_.store->SaveMembers(records);
  }
  if (!status.ok()) status = Fail(status);
  return status;
}

absl::Status CoordinatorImpl::SaveMember(const std::string& worker_id) {
  return SaveMembers({&worker_id, 1});
}

absl::Status CoordinatorImpl::SaveRunState() {
  absl::Status status;
  {
    absl::MutexLock save_lock(&save_mutex_);
    v1::State state;
    {
      absl::MutexLock lock(&members_mutex_);
      state = state_;
    }
    state.set_hash_checks(hash_checks_.load());
    state.set_hash_mismatches(hash_mismatches_.load());
    status = options_.store->SaveRunState(state);
  }
  if (!status.ok()) status = Fail(status);
  return status;
}

absl::Status CoordinatorImpl::ForgetOldAnswers() {
  std::vector<int64_t> checkpoints;
  {
    absl::MutexLock lock(&members_mutex_);
    for (const auto& [id, member] : membership_.members()) {
      const int64_t step = accounts_[id].heartbeat().checkpoint_step();
      if (member.state != v1::Member::LEFT && step >= 0) checkpoints.push_back(step);
    }
  }
  const int64_t kept = std::max(2, options_.kept_answers);
  const int64_t max_kept = std::max<int64_t>(kept, options_.max_kept_answers);
  for (const auto& own : fragments_) {
    FragmentRounds& fragment = *own;
    const int i = fragment.fragment();
    const int64_t version = fragment.version();
    int64_t first = version - kept + 1;
    for (const int64_t step : checkpoints) {
      first = std::min(first, schedule_.RoundsMergedBy(i, step) + 1);
    }
    RETURN_IF_ERROR(fragment.ForgetAnswers(std::max(first, version - max_kept + 1)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CoordinatorImpl::SaveDueSnapshots() {
  std::vector<std::pair<int64_t, FragmentRounds*>> due;  // By the rounds since the last one.
  for (const auto& fragment : fragments_) {
    const int64_t rounds = fragment->rounds_since_snapshot();
    if (rounds >= options_.snapshot_every_rounds) due.emplace_back(rounds, fragment.get());
  }
  std::ranges::stable_sort(due, std::greater<>(), [](const auto& one) { return one.first; });
  const absl::Duration end = options_.clock->Monotonic() + kSavingTime;
  for (const auto& [rounds, fragment] : due) {
    const absl::Status status = fragment->SaveSnapshot();
    if (absl::IsResourceExhausted(status)) {
      // The deltas since the last snapshot are there; it is tried again. A smaller one may fit, and
      // lets its deltas go.
      incidents_.SnapshotRefused(fragment->fragment(), status);
      continue;
    }
    RETURN_IF_ERROR(status);
    incidents_.SnapshotSaved(fragment->fragment(), fragment->snapshot_version());
    if (options_.clock->Monotonic() >= end) return fragment != due.back().second;
  }
  return false;
}

bool CoordinatorImpl::Maintain() {
  const Call call(*this);
  if (!Serving().ok()) return false;
  const absl::StatusOr<bool> more_due = SaveDueSnapshots();
  const absl::Status status = more_due.ok() ? ForgetOldAnswers() : more_due.status();
  if (!status.ok()) {
    Fail(status).IgnoreError();
    return false;
  }
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&members_mutex_);
    ids = membership_.LiveIds();
  }
  if (!SaveMembers(ids).ok()) return false;
  SaveRunState().IgnoreError();  // A failure has stopped the coordinator already.
  return *more_due;
}

}  // namespace causeway::server
