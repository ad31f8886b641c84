// Construction, the exchange, and time. Sessions are in coordinator_sessions.cc, administration in
// coordinator_admin.cc.
#include "server/core/coordinator_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

// Steps that a worker may have trained without contributing them: a delta that is being taken, one
// on its way and one that was late; and as many as a takeover may repeat.
int64_t ReserveSteps(const v1::SyncConfig& sync) {
  return 3 * int64_t{sync.steps_between_syncs()} + 2 * int64_t{MaxOverlapSteps(sync)} + 8;
}

}  // namespace

bool IsFatal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

absl::Status CheckRunId(absl::string_view call, absl::string_view run_id,
                        absl::string_view own_run_id) {
  if (run_id == own_run_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this is the run ", own_run_id, ", the ", call, " is for ", run_id,
                   ": the worker belongs to another run; check its --coordinator, or start it "
                   "anew with a fresh --out"));
}

absl::Status CheckEpoch(absl::string_view worker_id, int64_t seen, int64_t own) {
  if (seen <= own) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", worker_id, " has taken part under epoch ", seen,
      " of this run, this coordinator has ", own,
      ": it serves an old copy of the run directory, or another coordinator has taken over; "
      "serve the newest directory alone"));
}

absl::StatusOr<BroughtModel> Coordinator::AdmitModel(const v1::ModelHeader&) const {
  return absl::AlreadyExistsError(
      absl::StrCat("the run ", run_id(), " has its model: describe it again, and join"));
}

absl::Status Coordinator::BeginWith(BroughtModel, std::vector<float>) {
  return AdmitModel({}).status();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(Options options) {
  return CoordinatorImpl::Create(std::move(options));
}

absl::StatusOr<std::unique_ptr<CoordinatorImpl>> CoordinatorImpl::Create(Options options) {
  ASSIGN_OR_RETURN(FragmentPlan plan, FragmentPlan::Create(options.config));
  const auto arena =
      std::make_shared<const std::vector<float>>(std::exchange(options.initial_parameters, {}));
  InitialValues initial = std::exchange(options.initial_values, nullptr);
  const std::optional<RecoveredRun> recovered = std::exchange(options.recovered, std::nullopt);
  const bool is_given = initial != nullptr;
  if (!is_given && !(recovered.has_value() && arena->empty()) &&
      std::ssize(*arena) != plan.arena_size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan takes ", plan.arena_size(),
                                                   " initial values, there are ", arena->size()));
  }
  v1::OuterConfig outer = options.config.outer();
  // Its parent's parent, or the one above, has the run's: a region steps nothing and keeps no
  // state.
  if (options.region.has_value()) outer.set_optimizer(v1::OuterConfig::SGD);
  ASSIGN_OR_RETURN(std::unique_ptr<const OuterOptimizer> optimizer,
                   CreateOuterOptimizer(outer, options.config.train(), plan.tensors()));
  if (options.events == nullptr) options.events = NullEventLog();
  std::unique_ptr<CoordinatorImpl> coordinator(
      new CoordinatorImpl(std::move(options), std::move(plan), std::move(optimizer)));
  RETURN_IF_ERROR(coordinator->MakeFragments());
  if (!is_given) {
    initial = [arena, &own = coordinator->plan_](int fragment, std::span<float> values) {
      const FragmentRange& range = own.range(fragment);
      if (std::ssize(*arena) < range.end) {
        return absl::DataLossError(absl::StrCat("fragment ", fragment, " has no snapshot"));
      }
      std::copy(arena->begin() + range.begin, arena->begin() + range.end, values.begin());
      return absl::OkStatus();
    };
  }
  if (recovered.has_value()) {
    RETURN_IF_ERROR(coordinator->Recover(*recovered, initial));
  } else {
    for (const auto& fragment : coordinator->fragments_) {
      const FragmentRange& range = coordinator->plan_.range(fragment->fragment());
      FloatBuffer values(static_cast<size_t>(range.size()));
      RETURN_IF_ERROR(initial(fragment->fragment(), values));
      fragment->Begin(std::move(values));
    }
    RETURN_IF_ERROR(coordinator->options_.store->BeginRun(coordinator->Identity()));
  }
  ASSIGN_OR_RETURN(coordinator->epoch_, coordinator->options_.store->TakeOver());
  return coordinator;
}

