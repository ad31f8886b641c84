#include "server/core/fragment_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "server/outer/merge.h"
#include "server/round/plausibility.h"

namespace causeway::server {
namespace {

// Rounds for which a repeated push is still recognized. A worker that resumes from a checkpoint
// sends again what it had sent since; answers are not kept for longer than that either.
constexpr size_t kPastRounds = 1024;
// RecentAnswers keeps so many of any size, and more up to so many bytes.
constexpr size_t kFewestAnswers = 2;
constexpr size_t kAnswerBytes = size_t{128} << 20;
// Weight of a merge in the smoothed merge time.
constexpr double kNewestMerge = 0.25;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

std::string RoundName(const v1::PushHeader& header) {
  return absl::StrCat("round ", header.round(), " of fragment ", header.fragment());
}

}  // namespace

void RecentAnswers::Keep(std::shared_ptr<const PullObject> answer) {
  std::vector<std::shared_ptr<const PullObject>> former;  // Freed without the lock.
  absl::MutexLock lock(&mutex_);
  bytes_ += answer->bytes.size();
  kept_.push_back(std::move(answer));
  while (kept_.size() > kFewestAnswers && bytes_ > kAnswerBytes) {
    bytes_ -= kept_.front()->bytes.size();
    former.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

FragmentRounds::FragmentRounds(const Options& options)
    : options_(options),
      arrays_(static_cast<size_t>(options.range.size()), options.optimizer->state_names().size(),
              options.scratch, options.scratch_offset) {}

v1::PushResponse FragmentRounds::Accepted(const v1::PushHeader& header, bool duplicate) const {
  v1::PushResponse response;
  response.set_durable_bytes(header.total_bytes());
  response.set_duplicate(duplicate);
  response.set_quarantined(quarantined_.contains({header.round(), header.worker_id()}));
  return response;
}

absl::StatusOr<std::optional<v1::PushResponse>> FragmentRounds::Lookup(
    const v1::PushHeader& header) const {
  const auto same_object =
      [&](uint64_t held_hash)
          ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::StatusOr<std::optional<v1::PushResponse>> {
    if (held_hash == header.object_hash()) return Accepted(header, /*duplicate=*/true);
    return absl::AlreadyExistsError(
        absl::StrCat(header.worker_id(), " has contributed another object to ", RoundName(header),
                     " (", HashToHex(held_hash), ", now ", HashToHex(header.object_hash()), ")"));
  };
  if (header.base_hash() != 0 && header.round() >= 1 &&
      header.round() <= std::ssize(published_hashes_)) {
    const uint64_t base = published_hashes_[static_cast<size_t>(header.round() - 1)];
    if (base != header.base_hash()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the delta of ", header.worker_id(), " to ", RoundName(header), " was taken against ",
          HashToHex(header.base_hash()), ", published here is ", HashToHex(base),
          ": the worker trained with another coordinator of this run, or this one serves an old "
          "copy of its run directory; serve the newest directory alone"));
    }
  }
  const int64_t open = static_cast<int64_t>(published_hashes_.size());
  if (header.round() > open || header.round() < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(RoundName(header), " is not open: round ", open, " is"));
  }
  if (header.round() == open) {
    const auto held = contributions_.find(header.worker_id());
    if (held != contributions_.end() && (held->second.accepted || closed_)) {
      return same_object(held->second.record.header().object_hash());
    }
    if (!closed_) return std::nullopt;
  } else {
    const auto past = past_.find(header.round());
    if (past != past_.end()) {
      const auto held = past->second.find(header.worker_id());
      if (held != past->second.end()) return same_object(held->second);
    }
  }
  return ClosedWithout(header.worker_id(), header.round());
}

absl::Status FragmentRounds::ClosedWithout(const std::string& worker_id, int64_t round) const {
  return absl::AbortedError(absl::StrCat("round ", round, " of fragment ", options_.fragment,
                                         " closed without ", worker_id,
                                         "; fold the delta into the next round"));
}

void FragmentRounds::TellClosed(const Begun& begun) {
  for (const auto& [id, closed] : begun) closed();
}

int64_t FragmentRounds::contribution_bytes() const {
  return static_cast<int64_t>(
      options_.codec_up->EncodedBytes(static_cast<size_t>(options_.range.size())));
}

absl::StatusOr<std::optional<v1::PushResponse>> FragmentRounds::FindHeld(
    const v1::PushHeader& header) const {
  RETURN_IF_ERROR(CheckHeader(header));
  absl::MutexLock lock(&mutex_);
  return Lookup(header);
}

