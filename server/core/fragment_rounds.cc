#include "server/core/fragment_rounds.h"

namespace causeway::server {
namespace {

// Weight of a merge in the smoothed merge time.
constexpr double kNewestMerge = 0.25;
// A fragment's values and deltas have norms far below; what is above may overflow.
constexpr double kSafeNorm = 1e12;
// membership.norm_cap where it is 0.
constexpr double kDefaultNormCap = 10;
// A fragment of zeros, such as biases, may be moved, too.
constexpr double kSmallestParameter = 0.02;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

FragmentRounds::FragmentRounds(const Options& options)
    : options_(options),
      arrays_(static_cast<size_t>(options.range.size()), options.optimizer->state_names().size(),
              options.scratch, options.scratch_offset),
      ledger_(options.fragment),
      check_(options.fragment, options.range, *options.codec_up, *options.config),
      versions_(options.fragment, options.codec_down->id(), options.store, options.answers) {}

void FragmentRounds::TellClosed(const RoundLedger::Begun& begun) {
  for (const auto& [id, closed] : begun) closed();
}

absl::StatusOr<std::optional<v1::PushResponse>> FragmentRounds::Find(
    const v1::PushHeader& header) const {
  if (header.base_hash() != 0 && header.round() >= 1 && header.round() <= ledger_.open()) {
    ASSIGN_OR_RETURN(const uint64_t base, versions_.Hash(header.round() - 1));
    if (base != header.base_hash()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the delta of ", header.worker_id(), " to round ", header.round(), " of fragment ",
          header.fragment(), " was taken against ", HashToHex(header.base_hash()),
          ", published here is ", HashToHex(base),
          ": the worker trained with another coordinator of this run, or this one serves an old "
          "copy of its run directory; serve the newest directory alone"));
    }
  }
  return ledger_.Find(header);
}

absl::StatusOr<std::optional<v1::PushResponse>> FragmentRounds::BeginPush(
    const v1::PushHeader& header, RoundClosed closed) {
  RETURN_IF_ERROR(check_.CheckHeader(header));
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<std::optional<v1::PushResponse>> held = Find(header);
  if (held.ok() && !held->has_value() && closed != nullptr) {
    ledger_.NoteBegun(header.worker_id(), std::move(closed));
  }
  return held;
}

std::vector<double> FragmentRounds::MeasureLeaf(int64_t round, int64_t leaf,
                                                std::span<const uint8_t> bytes) const {
  // A merge would hold up whoever receives.
  if (!data_mutex_.ReaderTryLock()) return {};
  bool open = !(check_.needs_base() && arrays_.at_rest());
  if (open) {
    absl::MutexLock lock(&mutex_);
    open = round == ledger_.open();
  }
  std::vector<double> all;
  if (open) all = check_.MeasureLeaf(static_cast<size_t>(leaf), bytes, arrays_.set().published);
  data_mutex_.ReaderUnlock();
  return all;
}

absl::StatusOr<AddedContribution> FragmentRounds::Add(const v1::PushHeader& header,
                                                      ReceivedObject object) {
  RETURN_IF_ERROR(check_.CheckHeader(header));
  v1::Contribution record;
  *record.mutable_header() = header;
  // These belong to the call.
  record.mutable_header()->clear_run_id();
  record.mutable_header()->clear_attempt();
  record.mutable_header()->clear_epoch();
  record.mutable_header()->clear_base_hash();
  {
    absl::MutexLock lock(&mutex_);
    const auto other_stream_is_done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !ledger_.IsAdding(header.worker_id());
    };
    mutex_.Await(absl::Condition(&other_stream_is_done));
    ASSIGN_OR_RETURN(std::optional<v1::PushResponse> held, Find(header));
    if (held.has_value()) return AddedContribution{.response = *std::move(held)};
    ledger_.BeginAdd(record);
  }
  {
    absl::ReaderMutexLock data_lock(&data_mutex_);
    arrays_.Expect();  // The round may close soon.
  }
  record.set_unix_s(UnixSeconds(options_.clock->Now()));
  absl::StatusOr<AddedContribution> added = VerifyAndSave(record, object);
  absl::MutexLock lock(&mutex_);
  if (!added.ok()) {
    ledger_.CancelAdd(header.worker_id());
    return added;
  }
  added->response =
      ledger_.EndAdd(std::move(record), std::move(object.bytes), options_.clock->Monotonic());
  return added;
}

