
#include "server/core/region_role.h"

namespace causeway::server {
namespace {

// The same draws in as few ranges as they have, and no more than a delta may name.
Draws InFewRanges(Draws draws) {
  std::ranges::sort(draws, {},
                    [](const DrawRange& range) { return std::make_pair(range.slot, range.begin); });
  Draws few;
  for (const DrawRange& range : draws) AddDraws(range, few);
  if (std::ssize(few) > kMaxDrawRanges) few.resize(kMaxDrawRanges);
  return few;
}

// Adds what a contribution was trained on.
void AddClaims(const v1::Contribution& record, int64_t& tokens, Draws& draws) {
  tokens += record.header().tokens();
  for (const DrawRange& range : DrawsOf(record.header().draws())) AddDraws(range, draws);
}

bool IsLate(const v1::Round& round) {
  return std::ranges::any_of(round.weights(), [](double weight) { return weight < 0; });
}

}  // namespace

absl::StatusOr<MergeResult> RegionRounds::Merge(int64_t round,
                                                std::vector<Contribution> contributions,
                                                bool /*rehearse*/) {
  const v1::SyncConfig& sync = options_.config->sync();
  RegionMergeInput input;
  input.deltas = {.contributions = std::move(contributions),
                  .kind = sync.contribution(),
                  .rule = MergeRuleOf(options_.config->outer()),
                  .published = arrays_.set().published};
  input.codec = options_.codec_up;
  input.decay =
      sync.has_error_feedback_decay() ? static_cast<float>(sync.error_feedback_decay()) : 1.0F;
  next_theta_ = arrays_.set().theta;
  const std::span<float> residual =
      carries_rest() ? std::span<float>(next_theta_) : std::span<float>();
  absl::StatusOr<MergeResult> merged = options_.merge_pool->With(
      [&](ThreadPool* threads) { return MergeForParent(input, residual, threads); });
  if (!merged.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot merge round ", round, " of fragment ", options_.fragment,
                     " for the parent: ", merged.status().message()));
  }
  return merged;
}

void RegionRounds::Reconsider(const OpenRound& round, Decision& decision) {
  if (sent_before_.has_value()) {
    decision = {.action = Decision::kClose,
                .reason = "it was closed before the coordinator started again",
                .missing = {}};
  } else if (decision.action == Decision::kWait && round.round <= parent_version_) {
    decision.action = Decision::kClose;
    decision.reason = "the parent has published it";
  }
}

absl::StatusOr<std::optional<PublishedRound>> RegionRounds::Finish(ClosedRound closed) {
  RoundLedger::Begun begun = std::exchange(closed.begun, {});
  absl::StatusOr<RegionDelta> delta = CloseForParent(closed);
  if (delta.ok()) {
    TellClosed(begun);
  } else {
    // Nobody has heard of it: the round is closed anew when there is room.
    if (!absl::IsResourceExhausted(delta.status())) return delta.status();
    absl::MutexLock lock(&mutex_);
    ledger_.Reopen(std::move(begun));
  }
  go_up_(*this, std::move(delta));
  return std::nullopt;
}

