#include "worker/site/arena_site.h"

#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "worker/member/joining.h"
#include "worker/model/worker_checkpoint.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
// One look at the orders takes so long.
constexpr absl::Duration kLook = absl::Milliseconds(100);
// More than any inner step trains.
constexpr int64_t kMaxTokens = int64_t{1} << 40;
// Patience of a site that brings the model, with a coordinator that is away or has others do so:
// since something of it went out last.
constexpr absl::Duration kBringPatience = absl::Minutes(10);
constexpr absl::Duration kBringAgain = absl::Seconds(1);
// Least patience with ranks whose values are saved.
constexpr absl::Duration kSavePatience = absl::Minutes(1);

// `gave_up`: the trainer did not hand out its values, which is ABORTED. `sent`: bytes.
absl::Status Bring(const SiteJoin& join, std::span<const GivenTensor> tensors,
                   const ReachedRun& reached, bool& gave_up, int64_t& sent) {
  ModelToBring model;
  model.run_id = reached.run.run_id();
  model.worker_id = join.member.worker_id;
  for (const GivenTensor& tensor : tensors) {
    v1::TensorTable::Tensor& entry = *model.tensors.add_tensor();
    entry.set_name(tensor.name);
    entry.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  }
  absl::Status given;
  std::vector<float> values;
  model.values = [&](int index) -> std::span<const float> {
    const auto tensor = static_cast<size_t>(index);
    int64_t count = 1;
    for (const int64_t size : tensors[tensor].shape) count *= size;
    values.resize(static_cast<size_t>(count));
    if (join.initial_values(tensor, values)) return values;
    given = absl::AbortedError(
        absl::StrCat("the initial values of ", tensors[tensor].name, " were not handed out"));
    return {};
  };
  const absl::Status brought =
      BringModel(*v1::Session::NewStub(reached.channels->Now()), model, &sent);
  gave_up = !given.ok();
  return gave_up ? given : brought;
}

// Makes sure that the folder is there, or can be made, and takes files. INVALID_ARGUMENT names the
// option. A site that is refused leaves nothing behind.
absl::Status CheckFolder(absl::string_view option, const std::string& folder,
                         FileSystem& file_system) {
  if (folder.empty()) return absl::OkStatus();
  const std::string probe = JoinPath(NearestFolder(file_system, folder), ".causeway_can_write");
  absl::Status status = file_system.Create(probe).status();
  if (status.ok()) {
    status = file_system.Remove(probe);
    // Sites that share a folder share the probe: another may have removed it first.
    if (absl::IsNotFound(status)) return absl::OkStatus();
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("options->", option,
                   " must be a folder in which this process can write: ", status.message()));
}

// A run that has a model; `brought` says whether it is this site's.
absl::StatusOr<ReachedRun> ReachRunWithModel(const SiteJoin& join,
                                             std::span<const GivenTensor> tensors,
                                             const Clock& clock, bool& brought) {
  absl::Duration begin = clock.Monotonic();
  for (;;) {
    ASSIGN_OR_RETURN(ReachedRun reached, ReachRun(join.member));
    if (!reached.run.awaits_model()) return reached;
    if (!join.initial_values) {
      return absl::FailedPreconditionError(
          "this run waits for the first site to bring its model, and this site brings none: give "
          "initial values, or join after a site that does");
    }
    if (join.member.stop && join.member.stop())
      return absl::CancelledError("before it had its model");
    bool gave_up = false;
    int64_t sent = 0;
    const absl::Status status = Bring(join, tensors, reached, gave_up, sent);
    if (sent > 0) begin = clock.Monotonic();
    brought = status.ok();
    if (status.ok() || absl::IsAlreadyExists(status)) continue;
    const bool may_pass = !gave_up && (absl::IsResourceExhausted(status) || IsRetryable(status));
    if (!may_pass || clock.Monotonic() - begin > kBringPatience) {
      return Annotate(status, "the model could not be brought");
    }
    Log().warn("the model could not be brought yet: {}", std::string(status.message()));
    absl::SleepFor(kBringAgain);
  }
}