absl::StatusOr<std::optional<v1::PushResponse>> FragmentRounds::BeginPush(
    const v1::PushHeader& header, RoundClosed closed) {
  RETURN_IF_ERROR(CheckHeader(header));
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<std::optional<v1::PushResponse>> held = Lookup(header);
  if (held.ok() && !held->has_value() && closed != nullptr) {
    begun_[header.worker_id()] = std::move(closed);
  }
  return held;
}

absl::StatusOr<AddedContribution> FragmentRounds::Add(const v1::PushHeader& header,
                                                      ReceivedObject object) {
  RETURN_IF_ERROR(CheckHeader(header));
  v1::Contribution record;
  *record.mutable_header() = header;
  // These belong to the call.
  record.mutable_header()->clear_run_id();
  record.mutable_header()->clear_attempt();
  record.mutable_header()->clear_epoch();
  record.mutable_header()->clear_base_hash();
  {
    absl::MutexLock lock(&mutex_);
    // Another stream may be adding this worker's object at this moment.
    const auto other_stream_is_done = [this, &header]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const auto found = contributions_.find(header.worker_id());
      return found == contributions_.end() || found->second.accepted || closed_;
    };
    mutex_.Await(absl::Condition(&other_stream_is_done));
    ASSIGN_OR_RETURN(std::optional<v1::PushResponse> held, Lookup(header));
    if (held.has_value()) return AddedContribution{.response = *std::move(held)};
    contributions_[header.worker_id()].record = record;
  }
  {
    absl::ReaderMutexLock data_lock(&data_mutex_);
    arrays_.Expect();  // The round may close soon.
  }
  record.set_unix_s(UnixSeconds(options_.clock->Now()));
  absl::StatusOr<AddedContribution> added = VerifyAndSave(record, object);
  absl::MutexLock lock(&mutex_);
  if (!added.ok()) {
    contributions_.erase(header.worker_id());
    return added;
  }
  Held& entry = contributions_[header.worker_id()];
  entry.object = std::move(object.bytes);
  entry.arrived = options_.clock->Monotonic();
  entry.record = std::move(record);
  entry.rejected = IsRejected(header.worker_id(), header.round());
  entry.accepted = true;
  if (entry.kept_out()) quarantined_.emplace(header.round(), header.worker_id());
  added->response = Accepted(header, /*duplicate=*/false);
  return added;
}

absl::StatusOr<AddedContribution> FragmentRounds::VerifyAndSave(v1::Contribution& record,
                                                                const ReceivedObject& object) {
  const v1::PushHeader& header = record.header();
  ASSIGN_OR_RETURN(const double norm, VerifyObject(header, object));
  AddedContribution added = Judge(norm);
  {
    absl::MutexLock lock(&mutex_);
    if (!added.quarantined() && IsRejected(header.worker_id(), header.round())) {
      added.quarantine = Quarantine::kRejected;
    }
  }
  record.set_norm(added.norm);
  record.set_quarantined(added.out_of_line());
  const absl::Status saved = options_.store->SaveContribution(record, object.bytes.view());
  // Whatever its code: of a store only a full disk passes. Other codes would be taken for the
  // contribution's.
  if (saved.ok()) return added;
  if (absl::IsResourceExhausted(saved)) return saved;
  if (absl::IsCancelled(saved)) return absl::UnavailableError(saved.message());
  return absl::InternalError(absl::StrCat("the store failed: ", saved.ToString()));
}

OpenRound FragmentRounds::OpenRoundLocked() const {
  OpenRound round;
  round.fragment = options_.fragment;
  round.round = static_cast<int64_t>(published_hashes_.size());
  round.send_step = options_.schedule.SendStep(options_.fragment, round.round);
  for (const auto& [id, held] : contributions_) {
    if (held.accepted) (held.kept_out() ? round.quarantined : round.arrivals)[id] = held.arrived;
  }
  round.merge_time = merge_time_;
  round.answer_bytes = static_cast<int64_t>(
      options_.codec_down->EncodedBytes(static_cast<size_t>(options_.range.size())));
  return round;
}

OpenRound FragmentRounds::open_round() const {
  absl::MutexLock lock(&mutex_);
  return OpenRoundLocked();
}

