// The implementation behind coordinator.h, one run and the roles that act on it: construction,
// time, status and the end.

#include "server/core/coordinator.h"

#include "common/files/json.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "server/core/region_role.h"
#include "server/core/run.h"
#include "server/round/pace.h"

namespace causeway::server {
namespace {

class CoordinatorImpl final : public Coordinator {
 public:
  CoordinatorImpl(Options options, FragmentPlan plan, Tier tier,
                  std::unique_ptr<const OuterOptimizer> optimizer);
  // Makes the fragments, with what they begin with or what the store remembers.
  absl::Status Begin(const std::optional<RecoveredRun>& recovered, const InitialValues& initial);

  const v1::RunConfig& config() const override { return run_.options.config; }
  const FragmentPlan& plan() const override { return run_.plan; }
  const std::string& run_id() const override { return run_.options.run_id; }
  v1::DescribeResponse Describe() const override;
  Members& members() override { return members_; }
  Rounds& rounds() override { return rounds_; }
  Orders& orders() override { return orders_; }
  Region* region() override { return region_.get(); }
  void Tick() override;
  bool Maintain() override { return run_.Maintain(); }
  v1::RunStatus GetStatus() const override;
  End Ended() const override;
  absl::Status Health() const override;
  absl::Status Shutdown() override;
  std::vector<float> PublishedParameters() const override;

 private:
  // Makes the fragments, without values.
  absl::Status MakeFragments();
  // The run's totals, for summary.json:
  // {"run_id", "mode", "parameters", "fragments", "steps", "tokens", "rounds", "hash_checks",
  //  "hash_mismatches", "started_unix_s", "ended_unix_s", "bytes_up", "bytes_down",
  //  "state_bytes_down", "workers": {id: {"device", "steps", "tokens", "train_loss",
  //  "compute_seconds", "blocked_seconds", "bytes_up", "bytes_down", "state_bytes_down"}}}
  nlohmann::json Summary() const;