// Returns the part of an arena that is a fragment.
template <typename T>
std::span<T> Of(const FragmentRange& range, std::span<T> arena) {
  return arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

ArenaSite::Waiting::Waiting(ArenaSite& site) : site_(site) {
  absl::MutexLock lock(&site_.mutex_);
  site_.waiting_since_ = site_.clock_.Monotonic();
}

ArenaSite::Waiting::~Waiting() {
  absl::MutexLock lock(&site_.mutex_);
  site_.waiting_since_.reset();
}

ArenaSite::ArenaSite(const SiteJoin& join, std::unique_ptr<RunMember> member, Clock& clock)
    : values_(member->config(), member->plan()),
      keeper_(join.keeper),
      drain_timeout_(join.drain_timeout),
      id_(join.member.worker_id),
      member_(std::move(member)),
      clock_(clock) {}

ArenaSite::~ArenaSite() {
  watcher_.Stop();
  if (ranks_ != nullptr) ranks_->Leave();  // Nobody waits any more for one that is hung.
}

absl::StatusOr<std::unique_ptr<ArenaSite>> ArenaSite::Join(const SiteJoin& join,
                                                           std::vector<GivenTensor> tensors,
                                                           std::span<const uint8_t> state,
                                                           FileSystem& file_system, Clock& clock) {
  auto joined = [&]() -> absl::StatusOr<std::unique_ptr<ArenaSite>> {
    RETURN_IF_ERROR(CheckFolder("output", join.member.output, file_system));
    RETURN_IF_ERROR(CheckFolder("tensorboard", join.member.tensorboard, file_system));
    bool brought = false;
    ASSIGN_OR_RETURN(ReachedRun reached, ReachRunWithModel(join, tensors, clock, brought));
    ASSIGN_OR_RETURN(std::unique_ptr<RunMember> member,
                     RunMember::Create(join.member, std::move(reached), file_system, clock));
    if (member->config().sync().contribution() == v1::SyncConfig::GRADIENT) {
      return absl::FailedPreconditionError(
          "the run synchronizes gradients (sync.contribution is GRADIENT), which causeway-worker's "
          "own trainer alone contributes: leave sync.contribution out of its configuration");
    }
    std::unique_ptr<ArenaSite> site(new ArenaSite(join, std::move(member), clock));
    RETURN_IF_ERROR(site->values_.Match(tensors, join.shares, join.ranks));
    site->brought_model_ = brought;
    if (!join.member.output.empty()) {
      RETURN_IF_ERROR(file_system.CreateFolders(join.member.output));
    }
    RETURN_IF_ERROR(site->Begin(join, state));
    return site;
  }();
  if (!joined.ok() && join.member.stop && join.member.stop()) {
    return absl::CancelledError("the join was ended before the site had joined");
  }
  return joined;
}

absl::Status ArenaSite::Begin(const SiteJoin& join, std::span<const uint8_t> state) {
  ASSIGN_OR_RETURN(std::optional<RunMember::Place> place, ReadState(state));
  RETURN_IF_ERROR(member_->OpenTelemetry());
  RETURN_IF_ERROR(values_.Open(/*rank=*/0, join.device));
  if (join.links != nullptr) {
    ranks_ = std::make_unique<LeadingRank>(*join.links, member_->plan(), *values_.shards,
                                           member_->config().sync(),
                                           [this] { return values_.MakePart(); });
    if (!join.start(member_->config().SerializeAsString())) {
      join.links->Close();  // Nobody carries good-byes.
      return absl::AbortedError("the other processes of this site were not told of the run");
    }
  }
  RETURN_IF_ERROR(watcher_.Start(kWatchInterval, [this, stop = join.member.stop] {
    Watch(stop);
    return kWatchInterval;
  }));
  if (join.member.stop && join.member.stop()) return absl::CancelledError("before it was a member");
  RETURN_IF_ERROR(member_->Attach(join.description, place.has_value() ? &*place : nullptr));
  RETURN_IF_ERROR(member_->Begin(MakeHooks(join), std::move(place)));
  RETURN_IF_ERROR(Settle());
  restored_ = !member_->anew();
  if (restored_) {
    changed_ = std::exchange(merged_, {});
  } else {
    changed_.resize(static_cast<size_t>(member_->plan().fragments()));
    std::iota(changed_.begin(), changed_.end(), 0);
  }
  absl::MutexLock lock(&mutex_);
  joined_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RunMember::Place>> ArenaSite::ReadState(
    std::span<const uint8_t> state) {
  if (state.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(WorkerCheckpoint saved, UnpackSiteState(state));
  if (saved.run_id != member_->run().run_id() || saved.worker_id != id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the saved state belongs to site ", saved.worker_id, " of run ", saved.run_id,
                     ", not to site ", id_, " of run ", member_->run().run_id(),
                     ": join without it to begin from the published values"));
  }
  if (RunConfigHash(saved.config) != member_->run().config_hash()) {
    return absl::FailedPreconditionError(
        "the saved state has another configuration than the run: join without it to begin from "
        "the published values");
  }
  saved_gaps_ = std::move(saved.gaps);
  if (saved_gaps_.empty()) {  // Without mixing they are as published.
    saved_gaps_ = GapsIn(saved.sync.published);
  } else if (saved_gaps_.size() != static_cast<size_t>(values_.match.gap_values)) {
    return absl::DataLossError(absl::StrCat("the saved state has ", saved_gaps_.size(),
                                            " values between tensors, this model has ",
                                            values_.match.gap_values, "; take another copy"));
  }
  saved_parameters_ = std::move(saved.parameters);
  for (size_t i = 0; i < saved.sync.fragments.size(); ++i) {
    if (saved.sync.fragments[i].round_in_flight != 0) {
      saved_in_flight_.push_back(static_cast<int>(i));
    }
  }
  return std::move(static_cast<TrainingPlace&>(saved));
}

RunMember::Hooks ArenaSite::MakeHooks(const SiteJoin& join) {
  RunMember::Hooks hooks;
  hooks.meanwhile = join.meanwhile;
  hooks.make_replica = [this]() -> absl::StatusOr<std::unique_ptr<Replica>> {
    replica_ = nullptr;
    ASSIGN_OR_RETURN(auto replica,
                     ranks_ != nullptr
                         ? ranks_->MakeReplica()
                         : MakeDividedReplica(member_->plan(), member_->config().sync(),
                                              [this] { return values_.MakeParts(); }, {}));
    replica_ = replica.get();
    return replica;
  };
  hooks.restore_parameters = [this]() -> absl::Status {
    std::vector<float> gaps = std::exchange(saved_gaps_, {});
    RETURN_IF_ERROR(MoveGaps(kPartSetGaps, gaps));
    // Merges that the former process was waiting for mix with what it had.
    const std::vector<float> saved = std::exchange(saved_parameters_, {});
    for (const int fragment : saved_in_flight_) {
      if (saved.empty()) continue;
      RETURN_IF_ERROR(SetLocal(fragment, 0, Of(member_->plan().range(fragment), std::span(saved))));
    }
    return absl::OkStatus();
  };
  // The caller reads part and draw from its orders, and saves then (docs/pytorch.md).
  hooks.use_data_part = [](int) { return absl::OkStatus(); };
  hooks.checkpoint = [] { return absl::OkStatus(); };
  hooks.started_anew = [this] {
    ready_due_ = true;
    anew_due_ = true;
    changed_.resize(static_cast<size_t>(member_->plan().fragments()));
    std::iota(changed_.begin(), changed_.end(), 0);
    merged_.clear();
    return absl::OkStatus();
  };
  hooks.merged = [this](const SyncEvent& event) { merged_.push_back(event.fragment); };
  return hooks;
}

void ArenaSite::Watch(const std::function<bool()>& stop) {
  // Ranks answer soon, unless they are hung. Packing for a state takes longest.
  const auto end_silence = [this] {
    if (ranks_ == nullptr) return;
    const absl::Duration patience =
        saving_ ? std::max(drain_timeout_, kSavePatience) : drain_timeout_;
    const absl::Status silent = ranks_->EndSilence(clock_.Monotonic(), patience);
    if (!silent.ok()) Log().error("{}", std::string(silent.message()));
  };
  absl::MutexLock lock(&mutex_);
  if (joined_ ? cancel_requested_.load() : stop && stop()) {
    member_->CancelExchange();
    return end_silence();
  }
  if (!joined_) return;
  if (drain_requested_ && !std::exchange(drain_told_, true)) member_->session().RequestDrain();
  const absl::StatusOr<Session::Orders> orders = member_->session().orders();
  if (!orders.ok() || !orders->drain || !waiting_since_.has_value()) return;
  end_silence();
  if (cut_ || clock_.Monotonic() - *waiting_since_ < drain_timeout_) return;
  cut_ = true;
  member_->telemetry().Record(
      "transfers_cut",
      absl::StrCat("the transfers did not end within ", absl::FormatDuration(drain_timeout_),
                   ": they stay in the checkpoint"),
      nlohmann::json::object());
  member_->CancelExchange();
}

std::span<const int32_t> ArenaSite::Sorted(std::vector<int32_t> fragments) {
  std::ranges::sort(fragments);
  fragments.erase(std::unique(fragments.begin(), fragments.end()), fragments.end());
  answer_ = std::move(fragments);
  return answer_;
}

std::span<const int32_t> ArenaSite::Changed() { return Sorted(std::exchange(changed_, {})); }

absl::Status ArenaSite::CheckJoined() const {
  if (left_) return absl::FailedPreconditionError("this site has left the run: free it");
  if (absl::IsCancelled(failure_)) return failure_;
  if (!failure_.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this site failed before, and can only leave: ", failure_.message()));
  }
  return absl::OkStatus();
}

absl::Status ArenaSite::Failed(const absl::Status& status) {
  // The session's own failure is the cause of whatever else was cancelled.
  const absl::Status session = member_->session().orders().status();
  failure_ = session.ok() ? status : session;
  return failure_;
}

absl::Status ArenaSite::Ready() {
  RETURN_IF_ERROR(CheckJoined());
  if (ready_) return absl::FailedPreconditionError("causeway_site_ready was called before");
  ready_ = true;
  member_->Ready();
  return absl::OkStatus();
}

absl::StatusOr<ArenaSite::Orders> ArenaSite::Wait(absl::Duration timeout,
                                                  const std::function<void()>& between) {
  RETURN_IF_ERROR(CheckJoined());
  if (!ready_) {
    return absl::FailedPreconditionError(
        "causeway_site_ready comes first: the coordinator waits for it");
  }
  const absl::Duration begin = clock_.Monotonic();
  go_ = finished_ = false;
  if (ready_due_ && !anew_due_) {
    ready_due_ = false;
    member_->Ready();
  }
  for (;;) {
    if (cancel_requested_) {
      failure_ = absl::CancelledError("cancelled by causeway_site_cancel");
      return failure_;
    }
    Orders orders;
    if (std::exchange(anew_due_, false)) {
      RETURN_IF_ERROR(Settle());
      orders.anew = true;
      return orders;
    }
    const absl::Duration left = timeout - (clock_.Monotonic() - begin);
    const absl::StatusOr<RunMember::Turn> turn = [&]() -> absl::StatusOr<RunMember::Turn> {
      if (timeout <= absl::ZeroDuration()) {
        ASSIGN_OR_RETURN(const Session::Orders now, member_->session().orders());
        if (now.start_anew.has_value()) return RunMember::Turn::kWait;
      }
      const Waiting waiting(*this);  // It may start anew, and wait for states.
      return member_->NextTurn(std::clamp(left, absl::ZeroDuration(), kLook));
    }();
    if (!turn.ok()) return Failed(turn.status());
    switch (*turn) {
      case RunMember::Turn::kTrain:
        orders.go = go_ = true;
        if (!std::exchange(clock_started_, true)) member_->report().StartClock();
        step_begin_ = clock_.Monotonic();
        member_->telemetry().StepBegins(member_->NextStep());
        return orders;
      case RunMember::Turn::kFinished:
        orders.finished = finished_ = true;
        return orders;
      case RunMember::Turn::kDrain:
        orders.drain = true;
        return orders;
      case RunMember::Turn::kAnew:
      case RunMember::Turn::kWait:
        break;
    }
    between();
    if (*turn == RunMember::Turn::kWait && left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("training may not go on yet, after ",
                                                      absl::FormatDuration(timeout),
                                                      ": the run has not started, or is paused"));
    }
  }
}