absl::StatusOr<std::optional<PublishedRound>> FragmentRounds::Advance(
    const std::map<std::string, Member>& members, const RoundPolicy& policy) {
  Decision decision;
  OpenRound round;
  Contributions contributions;
  Begun begun;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ && !closed_before_.has_value()) return std::nullopt;
    for (const auto& [id, held] : contributions_) {
      if (!held.accepted) return std::nullopt;  // Its Add comes back here when it is done.
    }
    round = OpenRoundLocked();
    if (closed_before_.has_value()) {
      decision.reason = "it was closed before the coordinator started again";
    } else {
      decision = Decide(options_.clock->Monotonic(), round, members, policy);
      if (decision.action == Decision::kWait && round.round > parent_version_) return std::nullopt;
      if (decision.action == Decision::kWait) decision.reason = "the parent has published it";
    }
    closed_ = true;
    begun = std::exchange(begun_, {});
    contributions = contributions_;  // These stay, for those who ask while the round is merged.
  }
  if (options_.region()) {
    const absl::Status closed = CloseForParent(round.round, contributions, std::move(decision));
    if (closed.ok()) {
      TellClosed(begun);
      return std::nullopt;
    }
    absl::MutexLock lock(&mutex_);
    begun_.merge(begun);  // The round may be open again, if the disk is full.
    return closed;
  }
  TellClosed(begun);
  ASSIGN_OR_RETURN(PublishedRound published,
                   MergeAndPublish(round.round, contributions, std::move(decision)));
  return published;
}

FragmentRounds::ClosedRound FragmentRounds::Close(int64_t round, const Contributions& contributions,
                                                  Decision decision) const {
  ClosedRound closed;
  closed.closed_at = options_.clock->Monotonic();
  v1::Round& record = closed.result.record;
  record.set_fragment(options_.fragment);
  record.set_round(round);
  record.set_send_step(options_.schedule.SendStep(options_.fragment, round));
  record.set_closed_unix_s(UnixSeconds(options_.clock->Now()));
  record.set_reason(std::move(decision.reason));
  closed.result.missing = std::move(decision.missing);
  for (const auto& [id, held] : contributions) {
    closed.object_hashes[id] = held.record.header().object_hash();
    record.set_bytes_in(record.bytes_in() + static_cast<int64_t>(held.object.size()));
    if (held.record.quarantined()) closed.quarantined_norms.push_back(held.record.norm());
  }
  return closed;
}

void FragmentRounds::NoteContributors(const Contributions& contributions, ClosedRound& closed) {
  v1::Round& record = closed.result.record;
  for (const std::string& id : record.contributors()) {
    const v1::Contribution& held = contributions.at(id).record;
    closed.merged_norms.push_back(held.norm());
    if (record.first_unix_s() == 0 || held.unix_s() < record.first_unix_s()) {
      record.set_first_unix_s(held.unix_s());
    }
  }
}

absl::StatusOr<PublishedRound> FragmentRounds::MergeAndPublish(int64_t round,
                                                               const Contributions& contributions,
                                                               Decision decision) {
  ClosedRound closed = Close(round, contributions, std::move(decision));
  // Held until the round is stored: a reader never sees values that a crash could take back.
  absl::WriterMutexLock data_lock(&data_mutex_);
  RETURN_IF_ERROR(Load());
  absl::StatusOr<MergeResult> merged = MergeWhatCanBe(contributions, closed.result);
  RETURN_IF_ERROR(merged.status());
  NoteContributors(contributions, closed);
  closed.result.record.set_published_hash(merged->published_hash);
  closed.result.record.set_answer_hash(merged->answer_hash);
  ASSIGN_OR_RETURN(PublishedRound published,
                   StoreAndPublish(std::move(closed), std::move(merged->answer),
                                   std::move(merged->answer_leaves)));
  absl::MutexLock lock(&mutex_);
  published_norm_ = {round, merged->published_norm};
  return published;
}

absl::StatusOr<PublishedRound> FragmentRounds::StoreAndPublish(ClosedRound closed,
                                                               ByteBuffer answer,
                                                               std::vector<uint64_t> leaves) {
  PublishedRound& result = closed.result;
  v1::Round& record = result.record;
  record.set_bytes_out(static_cast<int64_t>(answer.size()));
  record.set_published_unix_s(UnixSeconds(options_.clock->Now()));
  const absl::Status stored = options_.store->SaveRound(record, answer);
  // The state is ahead of the version now: nobody may see or save it.
  state_is_void_ = !stored.ok();
  RETURN_IF_ERROR(stored);
  result.answer = MakeAnswer(record, std::move(answer), std::move(leaves));
  absl::MutexLock lock(&mutex_);
  published_hashes_.push_back(record.published_hash());
  contributions_.clear();
  closed_ = false;
  for (const LateQuarantine& held : result.overflowed) {
    quarantined_.emplace(record.round(), held.worker_id);
  }
  RememberPast(record.round(), std::move(closed.object_hashes));
  RememberNorms(closed.merged_norms, closed.quarantined_norms);
  const absl::Duration merge_time = options_.clock->Monotonic() - closed.closed_at;
  merge_time_ = merge_time_ == absl::ZeroDuration()
                    ? merge_time
                    : merge_time_ * (1 - kNewestMerge) + merge_time * kNewestMerge;
  std::erase_if(answers_, [](const auto& one) { return one.second.expired(); });
  answers_[record.round()] = result.answer;
  if (options_.answers != nullptr) options_.answers->Keep(result.answer);
  result.waiters.swap(waiters_);
  return std::move(result);
}