absl::Status CoordinatorImpl::MakeFragments() {
  ASSIGN_OR_RETURN(const Codec* const codec_up, FindCodec(options_.config.sync().codec_up()));
  ASSIGN_OR_RETURN(const Codec* const codec_down, FindCodec(options_.config.sync().codec_down()));
  const size_t states = optimizer_->state_names().size();
  if (!options_.scratch_folder.empty()) {
    uint64_t bytes = 0;
    for (int i = 0; i < plan_.fragments(); ++i) {
      bytes += FragmentArrays::BytesAtRest(static_cast<size_t>(plan_.range(i).size()), states);
    }
    auto scratch = ScratchFile::Create(options_.scratch_folder, bytes);
    if (scratch.ok()) {
      scratch_ = *std::move(scratch);
    } else {
      Log().warn("all fragments stay in memory, {} bytes: {}", bytes,
                 std::string(scratch.status().message()));
    }
  }
  uint64_t scratch_offset = 0;
  for (int i = 0; i < plan_.fragments(); ++i) {
    fragments_.push_back(
        std::make_unique<FragmentRounds>(FragmentRounds::Options{.fragment = i,
                                                                 .range = plan_.range(i),
                                                                 .config = &options_.config,
                                                                 .optimizer = optimizer_.get(),
                                                                 .codec_up = codec_up,
                                                                 .codec_down = codec_down,
                                                                 .clock = options_.clock,
                                                                 .store = options_.store,
                                                                 .merge_pool = &merge_pool_,
                                                                 .answers = &answers_,
                                                                 .scratch = scratch_.get(),
                                                                 .scratch_offset = scratch_offset,
                                                                 .schedule = schedule_,
                                                                 .region_id = RegionId()}));
    scratch_offset +=
        FragmentArrays::BytesAtRest(static_cast<size_t>(plan_.range(i).size()), states);
  }
  return absl::OkStatus();
}

CoordinatorImpl::CoordinatorImpl(Options options, FragmentPlan plan,
                                 std::unique_ptr<const OuterOptimizer> optimizer)
    : options_(std::move(options)),
      plan_(std::move(plan)),
      schedule_(plan_.fragments(), options_.config.sync().steps_between_syncs(),
                MaxOverlapSteps(options_.config.sync())),
      // The run's quorum is of all its workers: the parent looks at that.
      policy_({.quorum = region() ? 1 : options_.config.membership().quorum(),
               .grace = absl::Milliseconds(options_.config.membership().grace_ms()),
               .adaptive = options_.config.membership().adaptive_grace(),
               .overlap_steps = MaxOverlapSteps(options_.config.sync())}),
      optimizer_(std::move(optimizer)),
      config_hash_(RunConfigHash(options_.config)),
      membership_(region() ? options_.region->sites : options_.config.membership().max_workers(),
                  absl::Milliseconds(options_.config.membership().lease_ms())),
      draws_(options_.config.train().batch_sequences(), ReserveSteps(options_.config.sync())),
      tokens_(TokensPerStep(options_.config), LargestPace(options_.config) - 1),
      incidents_(options_.events, options_.clock,
                 [this](const std::string& id, const std::string& text) { Tell(id, text); }) {
  merge_pool_.threads = options_.merge_pool;
}

v1::DescribeResponse CoordinatorImpl::Describe() const {
  v1::DescribeResponse response;
  response.set_run_id(options_.run_id);
  *response.mutable_config() = options_.config;
  response.set_config_hash(config_hash_);
  response.set_plan_hash(plan_.hash());
  response.set_wire_version(kWireVersion);
  response.set_software_version(kSoftwareVersion);
  if (region()) {
    for (const std::string& id : options_.region->above) response.add_regions(id);
    response.add_regions(options_.region->id);
  }
  return response;
}

absl::Status CoordinatorImpl::Serving() const {
  absl::MutexLock lock(&members_mutex_);
  RETURN_IF_ERROR(failure_);
  if (shut_down_) return absl::UnavailableError("the coordinator is shutting down");
  return absl::OkStatus();
}