absl::StatusOr<RegionDelta> RegionRounds::CloseForParent(ClosedRound& closed) {
  absl::WriterMutexLock data_lock(&data_mutex_);
  ASSIGN_OR_RETURN(MergeResult merged, MergeWhatCanBe(closed));
  const v1::Round& round_record = closed.result.record;
  const int64_t round = round_record.round();
  const bool empty = round_record.contributors().empty();
  RegionDelta delta;
  delta.due_step = options_.schedule.MergeStep(options_.fragment, round);
  delta.object = SharedBytes(std::move(merged.answer));
  delta.leaves = std::move(merged.answer_leaves);
  // What carries nothing counts for nothing.
  int64_t tokens = 0;
  Draws draws;
  std::optional<uint64_t> before;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(sent_before_, std::nullopt);
    if (!empty) tokens = late_tokens_;
    if (!empty) draws = late_draws_;
    delta.contributes = before.has_value() || !empty || round > parent_version_;
  }
  for (const std::string& id : round_record.contributors()) {
    AddClaims(closed.contributions.at(id).record, tokens, draws);
  }
  v1::Contribution record;
  v1::PushHeader& header = *record.mutable_header();
  header.set_worker_id(id_);
  header.set_fragment(options_.fragment);
  header.set_round(round);
  header.set_codec(options_.codec_up->id());
  header.set_total_bytes(static_cast<int64_t>(delta.object.size()));
  header.set_object_hash(merged.answer_hash);
  header.set_tokens(tokens);
  header.set_send_step(round_record.send_step());
  record.set_unix_s(round_record.closed_unix_s());
  delta.header = header;
  DrawsToProto(InFewRanges(std::move(draws)), delta.header.mutable_draws());
  delta.maybe_sent = before.has_value();
  if (before.has_value() && *before != merged.answer_hash) {
    return absl::DataLossError(absl::StrCat(
        "round ", round, " of fragment ", options_.fragment, " was closed with a delta of hash ",
        HashToHex(*before), "; merged again it has ", HashToHex(merged.answer_hash),
        ": the run directory is damaged, or another release merges differently: restore it from a "
        "backup, or continue with the release that wrote it"));
  }
  if (delta.contributes && !before.has_value()) {
    const absl::Status saved = options_.store->SaveContribution(record, delta.object.view());
    if (absl::IsResourceExhausted(saved)) return saved;
    if (!saved.ok()) {
      return absl::InternalError(absl::StrCat("the store failed: ", saved.ToString()));
    }
  }
  sent_ = delta.object;
  at_parent_ = std::move(closed);
  keeps_arrays_ = true;
  return delta;
}

void RegionRounds::NoteParentVersion(int64_t round) {
  absl::MutexLock lock(&mutex_);
  parent_version_ = std::max(parent_version_, round);
}

absl::StatusOr<PublishedRound> RegionRounds::AcceptAnswer(ParentAnswer answer) {
  absl::WriterMutexLock data_lock(&data_mutex_);
  if (!at_parent_.has_value() || answer.round != at_parent_->result.record.round() ||
      answer.codec != options_.codec_down->id()) {
    return absl::DataLossError(absl::StrCat(
        "the parent answered fragment ", options_.fragment, " with round ", answer.round, " in ",
        v1::Codec_Name(answer.codec), ": another one was asked for"));
  }
  ClosedRound closed = *std::exchange(at_parent_, std::nullopt);
  keeps_arrays_ = false;
  v1::Round& record = closed.result.record;
  int64_t tokens = 0;
  Draws draws;
  if (answer.late) {
    for (double& weight : *record.mutable_weights()) weight = -weight;
    absl::StrAppend(record.mutable_reason(), "; the parent had closed it without this region");
    if (carries_rest() && !record.contributors().empty()) {
      RETURN_IF_ERROR(
          FoldBack(*options_.codec_up, sent_.view(), arrays_.set().published, next_theta_));
      absl::MutexLock lock(&mutex_);
      tokens = late_tokens_;
      draws = late_draws_;
      for (const std::string& id : record.contributors()) {
        AddClaims(closed.contributions.at(id).record, tokens, draws);
      }
    }
  }
  const bool carried_on = record.contributors().empty();
  RETURN_IF_ERROR(Annotate(options_.codec_down->Apply(answer.bytes, arrays_.set().published),
                           "the parent's answer cannot be applied"));
  state_is_void_ = true;  // Until it is stored.
  record.set_published_hash(TreeHash(std::span<const float>(arrays_.set().published)));
  if (record.published_hash() != answer.published_hash) {
    return absl::DataLossError(absl::StrCat(
        "after round ", record.round(), " of fragment ", options_.fragment, " this region holds ",
        HashToHex(record.published_hash()), ", its parent published ",
        HashToHex(answer.published_hash), ": serve a fresh --run_dir"));
  }
  std::swap(arrays_.set().theta, next_theta_);
  next_theta_ = {};
  sent_ = {};
  std::vector<uint64_t> leaves = LeafChecksums(answer.bytes);
  record.set_answer_hash(TreeRoot(leaves));
  ASSIGN_OR_RETURN(PublishedRound published,
                   StoreAndPublish(std::move(closed), std::move(answer.bytes), std::move(leaves)));
  absl::MutexLock lock(&mutex_);
  // A round without sites carried nothing: what was late is still on its way.
  if (!carried_on) {
    late_tokens_ = tokens;
    late_draws_ = std::move(draws);
  }
  return published;
}