absl::StatusOr<std::span<const int32_t>> ArenaSite::Next() {
  RETURN_IF_ERROR(CheckJoined());
  if (!go_ && !finished_) {
    return absl::FailedPreconditionError(
        "no step is under way: call causeway_site_wait until its orders say go");
  }
  const std::vector<int> touched = finished_
                                       ? member_->sync().FragmentsInFlight()
                                       : member_->sync().FragmentsTouchedBy(member_->NextStep());
  std::vector<int32_t> fragments(touched.begin(), touched.end());
  return Sorted(std::move(fragments));
}

void ArenaSite::SetFigures(const StepFigures& figures, std::optional<absl::Duration> step_time) {
  figures_ = figures;
  step_time_ = step_time;
}

absl::StatusOr<std::span<const int32_t>> ArenaSite::Step(int64_t tokens, int64_t draws) {
  ASSIGN_OR_RETURN(const std::span<const int32_t> read, Next());
  if (finished_) return absl::FailedPreconditionError("the run wants no more steps of this site");
  if (tokens < 0 || tokens > kMaxTokens || draws < 0 ||
      draws > kMaxDraw - member_->sync().next_draw()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step trains 0 .. 2^40 tokens in 0 or more draws; this one has ", tokens,
                     " and ", draws));
  }
  for (const int32_t fragment : read) {
    if (!values_.HasLocal(fragment)) {
      return absl::FailedPreconditionError(
          absl::StrCat("this step reads fragment ", fragment,
                       ", which was not gathered: call causeway_site_gather with what "
                       "causeway_site_next says before every step"));
    }
  }
  RunMember::Step step;
  step.tokens = tokens;
  step.draws = draws;
  step.time = step_time_.value_or(clock_.Monotonic() - step_begin_);
  member_->telemetry().StepEnds();
  go_ = false;
  merged_.clear();
  const absl::StatusOr<bool> goes_on = [&]() -> absl::StatusOr<bool> {
    const Waiting waiting(*this);
    ASSIGN_OR_RETURN(const bool more, member_->StepDone(step));
    RETURN_IF_ERROR(Settle(!read.empty() || !more));
    return more;
  }();
  const StepFigures figures = std::exchange(figures_, {});
  step_time_.reset();
  cut_step_ = absl::IsCancelled(goes_on.status());
  if (!goes_on.ok()) return Failed(goes_on.status());
  if (!*goes_on) return Sorted(changed_);
  member_->report().Step(member_->standing(), figures);
  return Sorted(merged_);
}

