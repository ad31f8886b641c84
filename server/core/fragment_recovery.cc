// How a fragment becomes again what its store remembers.

#include "common/telemetry/log.h"
#include "server/core/fragment_rounds.h"

namespace causeway::server {

void FragmentRounds::Begin(FloatBuffer initial) {
  {
    absl::WriterMutexLock data_lock(&data_mutex_);
    versions_.Restore({TreeHash(std::span<const float>(initial))});
    BeginWith(std::move(initial));
  }
  Rest();
}

void FragmentRounds::BeginWith(FloatBuffer initial) {
  FragmentArrays::Set& set = arrays_.set();
  set.theta = FirstTheta(initial);
  set.optimizer.assign(options_.optimizer->state_names().size(), FloatBuffer(initial.size(), 0.0f));
  set.published = std::move(initial);
}

absl::Status FragmentRounds::Load() {
  if (!arrays_.at_rest()) return absl::OkStatus();
  const absl::Status loaded = options_.merge_pool->With(
      [&](ThreadPool* threads) ABSL_NO_THREAD_SAFETY_ANALYSIS { return arrays_.Load(threads); });
  if (loaded.ok()) return loaded;
  return absl::InternalError(
      absl::StrCat("fragment ", options_.fragment, " cannot be read where it was at rest (",
                   loaded.message(), "): start the coordinator again, it recovers from the store"));
}

void FragmentRounds::Rest() {
  absl::WriterMutexLock data_lock(&data_mutex_);
  if (options_.scratch == nullptr || arrays_.at_rest() || state_is_void_ || keeps_arrays_) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!ledger_.contributions().empty()) return;  // They are needed soon.
  }
  PublishedNorm();  // Contributions are judged by it.
  const absl::Status rested = options_.merge_pool->With(
      [&](ThreadPool* threads) ABSL_NO_THREAD_SAFETY_ANALYSIS { return arrays_.Rest(threads); });
  if (rested.ok()) return;
  Log().warn("fragment {} stays in memory: {}", options_.fragment, std::string(rested.message()));
}

absl::Status FragmentRounds::CopyPublished(std::span<float> values) const {
  absl::ReaderMutexLock lock(&data_mutex_);
  return arrays_.CopyPublished(values);
}

absl::StatusOr<std::shared_ptr<const PullObject>> FragmentRounds::State() const {
  absl::ReaderMutexLock data_lock(&data_mutex_);
  auto object = std::make_shared<PullObject>();
  {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const PullObject> former = state_object_.lock();
    if (former != nullptr && former->header.round() == versions_.newest()) return former;
    object->header.set_round(versions_.newest());
    // The object is the values' bytes, so its hash is theirs.
    object->header.set_object_hash(versions_.newest_hash());
    object->header.set_published_hash(versions_.newest_hash());
  }
  const auto values = static_cast<size_t>(options_.range.size());
  object->bytes.resize(values * sizeof(float));
  RETURN_IF_ERROR(arrays_.CopyPublished({reinterpret_cast<float*>(object->bytes.data()), values}));
  object->header.set_fragment(options_.fragment);
  object->header.set_codec(v1::FP32);
  object->header.set_total_bytes(static_cast<int64_t>(object->bytes.size()));
  absl::MutexLock lock(&mutex_);
  state_object_ = object;
  return object;
}

absl::Status FragmentRounds::SaveSnapshot() {
  absl::ReaderMutexLock data_lock(&data_mutex_);
  const int64_t version = versions_.newest();
  if (state_is_void_ || version == snapshot_version()) return absl::OkStatus();
  FragmentArrays::Set at_rest;
  if (arrays_.at_rest()) {
    ASSIGN_OR_RETURN(at_rest, arrays_.Copy());
  }
  const FragmentArrays::Set& arrays = arrays_.at_rest() ? at_rest : arrays_.set();
  FragmentView view;
  view.fragment = options_.fragment;
  view.version = version;
  view.published_hash = versions_.newest_hash();
  view.theta = arrays.theta;
  view.published = arrays.published;
  for (size_t i = 0; i < arrays.optimizer.size(); ++i) {
    view.optimizer.push_back({options_.optimizer->state_names()[i], arrays.optimizer[i]});
  }
  RETURN_IF_ERROR(options_.store->SaveSnapshot(view));
  absl::MutexLock lock(&mutex_);
  older_snapshot_ = std::exchange(snapshot_version_, version);
  return absl::OkStatus();
}

int64_t FragmentRounds::snapshot_version() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_version_;
}

absl::Status FragmentRounds::ForgetAnswers(int64_t before_round) {
  return versions_.ForgetAnswers(before_round);
}

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