absl::StatusOr<AddedContribution> FragmentRounds::VerifyAndSave(v1::Contribution& record,
                                                                const ReceivedObject& object) {
  const v1::PushHeader& header = record.header();
  ASSIGN_OR_RETURN(const double norm, VerifyObject(header, object));
  AddedContribution added = Judge(norm);
  {
    absl::MutexLock lock(&mutex_);
    if (!added.quarantined() && ledger_.IsRejected(header.worker_id(), header.round())) {
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

absl::StatusOr<double> FragmentRounds::VerifyObject(const v1::PushHeader& header,
                                                    const ReceivedObject& object) {
  RETURN_IF_ERROR(DeltaCheck::CheckBytes(header, object));
  // The round stays open while this contribution is under way, so the published values are its
  // base, and they do not go to rest.
  if (check_.needs_base()) {
    absl::WriterMutexLock lock(&data_mutex_);
    RETURN_IF_ERROR(Load());
  }
  absl::ReaderMutexLock lock(&data_mutex_);
  return check_.Norm(object, arrays_.set().published);
}

double FragmentRounds::PublishedNorm() const {
  const int64_t version = versions_.newest();
  {
    absl::MutexLock lock(&mutex_);
    if (published_norm_.first == version) return published_norm_.second;
  }
  const double norm = Norm(arrays_.set().published);
  absl::MutexLock lock(&mutex_);
  published_norm_ = {version, norm};
  return norm;
}

AddedContribution FragmentRounds::Judge(double norm) const {
  AddedContribution verdict;
  verdict.norm = norm;
  const v1::MembershipConfig& membership = options_.config->membership();
  {
    absl::ReaderMutexLock lock(&data_mutex_);
    const double published = PublishedNorm();
    verdict.may_overflow = std::max(norm, published) > kSafeNorm;
    const double smallest =
        kSmallestParameter * std::sqrt(static_cast<double>(options_.range.size()));
    if (options_.config->sync().contribution() != v1::SyncConfig::GRADIENT) {
      verdict.cap = (membership.norm_cap() > 0 ? membership.norm_cap() : kDefaultNormCap) *
                    std::max(published, smallest);
    }
  }
  absl::MutexLock lock(&mutex_);
  if (membership.outlier_factor() > 0) verdict.median = ledger_.norms().Median().value_or(0);
  if (IsOutlier(verdict.norm, ledger_.norms(), membership.outlier_factor())) {
    verdict.quarantine = Quarantine::kOutlier;
  } else if (verdict.cap > 0 && verdict.norm > verdict.cap) {
    verdict.quarantine = Quarantine::kAboveCap;
  }
  return verdict;
}

absl::Status FragmentRounds::Reject(const std::string& worker_id, int64_t round, bool undo) {
  absl::MutexLock lock(&mutex_);
  return ledger_.Reject(worker_id, round, undo);
}

Rejections FragmentRounds::rejections() const {
  absl::MutexLock lock(&mutex_);
  return ledger_.rejections();
}

OpenRound FragmentRounds::OpenRoundLocked() const {
  OpenRound round;
  round.fragment = options_.fragment;
  ledger_.Describe(round);
  round.send_step = options_.schedule.SendStep(options_.fragment, round.round);
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
  ClosedRound closed;
  v1::Round& record = closed.result.record;
  {
    absl::MutexLock lock(&mutex_);
    if (ledger_.closed() && !closed_before_) return std::nullopt;
    const OpenRound round = OpenRoundLocked();
    Decision decision = Decide(options_.clock->Monotonic(), round, members, policy);
    Reconsider(round, decision);
    // One that is still being added comes back here when it is done.
    if (decision.action == Decision::kWait || !ledger_.Close()) return std::nullopt;
    closed_before_ = false;
    closed.begun = ledger_.TakeBegun();
    // These stay, for those who ask while the round is merged.
    closed.contributions = ledger_.contributions();
    record.set_fragment(options_.fragment);
    record.set_round(round.round);
    record.set_send_step(round.send_step);
    record.set_reason(std::move(decision.reason));
    closed.result.missing = std::move(decision.missing);
  }
  closed.closed_at = options_.clock->Monotonic();
  record.set_closed_unix_s(UnixSeconds(options_.clock->Now()));
  for (const auto& [id, held] : closed.contributions) {
    record.set_bytes_in(record.bytes_in() + static_cast<int64_t>(held.object.size()));
  }
  return Finish(std::move(closed));
}

absl::StatusOr<MergeResult> FragmentRounds::MergeWhatCanBe(ClosedRound& closed) {
  RETURN_IF_ERROR(Load());
  const RoundLedger::Contributions& contributions = closed.contributions;
  PublishedRound& result = closed.result;
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
      const RoundLedger::Held& held = contributions.at(id);
      // Add has validated the object, against published as it still is.
      inputs.push_back({id, options_.codec_up, held.object.view(), weights[inputs.size()],
                        /*validated=*/true});
      if (largest == nullptr || held.record.norm() > contributions.at(*largest).record.norm()) {
        largest = &id;
      }
    }
    absl::StatusOr<MergeResult> merged = Merge(record.round(), std::move(inputs), rehearse);
    if (merged.ok()) {
      for (const std::string& id : record.contributors()) {
        const double unix_s = contributions.at(id).record.unix_s();
        if (record.first_unix_s() == 0 || unix_s < record.first_unix_s()) {
          record.set_first_unix_s(unix_s);
        }
      }
      return merged;
    }
    if (!rehearse || !absl::IsFailedPrecondition(merged.status()) || largest == nullptr) {
      return merged;
    }
    result.overflowed.push_back({*largest, contributions.at(*largest).record.norm(),
                                 std::string(merged.status().message())});
    left_out.insert(*largest);
  }
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
  absl::MutexLock lock(&mutex_);
  ledger_.Publish(record);
  std::tie(result.answer, result.waiters) =
      versions_.Publish(record, std::move(answer), std::move(leaves));
  const absl::Duration merge_time = options_.clock->Monotonic() - closed.closed_at;
  merge_time_ = merge_time_ == absl::ZeroDuration()
                    ? merge_time
                    : merge_time_ * (1 - kNewestMerge) + merge_time * kNewestMerge;
  return std::move(result);
}

absl::StatusOr<std::optional<PublishedRound>> HubRounds::Finish(ClosedRound closed) {
  TellClosed(closed.begun);
  // Held until the round is stored: a reader never sees values that a crash could take back.
  absl::WriterMutexLock data_lock(&data_mutex_);
  ASSIGN_OR_RETURN(MergeResult merged, MergeWhatCanBe(closed));
  closed.result.record.set_published_hash(merged.published_hash);
  closed.result.record.set_answer_hash(merged.answer_hash);
  const int64_t round = closed.result.record.round();
  ASSIGN_OR_RETURN(PublishedRound published,
                   StoreAndPublish(std::move(closed), std::move(merged.answer),
                                   std::move(merged.answer_leaves)));
  absl::MutexLock lock(&mutex_);
  published_norm_ = {round, merged.published_norm};
  return published;
}

absl::StatusOr<MergeResult> HubRounds::Merge(int64_t round, std::vector<Contribution> contributions,
                                             bool rehearse) {
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
  absl::StatusOr<MergeResult> merged = options_.merge_pool->With(
      [&](ThreadPool* threads) { return MergeFragment(input, state, threads); });
  state_is_void_ = !merged.ok() && !(rehearse && absl::IsFailedPrecondition(merged.status()));
  RETURN_IF_ERROR(Annotate(merged.status(), absl::StrCat("cannot merge round ", round,
                                                         " of fragment ", options_.fragment)));
  return merged;
}

}  // namespace causeway::server