absl::StatusOr<MergeResult> FragmentRounds::MergeWhatCanBe(const Contributions& contributions,
                                                           PublishedRound& result) {
  v1::Round& record = result.record;
  std::set<std::string> left_out;
  bool rehearse = PublishedNorm() > kSafeNorm;
  for (const auto& [id, held] : contributions) {
    if (held.kept_out()) left_out.insert(id);
    rehearse |= !held.kept_out() && held.record.norm() > kSafeNorm;
  }
  for (;;) {
    std::vector<int64_t> claimed;
    record.clear_contributors();
    for (const auto& [id, held] : contributions) {
      if (left_out.contains(id)) continue;
      record.add_contributors(id);
      claimed.push_back(held.record.header().tokens());
    }
    std::vector<int64_t> tokens = claimed;
    result.cut.clear();
    if (TokensPerStep(*options_.config) == 0 &&
        options_.config->membership().weighting() == v1::MembershipConfig::TOKENS) {
      tokens = WithinMedian(claimed);
      const auto least = static_cast<size_t>(std::ranges::min_element(claimed) - claimed.begin());
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < claimed[i]) {
          result.cut.push_back({record.contributors(static_cast<int>(i)), claimed[i], tokens[i],
                                record.contributors(static_cast<int>(least)), claimed[least]});
        }
      }
    }
    ASSIGN_OR_RETURN(const std::vector<double> weights,
                     ContributionWeights(tokens, options_.config->membership().weighting()));
    record.mutable_weights()->Assign(weights.begin(), weights.end());
    std::vector<Contribution> inputs;
    const std::string* largest = nullptr;
    for (const std::string& id : record.contributors()) {
      const Held& held = contributions.at(id);
      // Add has validated the object, against published as it still is.
      inputs.push_back({id, options_.codec_up, held.object.view(), weights[inputs.size()],
                        /*validated=*/true});
      if (largest == nullptr || held.record.norm() > contributions.at(*largest).record.norm()) {
        largest = &id;
      }
    }
    absl::StatusOr<MergeResult> merged = Merge(record.round(), std::move(inputs), rehearse);
    if (!rehearse || !absl::IsFailedPrecondition(merged.status()) || largest == nullptr) {
      return merged;
    }
    result.overflowed.push_back({*largest, contributions.at(*largest).record.norm(),
                                 std::string(merged.status().message())});
    left_out.insert(*largest);
  }
}

absl::StatusOr<MergeResult> FragmentRounds::Merge(int64_t round,
                                                  std::vector<Contribution> contributions,
                                                  bool rehearse) {
  if (options_.region()) return MergeRegion(round, std::move(contributions));
  MergeInput input;
  input.rehearse = rehearse;
  input.contributions = std::move(contributions);
  input.kind = options_.config->sync().contribution();
  input.rule = MergeRuleOf(options_.config->outer());
  input.optimizer = options_.optimizer;
  input.answer_codec = options_.codec_down;
  input.round = round;
  input.arena_begin = options_.range.begin;
  FragmentArrays::Set& set = arrays_.set();
  FragmentState state{.theta = set.theta, .published = set.published, .optimizer = {}};
  for (FloatBuffer& array : set.optimizer) state.optimizer.emplace_back(array);
  absl::StatusOr<MergeResult> merged;
  if (options_.merge_pool->threads == nullptr) {
    merged = MergeFragment(input, state, nullptr);
  } else {
    absl::MutexLock pool_lock(&options_.merge_pool->mutex);
    merged = MergeFragment(input, state, options_.merge_pool->threads);
  }
  state_is_void_ = !merged.ok() && !(rehearse && absl::IsFailedPrecondition(merged.status()));
  RETURN_IF_ERROR(Annotate(merged.status(), absl::StrCat("cannot merge round ", round,
                                                         " of fragment ", options_.fragment)));
  return merged;
}

void FragmentRounds::RememberPast(int64_t round, std::map<std::string, uint64_t> object_hashes) {
  past_[round] = std::move(object_hashes);
  if (past_.size() > kPastRounds) past_.erase(past_.begin());
  while (!quarantined_.empty() && quarantined_.begin()->first < past_.begin()->first) {
    quarantined_.erase(quarantined_.begin());
  }
}

