// How a fragment becomes again what its store remembers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "server/core/fragment_rounds.h"

namespace causeway::server {
namespace {

std::string VersionName(int fragment, int64_t version) {
  return absl::StrCat("version ", version, " of fragment ", fragment);
}

absl::Status Differs(absl::string_view what, uint64_t found, uint64_t recorded,
                     absl::string_view remedy) {
  return absl::DataLossError(absl::StrCat(what, " hashes to ", HashToHex(found), ", recorded is ",
                                          HashToHex(recorded), "; ", remedy));
}

constexpr absl::string_view kDamaged =
    "the run directory is damaged, or another release merges differently: restore the directory "
    "from a backup, or continue with the release that wrote it";

}  // namespace

absl::Status FragmentRounds::Recover(const History& history) {
  const auto version = static_cast<int64_t>(history.rounds.size());
  {
    absl::MutexLock lock(&mutex_);
    published_hashes_ = {history.initial_hash};
    for (const v1::Round& round : history.rounds) {
      published_hashes_.push_back(round.published_hash());
    }
  }
  ASSIGN_OR_RETURN(int64_t folded, LoadBase(history));
  for (; folded < version; ++folded) {
    const absl::Status refolded = Refold(history.rounds[static_cast<size_t>(folded)]);
    if (refolded.ok()) continue;
    if (damaged_snapshots_.empty()) return refolded;
    // Deltas that only older states need do not stay for ever.
    return absl::Status(refolded.code(),
                        absl::StrCat(damaged_snapshots_.front().second.message(),
                                     "; and what is older does not help: ", refolded.message()));
  }
  for (const auto& [damaged, why] : damaged_snapshots_) {
    RETURN_IF_ERROR(options_.store->DropSnapshot(options_.fragment, damaged));
  }
  std::map<int64_t, std::map<std::string, uint64_t>> past;
  size_t open_begin = history.contributions.size();
  for (size_t i = 0; i < history.contributions.size(); ++i) {
    const v1::PushHeader& header = history.contributions[i].header();
    if (header.round() > version) {
      open_begin = std::min(open_begin, i);
    } else {
      past[header.round()][header.worker_id()] = header.object_hash();
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [round, hashes] : past) RememberPast(round, std::move(hashes));
    RecoverNorms(history);
    if (options_.region()) RecoverLateRounds(history);
  }
  RETURN_IF_ERROR(LoadOpenRound(history.contributions.subspan(open_begin)));
  Rest();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FragmentRounds::LoadBase(const History& history) {
  for (size_t i = history.snapshots.size(); i > 0; --i) {
    const int64_t version = history.snapshots[i - 1];
    const absl::Status loaded = LoadSnapshot(version);
    if (loaded.ok()) {
      absl::MutexLock lock(&mutex_);
      older_snapshot_ = i > 1 ? history.snapshots[i - 2] : 0;
      return version;
    }
    if (!absl::IsDataLoss(loaded)) return loaded;
    damaged_snapshots_.emplace_back(version, loaded);
  }
  FloatBuffer initial(static_cast<size_t>(options_.range.size()));
  const absl::Status given = history.initial(initial);
  const uint64_t hash = given.ok() ? TreeHash(std::span<const float>(initial)) : 0;
  if (given.ok() && hash == history.initial_hash) {
    absl::WriterMutexLock lock(&data_mutex_);
    BeginWith(std::move(initial));
    return 0;
  }
  if (!damaged_snapshots_.empty()) return damaged_snapshots_.front().second;
  RETURN_IF_ERROR(given);
  return Differs(absl::StrCat("the initial ", VersionName(options_.fragment, 0)), hash,
                 history.initial_hash,
                 "continue on a machine like the one that began the run, or from a snapshot");
}

void FragmentRounds::RecoverNorms(const History& history) {
  const auto version = static_cast<int64_t>(history.rounds.size());
  const auto round_at = [&](size_t i) { return history.contributions[i].header().round(); };
  size_t i = 0;
  while (i < history.contributions.size() && round_at(i) <= version) {
    const int64_t round = round_at(i);
    std::vector<double> merged;
    std::vector<double> quarantined;
    const auto& contributors =
        history.rounds[static_cast<size_t>(round - 1)].contributors();  // Sorted.
    for (; i < history.contributions.size() && round_at(i) == round; ++i) {
      const v1::Contribution& record = history.contributions[i];
      const std::string& worker_id = record.header().worker_id();
      if (std::ranges::binary_search(contributors, worker_id)) {
        merged.push_back(record.norm());
        continue;
      }
      // The others were rejected, or the merge could not take them.
      if (record.quarantined()) quarantined.push_back(record.norm());
      quarantined_.emplace(round, worker_id);
    }
    RememberNorms(merged, quarantined);
  }
}

absl::Status FragmentRounds::LoadSnapshot(int64_t version) {
  ASSIGN_OR_RETURN(FragmentSnapshot snapshot,
                   options_.store->ReadSnapshot(options_.fragment, version));
  const std::string name =
      absl::StrCat("the snapshot of ", VersionName(options_.fragment, version));
  const std::vector<std::string>& states = options_.optimizer->state_names();
  bool fits = snapshot.theta.size() == static_cast<size_t>(options_.range.size()) &&
              snapshot.published.size() == snapshot.theta.size() &&
              snapshot.optimizer.size() == states.size();
  for (size_t i = 0; fits && i < states.size(); ++i) {
    fits = snapshot.optimizer[i].first == states[i] &&
           snapshot.optimizer[i].second.size() == snapshot.theta.size();
  }
  if (!fits) {
    return absl::DataLossError(
        absl::StrCat(name, " does not have the arrays that the run's ", "configuration asks for"));
  }
  const uint64_t hash = TreeHash(std::span<const float>(snapshot.published));
  absl::WriterMutexLock data_lock(&data_mutex_);
  absl::MutexLock lock(&mutex_);
  if (version < 0 || version >= static_cast<int64_t>(published_hashes_.size())) {
    return absl::DataLossError(absl::StrCat(name, " is of a version that was never published"));
  }
  const uint64_t recorded = published_hashes_[static_cast<size_t>(version)];
  if (hash != recorded) return Differs(name, hash, recorded, kDamaged);
  snapshot_version_ = version;
  FragmentArrays::Set& set = arrays_.set();
  set.theta = std::move(snapshot.theta);
  set.published = std::move(snapshot.published);
  set.optimizer.clear();
  for (auto& [state, values] : snapshot.optimizer) set.optimizer.push_back(std::move(values));
  return absl::OkStatus();
}

absl::Status FragmentRounds::Refold(const v1::Round& round) {
  if (round.weights_size() != round.contributors_size()) {
    return absl::DataLossError(absl::StrCat(
        "round ", round.round(), " of fragment ", options_.fragment, " has ", round.weights_size(),
        " weights for ", round.contributors_size(), " contributors: ", kDamaged));
  }
  std::vector<std::vector<uint8_t>> objects;
  std::vector<Contribution> contributions;
  for (const std::string& id : round.contributors()) {
    ASSIGN_OR_RETURN(objects.emplace_back(),
                     options_.store->ReadContribution(options_.fragment, round.round(), id));
  }
  for (int i = 0; i < round.contributors_size(); ++i) {
    contributions.push_back({round.contributors(i), options_.codec_up,
                             objects[static_cast<size_t>(i)], round.weights(i),
                             /*validated=*/false});
  }
  absl::WriterMutexLock data_lock(&data_mutex_);
  if (options_.region()) return RefoldRegion(round, std::move(contributions));
  ASSIGN_OR_RETURN(const MergeResult merged,
                   Merge(round.round(), std::move(contributions), /*rehearse=*/false));
  const std::string name = VersionName(options_.fragment, round.round());
  if (merged.published_hash != round.published_hash()) {
    return Differs(name, merged.published_hash, round.published_hash(), kDamaged);
  }
  if (merged.answer_hash != round.answer_hash()) {
    return Differs(absl::StrCat("the answer of ", name), merged.answer_hash, round.answer_hash(),
                   kDamaged);
  }
  return absl::OkStatus();
}

absl::Status FragmentRounds::LoadOpenRound(std::span<const v1::Contribution> records) {
  for (const v1::Contribution& record : records) {
    const v1::PushHeader& header = record.header();
    if (options_.region() && header.worker_id() == options_.region_id) {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      closed_before_ = header.object_hash();
      continue;
    }
    ASSIGN_OR_RETURN(
        std::vector<uint8_t> bytes,
        options_.store->ReadContribution(header.fragment(), header.round(), header.worker_id()));
    ReceivedObject object(std::move(bytes));
    const absl::Status verified = VerifyObject(header, object).status();
    RETURN_IF_ERROR(
        Annotate(verified, absl::StrCat("the delta of ", header.worker_id(), " to round ",
                                        header.round(), " of fragment ", header.fragment())));
    absl::MutexLock lock(&mutex_);
    if (header.round() != static_cast<int64_t>(published_hashes_.size())) {
      return absl::DataLossError(absl::StrCat(
          "there is a delta to round ", header.round(), " of fragment ", header.fragment(),
          ", but the open round is ", published_hashes_.size(), ": ", kDamaged));
    }
    Held& entry = contributions_[header.worker_id()];
    entry.record = record;
    entry.object = std::move(object.bytes);
    entry.arrived = options_.clock->Monotonic();
    entry.accepted = true;
    if (record.quarantined()) quarantined_.emplace(header.round(), header.worker_id());
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