absl::Status ArenaSite::Save(const std::function<uint8_t*(size_t bytes)>& allocate) {
  if (!failure_.ok() && !absl::IsCancelled(failure_)) return CheckJoined();
  saving_ = true;
  const absl::Cleanup saved = [this] { saving_ = false; };
  WorkerCheckpoint state;
  ASSIGN_OR_RETURN(static_cast<TrainingPlace&>(state), member_->Save());
  state.run_id = member_->run().run_id();
  state.worker_id = id_;
  state.config = member_->config();
  if (member_->config().sync().mixing() > 0) {
    state.gaps.resize(static_cast<size_t>(values_.match.gap_values));
    RETURN_IF_ERROR(MoveGaps(kPartCopyGaps, state.gaps));
  }
  if (cut_step_) {
    state.parameters.resize(static_cast<size_t>(member_->plan().arena_size()));
    for (int i = 0; i < member_->plan().fragments(); ++i) {
      if (!values_.HasLocal(i)) continue;
      RETURN_IF_ERROR(CopyLocal(i, 0, Of(member_->plan().range(i), std::span(state.parameters))));
    }
  }
  return PackSiteState(state, allocate);
}

absl::Status ArenaSite::Saved(int64_t step) {
  if (step < 0 || step > member_->step()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no state of step ", step, " can be safe: this site is at step ", member_->step()));
  }
  member_->report().CheckpointWritten(step);
  return absl::OkStatus();
}