absl::StatusOr<FragmentRounds*> CoordinatorImpl::FindFragment(int fragment) const {
  if (fragment < 0 || fragment >= plan_.fragments()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no fragment ", fragment, ": the run has ", plan_.fragments(), " of them"));
  }
  return fragments_[static_cast<size_t>(fragment)].get();
}

std::vector<OpenRound> CoordinatorImpl::OpenRounds() const {
  std::vector<OpenRound> rounds;
  for (const auto& fragment : fragments_) rounds.push_back(fragment->open_round());
  return rounds;
}

absl::Status CoordinatorImpl::CheckPush(const v1::PushHeader& header) const {
  RETURN_IF_ERROR(Serving());
  RETURN_IF_ERROR(CheckRunId("push", header.run_id(), options_.run_id));
  RETURN_IF_ERROR(CheckEpoch(header.worker_id(), header.epoch(), epoch_));
  absl::MutexLock lock(&members_mutex_);
  absl::Status member = membership_.Check(header.worker_id(), header.incarnation());
  // Not ABORTED, which would say that the round closed: if it is the same process, which has
  // attached again meanwhile, the round still expects this contribution.
  if (absl::IsAborted(member)) {
    return absl::UnavailableError(
        absl::StrCat(member.message(), "; if it is yours, repeat the push with it"));
  }
  return member;
}

absl::StatusOr<std::optional<v1::PushResponse>> CoordinatorImpl::BeginPush(
    const v1::PushHeader& header, RoundClosed closed) {
  RETURN_IF_ERROR(CheckPush(header));
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, FindFragment(header.fragment()));
  const absl::StatusOr<std::optional<v1::PushResponse>> held =
      fragment->BeginPush(header, std::move(closed));
  if (absl::IsAborted(held.status())) incidents_.Late(header, held.status());
  if (!held.ok() || held->has_value()) return held;
  // Before it is sent rather than after.
  const absl::Status room = options_.store->CheckRoom(static_cast<uint64_t>(header.total_bytes()));
  incidents_.NoteRoom(room);
  RETURN_IF_ERROR(room);
  for (RunObserver* const observer : options_.observers) observer->OnPushBegun(header);
  return std::nullopt;
}

CoordinatorImpl::DroppedDraws CoordinatorImpl::DropImpossibleDraws(const FragmentRounds& fragment,
                                                                   v1::PushHeader& header) const {
  DroppedDraws dropped;
  // A delta to a round that does not exist is refused.
  if (header.round() < 1 || header.round() > fragment.version() + 1) return dropped;
  const int64_t step = schedule_.SendStep(fragment.fragment(), header.round());
  auto& draws = *header.mutable_draws();
  absl::MutexLock lock(&members_mutex_);
  const Member* const member = membership_.Find(header.worker_id());
  const auto cannot_be = [&](v1::DrawRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_) {
    if (range.data_slot() == kOwnData) return false;  // It is nobody else's.
    if (member == nullptr || !member->had_slots.contains(range.data_slot())) {
      ++dropped.foreign;
      return true;
    }
    const int64_t end = draws_.PossibleEnd(range.data_slot(), step);
    if (range.end() <= end) return false;
    ++dropped.ahead;
    range.set_end(end);
    return range.begin() >= end;
  };
  draws.erase(std::remove_if(draws.begin(), draws.end(), cannot_be), draws.end());
  return dropped;
}

std::vector<double> CoordinatorImpl::MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                                 std::span<const uint8_t> bytes) const {
  const absl::StatusOr<FragmentRounds*> found = FindFragment(fragment);
  if (!found.ok()) return {};
  return (*found)->MeasureLeaf(round, leaf, bytes);
}