absl::Status RegionRounds::Refold(const v1::Round& round, std::vector<Contribution> contributions) {
  const bool late = IsLate(round);
  for (Contribution& contribution : contributions) {
    contribution.weight = std::abs(contribution.weight);
  }
  if (!contributions.empty()) {
    ASSIGN_OR_RETURN(const MergeResult merged,
                     Merge(round.round(), std::move(contributions), /*rehearse=*/false));
    if (late && carries_rest()) {
      RETURN_IF_ERROR(
          FoldBack(*options_.codec_up, merged.answer, arrays_.set().published, next_theta_));
    }
    std::swap(arrays_.set().theta, next_theta_);
    next_theta_ = {};
  }
  ASSIGN_OR_RETURN(const std::vector<uint8_t> answer,
                   options_.store->ReadAnswer(options_.fragment, round.round()));
  RETURN_IF_ERROR(options_.codec_down->Apply(answer, arrays_.set().published));
  const uint64_t hash = TreeHash(std::span<const float>(arrays_.set().published));
  if (hash == round.published_hash()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "version ", round.round(), " of fragment ", options_.fragment, " hashes to ", HashToHex(hash),
      ", recorded is ", HashToHex(round.published_hash()),
      ": the region's run directory is damaged: restore it from a backup, or begin with a fresh "
      "one"));
}

absl::StatusOr<std::vector<FragmentRounds::Damaged>> RegionRounds::Recover(const History& history) {
  // Its own are no site's.
  std::vector<v1::Contribution> of_sites;
  std::optional<uint64_t> sent;
  for (const v1::Contribution& record : history.contributions) {
    if (record.header().worker_id() != id_) {
      of_sites.push_back(record);
    } else if (record.header().round() > std::ssize(history.rounds)) {
      sent = record.header().object_hash();
    }
  }
  History sites = history;
  sites.contributions = of_sites;
  ASSIGN_OR_RETURN(std::vector<Damaged> damaged, FragmentRounds::Recover(sites));
  absl::MutexLock lock(&mutex_);
  sent_before_ = sent;
  closed_before_ = sent.has_value() && ledger_.Close();
  if (!carries_rest()) return damaged;
  // What the newest rounds with sites left out, as far back as all of them were late.
  auto late = history.rounds.end();
  for (auto round = late; round != history.rounds.begin();) {
    --round;
    if (round->contributors().empty()) continue;
    if (!IsLate(*round)) break;
    late = round;
  }
  if (late == history.rounds.end()) return damaged;
  for (const v1::Contribution& record : of_sites) {
    const int64_t round = record.header().round();
    if (round < late->round() || round > std::ssize(history.rounds)) continue;
    const auto& contributors = history.rounds[static_cast<size_t>(round - 1)].contributors();
    if (!std::ranges::binary_search(contributors, record.header().worker_id())) continue;
    AddClaims(record, late_tokens_, late_draws_);
  }
  return damaged;
}

absl::Status RegionRounds::ForgetAnswers(int64_t before_round) {
  {
    absl::MutexLock lock(&mutex_);
    before_round = std::min(before_round, older_snapshot_ + 1);
  }
  return FragmentRounds::ForgetAnswers(before_round);
}

}  // namespace causeway::server