absl::StatusOr<std::span<const int32_t>> ArenaSite::Finish() {
  RETURN_IF_ERROR(CheckJoined());
  merged_.clear();
  const absl::Status finished = [&]() -> absl::Status {
    const Waiting waiting(*this);
    RETURN_IF_ERROR(member_->Finish(/*drained=*/false));
    return Settle();
  }();
  if (!finished.ok()) return Failed(finished);
  return Sorted(merged_);
}

absl::Status ArenaSite::LeaveFinished() {
  RETURN_IF_ERROR(CheckJoined());
  left_ = true;
  member_->Leave(/*drained=*/false);
  return absl::OkStatus();
}

absl::Status ArenaSite::LeaveDrained() {
  if (!absl::IsCancelled(failure_)) RETURN_IF_ERROR(CheckJoined());
  left_ = true;
  if (!drain_requested_) member_->session().RequestDrain();  // The watcher counts from now on.
  const absl::Status finished = [&] {
    const Waiting waiting(*this);
    return member_->Finish(/*drained=*/true);
  }();
  const absl::Status session = member_->session().orders().status();
  RETURN_IF_ERROR(session);
  if (!finished.ok() && !absl::IsCancelled(finished)) {
    left_ = false;  // It can leave as failed.
    return Failed(finished);
  }
  member_->Leave(/*drained=*/true);
  return absl::OkStatus();
}

absl::Status ArenaSite::LeaveFailed(const std::string& detail) {
  if (std::exchange(left_, true)) return CheckJoined();
  member_->Fail(absl::UnknownError(detail), /*silently=*/false).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ArenaSite::Summary() const {
  if (replica_ == nullptr) return NoReplica();
  return member_->report().Summary(member_->standing());
}

}  // namespace causeway::worker