absl::StatusOr<std::vector<FragmentRounds::Damaged>> FragmentRounds::Recover(
    const History& history) {
  std::vector<uint64_t> hashes = {history.initial_hash};
  for (const v1::Round& round : history.rounds) hashes.push_back(round.published_hash());
  versions_.Restore(std::move(hashes));
  std::vector<Damaged> damaged;
  ASSIGN_OR_RETURN(const int64_t base, LoadBase(history, damaged));
  for (const v1::Round& round : history.rounds.subspan(static_cast<size_t>(base))) {
    const absl::Status refolded = RefoldStored(round);
    if (refolded.ok()) continue;
    if (damaged.empty()) return refolded;
    // Deltas that only older states need do not stay for ever.
    return absl::Status(refolded.code(),
                        absl::StrCat(damaged.front().second.message(),
                                     "; and what is older does not help: ", refolded.message()));
  }
  for (const auto& [version, why] : damaged) {
    RETURN_IF_ERROR(options_.store->DropSnapshot(options_.fragment, version));
  }
  {
    absl::MutexLock lock(&mutex_);
    ledger_.Restore(history.rounds, history.contributions, history.rejections);
  }
  const auto open = std::ranges::partition_point(history.contributions, [&](const auto& record) {
    return record.header().round() <= std::ssize(history.rounds);
  });
  RETURN_IF_ERROR(LoadOpenRound({open, history.contributions.end()}));
  Rest();
  return damaged;
}

absl::StatusOr<int64_t> FragmentRounds::LoadBase(const History& history,
                                                 std::vector<Damaged>& damaged) {
  for (size_t i = history.snapshots.size(); i > 0; --i) {
    const int64_t version = history.snapshots[i - 1];
    const absl::Status loaded = LoadSnapshot(version);
    if (loaded.ok()) {
      absl::MutexLock lock(&mutex_);
      older_snapshot_ = i > 1 ? history.snapshots[i - 2] : 0;
      return version;
    }
    if (!absl::IsDataLoss(loaded)) return loaded;
    damaged.emplace_back(version, loaded);
  }
  FloatBuffer initial(static_cast<size_t>(options_.range.size()));
  const absl::Status given = history.initial(initial);
  const uint64_t hash = given.ok() ? TreeHash(std::span<const float>(initial)) : 0;
  if (given.ok() && hash == history.initial_hash) {
    absl::WriterMutexLock lock(&data_mutex_);
    BeginWith(std::move(initial));
    return 0;
  }
  if (!damaged.empty()) return damaged.front().second;
  RETURN_IF_ERROR(given);
  return Differs(absl::StrCat("the initial ", VersionName(options_.fragment, 0)), hash,
                 history.initial_hash,
                 "continue on a machine like the one that began the run, or from a snapshot");
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
  const absl::StatusOr<uint64_t> recorded = versions_.Hash(version);
  if (!recorded.ok()) {
    return absl::DataLossError(absl::StrCat(name, " is of a version that was never published"));
  }
  if (hash != *recorded) return Differs(name, hash, *recorded, kDamaged);
  snapshot_version_ = version;
  FragmentArrays::Set& set = arrays_.set();
  set.theta = std::move(snapshot.theta);
  set.published = std::move(snapshot.published);
  set.optimizer.clear();
  for (auto& [state, values] : snapshot.optimizer) set.optimizer.push_back(std::move(values));
  return absl::OkStatus();
}

absl::Status FragmentRounds::RefoldStored(const v1::Round& round) {
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
  return Refold(round, std::move(contributions));
}

absl::Status HubRounds::Refold(const v1::Round& round, std::vector<Contribution> contributions) {
  ASSIGN_OR_RETURN(const MergeResult merged,
                   Merge(round.round(), std::move(contributions), /*rehearse=*/false));
  const std::string name =
      absl::StrCat("version ", round.round(), " of fragment ", options_.fragment);
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
    ASSIGN_OR_RETURN(
        std::vector<uint8_t> bytes,
        options_.store->ReadContribution(header.fragment(), header.round(), header.worker_id()));
    ReceivedObject object(std::move(bytes));
    const absl::Status verified = VerifyObject(header, object).status();
    RETURN_IF_ERROR(
        Annotate(verified, absl::StrCat("the delta of ", header.worker_id(), " to round ",
                                        header.round(), " of fragment ", header.fragment())));
    absl::MutexLock lock(&mutex_);
    if (header.round() != ledger_.open()) {
      return absl::DataLossError(absl::StrCat(
          "there is a delta to round ", header.round(), " of fragment ", header.fragment(),
          ", but the open round is ", ledger_.open(), ": ", kDamaged));
    }
    ledger_.EndAdd(record, std::move(object.bytes), options_.clock->Monotonic());
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