absl::StatusOr<v1::PushResponse> CoordinatorImpl::Contribute(const v1::PushHeader& claimed,
                                                             ReceivedObject object) {
  const Call call(*this);
  RETURN_IF_ERROR(CheckPush(claimed));
  v1::PushHeader header = claimed;
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, FindFragment(header.fragment()));
  // The delta counts, the claim does not: nobody keeps others from the text of their parts.
  const DroppedDraws dropped = DropImpossibleDraws(*fragment, header);
  const int64_t claimed_tokens = CutTokens(*fragment, header);
  const absl::StatusOr<AddedContribution> added = fragment->Add(header, std::move(object));
  if (IsFatal(added.status())) return Fail(added.status());
  if (absl::IsAborted(added.status())) incidents_.Late(header, added.status());
  if (absl::IsResourceExhausted(added.status())) incidents_.NoteRoom(added.status());
  if (added.ok() && !added->response.duplicate()) {
    {
      absl::MutexLock lock(&members_mutex_);
      v1::Member& account = accounts_[header.worker_id()];
      account.set_bytes_up(account.bytes_up() + header.total_bytes());
      draws_.Add(header.worker_id(), DrawsOf(header.draws()),
                 schedule_.SendStep(header.fragment(), header.round()));
      tokens_.Add(header.fragment(), header.worker_id(), header.tokens(),
                  schedule_.SendStep(header.fragment(), header.round()));
    }
    for (RunObserver* const observer : options_.observers) {
      observer->OnContributed(header, added->quarantined());
    }
    if (dropped.foreign + dropped.ahead > 0) {
      incidents_.DrawsIgnored(header, dropped.foreign, dropped.ahead);
    }
    if (header.tokens() < claimed_tokens) {
      incidents_.TokensCut(header.fragment(), header.round(),
                           {header.worker_id(), claimed_tokens, header.tokens()});
    }
    if (added->quarantined()) incidents_.Quarantined(header, *added);
  }
  RETURN_IF_ERROR(added.status());
  v1::PushResponse response = added->response;
  if (added->may_overflow) {
    Advance(*fragment);
    const auto held = fragment->FindHeld(header);
    if (held.ok() && held->has_value()) response.set_quarantined((*held)->quarantined());
  }
  return response;
}

void CoordinatorImpl::MergeDue(int fragment) {
  const Call call(*this);
  const absl::StatusOr<FragmentRounds*> found = FindFragment(fragment);
  if (found.ok()) Advance(**found);
}

int64_t CoordinatorImpl::CutTokens(const FragmentRounds& fragment, v1::PushHeader& header) const {
  const int64_t claimed = header.tokens();
  if (header.round() < 1 || header.round() > fragment.version() + 1) return claimed;
  const int64_t step = schedule_.SendStep(fragment.fragment(), header.round());
  absl::MutexLock lock(&members_mutex_);
  const int64_t most = tokens_.Most(fragment.fragment(), header.worker_id(), step);
  if (claimed > most) header.set_tokens(most);
  return claimed;
}

void CoordinatorImpl::PullAnswer(int fragment, int64_t round, PullCallback callback) {
  const absl::StatusOr<FragmentRounds*> found = FindFragment(fragment);
  absl::Status serving = Serving();
  if (serving.ok()) serving = found.status();
  if (!serving.ok()) {
    callback(serving);
    return;
  }
  absl::StatusOr<std::shared_ptr<const PullObject>> answer =
      (*found)->AnswerOrWait(round, callback);
  if (!answer.ok() || *answer != nullptr) {
    callback(std::move(answer));
    return;
  }
  // It waits now; but if the end came in between, nobody else will call it back.
  serving = Serving();
  if (serving.ok()) return;
  for (const PullCallback& waiter : (*found)->TakeWaiters()) waiter(serving);
}

absl::StatusOr<std::shared_ptr<const PullObject>> CoordinatorImpl::PullState(int fragment) {
  RETURN_IF_ERROR(Serving());
  ASSIGN_OR_RETURN(FragmentRounds* const found, FindFragment(fragment));
  return found->State();
}

void CoordinatorImpl::RecordPulled(const std::string& worker_id, v1::Want::Object object,
                                   int64_t bytes) {
  absl::MutexLock lock(&members_mutex_);
  const auto found = accounts_.find(worker_id);
  if (found == accounts_.end()) return;  // An id that never joined is not kept an account of.
  v1::Member& account = found->second;
  if (object == v1::Want::ANSWER) {
    account.set_bytes_down(account.bytes_down() + bytes);
  } else {
    account.set_state_bytes_down(account.state_bytes_down() + bytes);
  }
}