void FragmentRounds::RememberNorms(const std::vector<double>& merged,
                                   const std::vector<double>& quarantined) {
  // Where all are out of line it is the fragment that has changed, not a worker.
  for (const double norm : merged.empty() ? quarantined : merged) norms_.Add(norm);
}

std::shared_ptr<PullObject> FragmentRounds::MakeAnswer(const v1::Round& record, ByteBuffer bytes,
                                                       std::vector<uint64_t> leaves) const {
  auto answer = std::make_shared<PullObject>();
  answer->header.set_fragment(options_.fragment);
  answer->header.set_round(record.round());
  answer->header.set_codec(options_.codec_down->id());
  answer->header.set_total_bytes(static_cast<int64_t>(bytes.size()));
  answer->header.set_object_hash(record.answer_hash());
  answer->header.set_published_hash(record.published_hash());
  answer->bytes = std::move(bytes);
  answer->leaves = std::move(leaves);
  return answer;
}

absl::StatusOr<std::shared_ptr<const PullObject>> FragmentRounds::AnswerOrWait(
    int64_t round, PullCallback& callback) {
  v1::Round record;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t open = static_cast<int64_t>(published_hashes_.size());
    if (round < 1 || round > open) {
      return absl::FailedPreconditionError(absl::StrCat("there is no answer of round ", round,
                                                        " of fragment ", options_.fragment,
                                                        " to wait for: round ", open, " is open"));
    }
    if (round == open) {
      waiters_.push_back(std::move(callback));
      return nullptr;
    }
    if (round < first_answer_) {
      return absl::NotFoundError(absl::StrCat("the answer of round ", round, " of fragment ",
                                              options_.fragment, " is no longer kept (version ",
                                              open - 1, " is published): fetch the STATE"));
    }
    if (const auto held = answers_.find(round); held != answers_.end()) {
      if (std::shared_ptr<const PullObject> answer = held->second.lock()) return answer;
    }
    record.set_round(round);
    record.set_published_hash(published_hashes_[static_cast<size_t>(round)]);
  }
  const absl::StatusOr<std::vector<uint8_t>> bytes =
      options_.store->ReadAnswer(options_.fragment, round);
  if (!bytes.ok()) {
    // Whoever asks can go on without this answer; whoever runs the disk should know.
    Log().error("the answer of round {} of fragment {} cannot be read: {}", round,
                options_.fragment, std::string(bytes.status().message()));
    return absl::NotFoundError(absl::StrCat("the answer of round ", round, " of fragment ",
                                            options_.fragment,
                                            " cannot be read any more: fetch the STATE"));
  }
  std::vector<uint64_t> leaves = LeafChecksums(*bytes);
  record.set_answer_hash(TreeRoot(leaves));
  std::shared_ptr<const PullObject> answer =
      MakeAnswer(record, ByteBuffer(bytes->begin(), bytes->end()), std::move(leaves));
  absl::MutexLock lock(&mutex_);
  answers_[round] = answer;  // For others who want it meanwhile.
  return answer;
}

std::vector<PullCallback> FragmentRounds::TakeWaiters() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(waiters_, {});
}

int64_t FragmentRounds::rounds_since_snapshot() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(published_hashes_.size()) - 1 - snapshot_version_;
}

int64_t FragmentRounds::snapshot_version() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_version_;
}

absl::Status FragmentRounds::ForgetAnswers(int64_t before_round) {
  {
    absl::MutexLock lock(&mutex_);
    // A region's state is folded from the answers since a snapshot.
    if (options_.region()) before_round = std::min(before_round, older_snapshot_ + 1);
    if (before_round <= first_answer_) return absl::OkStatus();
    first_answer_ = before_round;
    answers_.erase(answers_.begin(), answers_.lower_bound(before_round));
  }
  return options_.store->ForgetAnswers(options_.fragment, before_round);
}

int64_t FragmentRounds::version() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(published_hashes_.size()) - 1;
}

absl::StatusOr<uint64_t> FragmentRounds::PublishedHash(int64_t version) const {
  absl::MutexLock lock(&mutex_);
  if (version < 0 || version >= static_cast<int64_t>(published_hashes_.size())) {
    return absl::OutOfRangeError(absl::StrCat("version ", version, " of fragment ",
                                              options_.fragment, " is not published; version ",
                                              published_hashes_.size() - 1, " is"));
  }
  return published_hashes_[static_cast<size_t>(version)];
}

}  // namespace causeway::server