  Run run_;
  RoundsImpl rounds_;
  Orders orders_;
  Members members_;
  std::unique_ptr<RegionRole> region_;  // Null: this is the hub.
};

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

CoordinatorImpl::CoordinatorImpl(Options options, FragmentPlan plan, Tier tier,
                                 std::unique_ptr<const OuterOptimizer> optimizer)
    : run_(std::move(options), std::move(plan), std::move(tier), std::move(optimizer)),
      rounds_(run_),
      orders_(run_),
      members_(run_, orders_) {
  if (!run_.options.region.has_value()) return;
  region_ = std::make_unique<RegionRole>(run_, rounds_, *run_.options.region->parent);
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(Options options) {
  ASSIGN_OR_RETURN(FragmentPlan plan, FragmentPlan::Create(options.config));
  InitialValues initial = std::exchange(options.initial_values, nullptr);
  if (initial == nullptr) {
    initial = [](int fragment, std::span<float>) {
      return absl::DataLossError(absl::StrCat("fragment ", fragment, " has no snapshot"));
    };
  }
  const std::optional<RecoveredRun> recovered = std::exchange(options.recovered, std::nullopt);
  Tier tier = TierOf(options);
  ASSIGN_OR_RETURN(std::unique_ptr<const OuterOptimizer> optimizer,
                   CreateOuterOptimizer(tier.outer, options.config.train(), plan.tensors()));
  if (options.events == nullptr) options.events = NullEventLog();
  auto coordinator = std::make_unique<CoordinatorImpl>(std::move(options), std::move(plan),
                                                       std::move(tier), std::move(optimizer));
  RETURN_IF_ERROR(coordinator->Begin(recovered, initial));
  return coordinator;
}

absl::Status CoordinatorImpl::Begin(const std::optional<RecoveredRun>& recovered,
                                    const InitialValues& initial) {
  RETURN_IF_ERROR(MakeFragments());
  Store& store = *run_.options.store;
  if (recovered.has_value()) {
    RETURN_IF_ERROR(run_.Recover(*recovered, initial));
  } else {
    for (const auto& fragment : run_.fragments) {
      const FragmentRange& range = run_.plan.range(fragment->fragment());
      FloatBuffer values(static_cast<size_t>(range.size()));
      RETURN_IF_ERROR(initial(fragment->fragment(), values));
      fragment->Begin(std::move(values));
    }
    RETURN_IF_ERROR(store.BeginRun(run_.Identity()));
  }
  ASSIGN_OR_RETURN(run_.epoch, store.TakeOver());
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::MakeFragments() {
  ASSIGN_OR_RETURN(const Codec* const codec_up, FindCodec(run_.options.config.sync().codec_up()));
  ASSIGN_OR_RETURN(const Codec* const codec_down,
                   FindCodec(run_.options.config.sync().codec_down()));
  const size_t states = run_.optimizer->state_names().size();
  if (!run_.options.scratch_folder.empty()) {
    uint64_t bytes = 0;
    for (int i = 0; i < run_.plan.fragments(); ++i) {
      bytes += FragmentArrays::BytesAtRest(static_cast<size_t>(run_.plan.range(i).size()), states);
    }
    auto scratch = ScratchFile::Create(run_.options.scratch_folder, bytes);
    if (scratch.ok()) {
      run_.scratch = *std::move(scratch);
    } else {
      Log().warn("all fragments stay in memory, {} bytes: {}", bytes,
                 std::string(scratch.status().message()));
    }
  }
  FragmentRounds::Options options{.range = {},
                                  .config = &run_.options.config,
                                  .optimizer = run_.optimizer.get(),
                                  .codec_up = codec_up,
                                  .codec_down = codec_down,
                                  .clock = run_.options.clock,
                                  .store = run_.options.store,
                                  .merge_pool = &run_.merge_pool,
                                  .answers = &run_.recent_answers,
                                  .scratch = run_.scratch.get(),
                                  .schedule = run_.schedule};
  for (int i = 0; i < run_.plan.fragments(); ++i) {
    options.fragment = i;
    options.range = run_.plan.range(i);
    run_.fragments.push_back(region_ != nullptr ? region_->MakeFragment(options)
                                                : std::make_unique<HubRounds>(options));
    options.scratch_offset +=
        FragmentArrays::BytesAtRest(static_cast<size_t>(options.range.size()), states);
  }
  return absl::OkStatus();
}

v1::DescribeResponse CoordinatorImpl::Describe() const {
  v1::DescribeResponse response;
  response.set_run_id(run_.options.run_id);
  *response.mutable_config() = run_.options.config;
  response.set_config_hash(run_.config_hash);
  response.set_plan_hash(run_.plan.hash());
  response.set_wire_version(kWireVersion);
  response.set_software_version(kSoftwareVersion);
  for (const std::string& id : run_.tier.regions) response.add_regions(id);
  return response;
}

void CoordinatorImpl::Tick() {
  const Run::Call call(run_);
  if (!run_.Serving().ok()) return;
  std::vector<std::string> lost;
  std::vector<std::shared_ptr<SessionSink>> silent;
  Run::Outbox outbox;
  {
    absl::MutexLock lock(&run_.mutex);
    lost = run_.membership.Expire(run_.options.clock->Monotonic());
    for (const std::string& id : lost) {
      const auto sink = run_.sinks.find(id);
      if (sink == run_.sinks.end()) continue;
      silent.push_back(std::move(sink->second));
      run_.sinks.erase(sink);
    }
    if (!lost.empty()) run_.AddRoster(outbox);
  }
  for (const auto& sink : silent) {
    sink->Close(absl::UnavailableError(absl::StrCat("no heartbeat came for ",
                                                    run_.options.config.membership().lease_ms(),
                                                    " ms: the lease ended; attach again")));
  }
  for (const std::string& id : lost) {
    run_.Record(
        "worker_lost",
        absl::StrCat("worker ", id, " was silent for ", run_.options.config.membership().lease_ms(),
                     " ms and is taken for dead; rounds go on without it"),
        {{"worker", id}});
  }
  run_.Send(outbox);
  for (const std::string& id : lost) {
    if (!run_.SaveMember(id).ok()) return;
  }
  if (!lost.empty()) run_.NoteIfFinished();
  for (const auto& fragment : run_.fragments) rounds_.Advance(*fragment);
}

v1::RunStatus CoordinatorImpl::GetStatus() const {
  v1::RunStatus status;
  status.set_run_id(run_.options.run_id);
  *status.mutable_config() = run_.options.config;
  status.set_unix_ms(absl::ToUnixMillis(run_.options.clock->Now()));
  std::map<std::string, Member> members;
  RoundPolicy policy;
  const bool rounds_are_done = run_.RoundsAreDone();
  {
    absl::MutexLock lock(&run_.mutex);
    members = run_.membership.members();
    policy = run_.PolicyNow();
    status.set_started(run_.state.started());
    status.set_data_fingerprint(run_.state.data_fingerprint());
    status.set_paused(run_.state.paused());
    status.set_finished(run_.Ended(rounds_are_done) != End::kNotYet);
    status.set_run_step(run_.membership.largest_step());
    int64_t tokens = 0;
    for (const auto& [id, member] : members) {
      const v1::Member& account = member.record;
      const v1::Heartbeat& heartbeat = account.heartbeat();
      tokens += heartbeat.tokens();
      v1::WorkerStatus& worker = *status.add_workers();
      worker.set_worker_id(id);
      // Where 0 is unspecified.
      worker.set_state(static_cast<v1::WorkerStatus::State>(account.state() + 1));
      worker.set_incarnation(account.incarnation());
      worker.set_data_slot(account.data_slot());
      worker.set_step(account.step());
      worker.set_tokens(heartbeat.tokens());
      worker.set_tokens_per_second(heartbeat.tokens_per_second());
      worker.set_train_loss(heartbeat.train_loss());
      const double seconds = heartbeat.compute_seconds() + heartbeat.blocked_seconds();
      worker.set_compute_utilization(seconds > 0 ? heartbeat.compute_seconds() / seconds : 0);
      worker.set_bytes_up(account.bytes_up());
      worker.set_bytes_down(account.bytes_down() + account.state_bytes_down());
      *worker.mutable_link() = heartbeat.link();
      worker.set_device(account.device());
      worker.set_software_version(account.software_version());
      worker.set_rejected(member.rejected);
      worker.set_pace(static_cast<double>(member.progress.pace_milli) / kPaceOne);
      worker.set_late_answers(std::clamp(heartbeat.late_answers(), 0, run_.plan.fragments()));
      if (heartbeat.has_steps_before_wait()) {
        // A fragment's next send is at most a period ahead, and its merge less than one later.
        const int64_t most = 2 * int64_t{run_.options.config.sync().steps_between_syncs()};
        worker.set_steps_before_wait(std::clamp<int64_t>(heartbeat.steps_before_wait(), 0, most));
      }
      worker.set_step_seconds(absl::ToDoubleSeconds(member.progress.step_time()));
      worker.set_region(member.region());
      if (!member.region()) continue;
      for (const v1::SiteReport& site : heartbeat.sites()) {
        if (worker.sites_size() >= run_.options.config.membership().max_workers()) break;
        *worker.add_sites() = site;
      }
    }
    status.set_tokens(tokens);
  }
  for (int i = 0; i < run_.plan.fragments(); ++i) {
    v1::FragmentStatus& entry = *status.add_fragments();
    entry.set_fragment(i);
    entry.set_values(run_.plan.range(i).size());
    const FragmentRounds& fragment = *run_.fragments[static_cast<size_t>(i)];
    const OpenRound round = fragment.open_round();
    const int64_t version = round.round - 1;
    entry.set_published_version(version);
    entry.set_published_hash(fragment.versions().Hash(version).value_or(0));
    for (const auto& [id, arrival] : round.arrivals) entry.add_contributed(id);
    for (const auto& [id, arrival] : round.quarantined) entry.add_quarantined(id);
    entry.set_waiting_for(Decide(run_.options.clock->Monotonic(), round, members, policy).reason);
  }
  return status;
}

Coordinator::End CoordinatorImpl::Ended() const {
  const bool rounds_are_done = run_.RoundsAreDone();
  absl::MutexLock lock(&run_.mutex);
  return run_.Ended(rounds_are_done);
}

absl::Status CoordinatorImpl::Health() const {
  absl::MutexLock lock(&run_.mutex);
  return run_.failure;
}

absl::string_view RunMode(const v1::SyncConfig& sync) {
  if (sync.contribution() == v1::SyncConfig::GRADIENT) return "data-parallel";
  if (sync.fragments() == 1 && sync.overlap_steps() == 0) return "diloco";
  return "streaming";
}

nlohmann::json CoordinatorImpl::Summary() const {
  int64_t rounds = 0;
  for (const auto& fragment : run_.fragments) rounds += fragment->versions().newest();
  int64_t tokens = 0;
  v1::Member total;
  nlohmann::json workers = nlohmann::json::object();
  absl::MutexLock lock(&run_.mutex);
  for (const auto& [id, member] : run_.membership.members()) {
    const v1::Member& account = member.record;
    const v1::Heartbeat& heartbeat = account.heartbeat();
    tokens += heartbeat.tokens();
    total.set_bytes_up(total.bytes_up() + account.bytes_up());
    total.set_bytes_down(total.bytes_down() + account.bytes_down());
    total.set_state_bytes_down(total.state_bytes_down() + account.state_bytes_down());
    workers[id] = {{"device", account.device()},
                   {"steps", heartbeat.step()},
                   {"tokens", heartbeat.tokens()},
                   {"train_loss", heartbeat.train_loss()},
                   {"compute_seconds", heartbeat.compute_seconds()},
                   {"blocked_seconds", heartbeat.blocked_seconds()},
                   {"bytes_up", account.bytes_up()},
                   {"bytes_down", account.bytes_down()},
                   {"state_bytes_down", account.state_bytes_down()},
                   {"link", MessageToJson(heartbeat.link())}};
  }
  return {{"run_id", run_.options.run_id},
          {"mode", std::string(RunMode(run_.options.config.sync()))},
          {"parameters", run_.plan.parameters()},
          {"fragments", run_.plan.fragments()},
          {"steps", run_.membership.largest_step()},
          {"tokens", tokens},
          {"rounds", rounds},
          {"hash_checks", run_.hash_checks.load()},
          {"hash_mismatches", run_.hash_mismatches.load()},
          {"started_unix_s", run_.state.started_unix_s()},
          {"ended_unix_s", absl::ToDoubleSeconds(run_.options.clock->Now() - absl::UnixEpoch())},
          {"bytes_up", total.bytes_up()},
          {"bytes_down", total.bytes_down()},
          {"state_bytes_down", total.state_bytes_down()},
          {"workers", workers}};
}

absl::Status CoordinatorImpl::Shutdown() {
  // The result includes contributions of workers that have left since the last Tick.
  for (const auto& fragment : run_.fragments) rounds_.Advance(*fragment);
  Run::Sinks sinks;
  {
    absl::MutexLock lock(&run_.mutex);
    if (run_.shut_down) return absl::OkStatus();
    run_.shut_down = true;
    sinks.swap(run_.sinks);
  }
  const absl::Status told = absl::UnavailableError("the coordinator is shutting down");
  for (const auto& fragment : run_.fragments) {
    for (const PullCallback& waiter : fragment->versions().TakeWaiters()) waiter(told);
  }
  for (const auto& [id, sink] : sinks) sink->Close(told);
  {
    absl::MutexLock lock(&run_.mutex);
    run_.mutex.Await(absl::Condition(
        +[](int* calls) { return *calls == 0; }, &run_.calls));
  }
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&run_.mutex);
    // The store holds what was published; what came after that is not to be trusted.
    if (!run_.failure.ok()) return run_.failure;
    ids = run_.membership.LiveIds();
  }
  for (const auto& fragment : run_.fragments) RETURN_IF_ERROR(fragment->SaveSnapshot());
  RETURN_IF_ERROR(run_.SaveMembers(ids));
  RETURN_IF_ERROR(run_.SaveRunState());
  return run_.options.store->SaveSummary(Summary());
}

std::vector<float> CoordinatorImpl::PublishedParameters() const {
  std::vector<float> values(static_cast<size_t>(run_.plan.arena_size()));
  for (const auto& fragment : run_.fragments) {
    const FragmentRange& range = run_.plan.range(fragment->fragment());
    const absl::Status copied = fragment->CopyPublished(std::span(values).subspan(
        static_cast<size_t>(range.begin), static_cast<size_t>(range.size())));
    if (!copied.ok()) Log().error("{}", std::string(copied.message()));
  }
  return values;
}

}  // namespace causeway::server