RoundPolicy CoordinatorImpl::PolicyNow() const {
  RoundPolicy policy = policy_;
  policy.stop_step = state_.stop_step();
  return policy;
}

void CoordinatorImpl::Advance(FragmentRounds& fragment) {
  while (Serving().ok()) {
    std::map<std::string, Member> members;
    RoundPolicy policy;
    {
      absl::MutexLock lock(&members_mutex_);
      members = membership_.members();
      policy = PolicyNow();
    }
    const absl::StatusOr<std::optional<PublishedRound>> round = fragment.Advance(members, policy);
    if (region() && absl::IsResourceExhausted(round.status())) {
      return incidents_.NoteRoom(round.status());  // The next Tick tries again.
    }
    if (!round.ok()) {
      Fail(round.status()).IgnoreError();
      return;
    }
    if (region()) return CarryUp(fragment);
    if (!round->has_value()) return;
    Announce(**round);
    fragment.Rest();
  }
}

void CoordinatorImpl::Announce(const PublishedRound& round) {
  const v1::Round& record = round.record;
  for (RunObserver* const observer : options_.observers) {
    observer->OnPublished(record, round.missing);
  }
  incidents_.Published(round);
  for (const PullCallback& waiter : round.waiters) waiter(round.answer);
  BroadcastOutcome(record);
}

void CoordinatorImpl::BroadcastOutcome(const v1::Round& record) {
  v1::CoordinatorMessage message;
  v1::RoundOutcome& outcome = *message.mutable_round_outcome();
  outcome.set_fragment(record.fragment());
  outcome.set_round(record.round());
  *outcome.mutable_contributors() = record.contributors();
  outcome.set_published_hash(record.published_hash());
  outcome.set_reason(record.reason());
  Broadcast(message);
}

void CoordinatorImpl::Tick() {
  const Call call(*this);
  if (!Serving().ok()) return;
  std::vector<std::string> lost;
  std::vector<std::shared_ptr<SessionSink>> silent;
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    lost = membership_.Expire(options_.clock->Monotonic());
    for (const std::string& id : lost) {
      const auto sink = sinks_.find(id);
      if (sink == sinks_.end()) continue;
      silent.push_back(std::move(sink->second));
      sinks_.erase(sink);
    }
    if (!lost.empty()) AddRoster(outbox);
  }
  for (const auto& sink : silent) {
    sink->Close(absl::UnavailableError(absl::StrCat("no heartbeat came for ",
                                                    options_.config.membership().lease_ms(),
                                                    " ms: the lease ended; attach again")));
  }
  for (const std::string& id : lost) {
    Record("worker_lost",
           absl::StrCat("worker ", id, " was silent for ", options_.config.membership().lease_ms(),
                        " ms and is taken for dead; rounds go on without it"),
           {{"worker", id}});
  }
  Send(outbox);
  for (const std::string& id : lost) {
    if (!SaveMember(id).ok()) return;
  }
  if (!lost.empty()) NoteIfFinished();
  for (const auto& fragment : fragments_) Advance(*fragment);
}

absl::Status CoordinatorImpl::Fail(const absl::Status& status) {
  const std::string message = absl::StrCat("the coordinator stopped: ", status.message());
  // A training that diverged is at its end. A disk can be mended: the workers wait for a successor.
  const absl::Status told = absl::IsFailedPrecondition(status) ? absl::InternalError(message)
                                                               : absl::UnavailableError(message);
  Sinks sinks;
  {
    absl::MutexLock lock(&members_mutex_);
    if (!failure_.ok()) return failure_;
    if (shut_down_) return told;
    failure_ = told;
    sinks.swap(sinks_);
  }
  Record("failed", std::string(told.message()), nlohmann::json::object());
  for (const auto& fragment : fragments_) {
    for (const PullCallback& waiter : fragment->TakeWaiters()) waiter(told);
  }
  for (const auto& [id, sink] : sinks) sink->Close(told);
  return told;
}

}  // namespace causeway::server
