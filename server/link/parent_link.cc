#include "server/link/parent_link.h"

#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
// One attempt to attach; the next follows.
constexpr absl::Duration kAttachPatience = absl::Seconds(10);
constexpr int kMostFlights = 64;

absl::Status CheckRun(const ParentOptions& options, const v1::DescribeResponse& run) {
  if (run.awaits_model()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run at ", options.address,
                     " waits for its model: start this region when the first site has brought it"));
  }
  if (run.config_hash() != RunConfigHash(run.config())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the parent at ", options.address, " (", run.software_version(),
                     ") hashes the run's configuration otherwise: run the same release on both (",
                     kSoftwareVersion, " here)"));
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(run.config()));
  if (run.plan_hash() != plan.hash()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the parent at ", options.address, " (", run.software_version(),
                     ") cuts the model into other fragments: run the same release on both (",
                     kSoftwareVersion, " here)"));
  }
  if (std::ranges::find(run.regions(), options.region_id) != run.regions().end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--parent=", options.address, " is below this region (",
                     absl::StrJoin(run.regions(), " > "),
                     "): parents must not form a ring; give "
                     "the address of the hub, or of a region that is not below this one"));
  }
  const v1::MembershipConfig& membership = run.config().membership();
  if (options.sites > membership.max_workers() || options.sites > kMaxDrawRanges) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--sites=", options.sites, ": the run takes ", membership.max_workers(),
        " workers in all (membership.max_workers), and a region ", kMaxDrawRanges, " at most"));
  }
  if (membership.weighting() == v1::MembershipConfig::UNIFORM) {
    return absl::FailedPreconditionError(
        "with membership.weighting UNIFORM a whole region would count as one worker: regions need "
        "a run with TOKENS, the default");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReachedRun> ReachParent(const ParentOptions& options) {
  RETURN_IF_ERROR(CheckName("--region_id", options.region_id));
  if (options.sites < 1) {
    return absl::InvalidArgumentError(
        "give the number of sites that this region may have: --sites=N");
  }
  RETURN_IF_ERROR(Annotate(SplitAddresses(options.address).status(), "--parent"));
  ASSIGN_OR_RETURN(ReachedRun parent, ApproachRun(options.address, options.security));
  ASSIGN_OR_RETURN(parent.run,
                   DescribeOrExplain(*v1::Session::NewStub(parent.channels->Now()), options.address,
                                     options.security, options.connect_timeout, options.region_id));
  RETURN_IF_ERROR(CheckRun(options, parent.run));
  return parent;
}

ParentLink::ParentLink(ParentOptions options, ReachedRun parent, FragmentPlan plan)
    : options_(std::move(options)),
      parent_(std::move(parent)),
      plan_(std::move(plan)),
      queue_(std::min(plan_.fragments(), kMostFlights)) {}

ParentLink::~ParentLink() { Stop(absl::ZeroDuration()); }

RegionOptions ParentLink::ForCoordinator() {
  const auto& above = parent_.run.regions();
  return {.parent = this,
          .id = options_.region_id,
          .sites = options_.sites,
          .above = {above.begin(), above.end()}};
}

absl::Status ParentLink::Start(Coordinator& coordinator, EventLog* events) {
  RETURN_IF_ERROR(queue_.started());
  events_ = events;
  coordinator_ = &coordinator;
  region_ = coordinator.region();
  obeyed_.Begin(coordinator);
  return StartFollowing();
}

std::shared_ptr<ParentLink::Connection> ParentLink::connection() const {
  absl::MutexLock lock(&mutex_);
  return connection_;
}

std::shared_ptr<ParentLink::Connection> ParentLink::AwaitConnection() {
  absl::MutexLock lock(&mutex_);
  const auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || connection_ != nullptr;
  };
  mutex_.Await(absl::Condition(&there));
  return stopping_ ? nullptr : connection_;
}

absl::Status ParentLink::Follow() {
  do {
    const RegionPlace place = region_->Place();
    bool attached = false;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::OkStatus();  // Stop has taken the connection.
      attached = connection_ != nullptr;
    }
    if (!attached && place.ready) RETURN_IF_ERROR(Attach(place));
    if (attached && !place.ready) Detach();
    if (attached && place.ready) {
      const absl::Status obeyed = Obey(place);
      // An order that cannot be followed ends the region's part, whatever its code.
      if (!obeyed.ok()) return absl::FailedPreconditionError(obeyed.message());
    }
  } while (!AwaitStop(kPoll));
  return absl::OkStatus();
}

std::string ParentLink::Line(const absl::Status& why) {
  return absl::StrCat("not attached to the parent yet: ", why.message());
}

absl::Status ParentLink::Attach(const RegionPlace& place) {
  const v1::DescribeResponse& run = parent_.run;
  Session::Options options;
  options.channels = parent_.channels;
  options.passes = [this](const absl::Status& status) { return parent_.security.Passes(status); };
  options.events = events_;
  options.progress = place.heartbeat;
  options.first_attach_patience = kAttachPatience;
  // A region goes on from its own rounds, however far behind: it never takes the state anew.
  options.max_steps_behind = int64_t{1} << 60;
  options.on_welcome = [this](const v1::Welcome& welcome) {
    for (int i = 0; i < welcome.published_versions_size(); ++i) {
      region_->NoteParentPublished(i, welcome.published_versions(i)).IgnoreError();
    }
  };
  options.on_outcome = [this](const v1::RoundOutcome& outcome) {
    region_->NoteParentPublished(outcome.fragment(), outcome.round()).IgnoreError();
  };
  v1::Join& join = options.join;
  join = JoinOf(run, options_.region_id);
  join.set_device(
      absl::StrCat("region of ", options_.sites, options_.sites == 1 ? " site" : " sites"));
  join.set_sites(options_.sites);
  join.set_resume_step(place.step);
  join.set_has_checkpoint(true);  // Its run directory.
  join.set_data_fingerprint(coordinator_->GetStatus().data_fingerprint());
  auto made = std::make_shared<Connection>();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Attach(std::move(options));
  // A former process of this region has its lease still, or somebody else answers in the parent's
  // place, which has welcomed this region before.
  if (absl::IsAlreadyExists(session.status()) ||
      (was_attached_ && MayBeAnothers(session.status()))) {
    return absl::UnavailableError(session.status().message());
  }
  RETURN_IF_ERROR(session.status());
  made->session = *std::move(session);
  made->link =
      std::make_unique<Link>(LinkTo(parent_, options_.address, options_.congestion_control));
  made->exchange =
      std::make_unique<GrpcExchange>(GrpcExchange::Options{.link = made->link.get(),
                                                           .session = made->session.get(),
                                                           .plan = &plan_,
                                                           .sync = run.config().sync()});
  made->session->Ready(place.step, /*anew=*/false);
  obeyed_.Attached();
  was_attached_ = true;
  absl::MutexLock lock(&mutex_);
  connection_ = std::move(made);
  return absl::OkStatus();
}

void ParentLink::Report(const RegionPlace& place, const Connection& connection) {
  v1::Heartbeat progress = place.heartbeat;
  *progress.mutable_link() = connection.link->Report();
  progress.set_bytes_up(connection.exchange->bytes_up());
  progress.set_bytes_down(connection.exchange->bytes_down());
  connection.session->SetProgress(progress);
}

absl::Status ParentLink::Obey(const RegionPlace& place) {
  const std::shared_ptr<Connection> connection = this->connection();
  Report(place, *connection);
  ASSIGN_OR_RETURN(const Session::Orders orders, connection->session->orders());
  return obeyed_.Obey(*coordinator_, orders);
}

absl::Status ObeyedOrders::Obey(Coordinator& own, const Session::Orders& orders) {
  if (orders.started && orders.data_slot != begun_slot_) {
    RETURN_IF_ERROR(own.region()->Begin(orders.data_slot, orders.next_draws));
    begun_slot_ = orders.data_slot;
  }
  if (orders.paused != paused_) {
    RETURN_IF_ERROR(orders.paused ? own.orders().Pause("the parent paused the run")
                                  : own.orders().Resume());
    paused_ = orders.paused;
  }
  if (orders.stop_at_step > 0 && orders.stop_at_step != stop_step_) {
    RETURN_IF_ERROR(own.region()->Stop(orders.stop_at_step));
    stop_step_ = orders.stop_at_step;
  }
  if (orders.drain && !drained_) {
    RETURN_IF_ERROR(own.orders().Drain(""));
    drained_ = true;
  }
  return absl::OkStatus();
}

void ParentLink::Detach() {
  coordinator_->Tick();  // Closes what the last sites have left: it goes up first.
  std::shared_ptr<Connection> left;
  {
    absl::MutexLock lock(&mutex_);
    // Transfers under way need it: a region that has given its last delta is still a member.
    if (unsent_ > 0) return;
    left = std::exchange(connection_, nullptr);
  }
  if (left == nullptr) return;
  Leave(*left);
  left = nullptr;
  parent_.channels->KeepFirst();
}

void ParentLink::Leave(Connection& left) {
  if (coordinator_->Finished()) {
    // The last word carries the final figures.
    Report(region_->Place(), left);
    left.session->Leave(coordinator_->ReachedItsEnd() ? v1::Leave::FINISHED : v1::Leave::DRAINED,
                        "");
  } else {
    Log().info("the parent is not to wait for this region: its lease ends, or it comes back");
  }
  left.exchange->Cancel();
}

void ParentLink::Carry(RegionDelta delta, Callback done) {
  {
    absl::MutexLock lock(&mutex_);
    if (delta.contributes) ++unsent_;
  }
  queue_.Run([this, flight = std::make_shared<RegionDelta>(std::move(delta)),
              done = std::move(done)] { Fly(flight, done); });
}

void ParentLink::Fly(const std::shared_ptr<RegionDelta>& delta, const Callback& done) {
  bool pushed = !delta->contributes;
  bool late = false;
  const auto note_pushed = [&] {
    if (std::exchange(pushed, true)) return;
    absl::MutexLock lock(&mutex_);
    --unsent_;
  };
  for (;;) {
    const std::shared_ptr<Connection> connection = AwaitConnection();
    if (connection == nullptr) {
      note_pushed();
      return done(absl::CancelledError("the region is stopping"));
    }
    absl::StatusOr<PulledObject> answer = absl::UnknownError("not asked");
    if (pushed) {
      answer = connection->exchange->PullAnswer(delta->header.fragment(), delta->header.round(),
                                                delta->due_step);
    } else {
      causeway::Contribution contribution;
      contribution.fragment = delta->header.fragment();
      contribution.round = delta->header.round();
      contribution.tokens = delta->header.tokens();
      contribution.draws = DrawsOf(delta->header.draws());
      contribution.send_step = delta->header.send_step();
      contribution.due_step = delta->due_step;
      contribution.maybe_sent = delta->maybe_sent;
      contribution.object = delta->object.view();
      contribution.leaves = delta->leaves;
      contribution.owner = delta;
      answer = connection->exchange->PushAndPull(contribution, [&](const absl::Status& status) {
        if (absl::IsCancelled(status)) return;
        late = absl::IsAborted(status);
        note_pushed();
      });
      delta->maybe_sent = true;
    }
    // The connection was given up; the next one goes on, unless there is none.
    if (absl::IsCancelled(answer.status())) continue;
    note_pushed();
    if (!answer.ok()) return done(answer.status());
    return done(ParentAnswer{.late = late,
                             .round = answer->round,
                             .codec = answer->codec,
                             .published_hash = answer->published_hash,
                             .bytes = std::move(answer->bytes)});
  }
}

void ParentLink::Applied(int fragment, int64_t round, uint64_t published_hash) {
  const std::shared_ptr<Connection> connection = this->connection();
  if (connection != nullptr) connection->exchange->ReportApplied(fragment, round, published_hash);
}

void ParentLink::Stop(absl::Duration patience) {
  std::shared_ptr<Connection> left;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    const auto sent = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unsent_ == 0; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&sent), patience)) {
      Log().warn("{} deltas are not at the parent yet: they go up when this region comes back",
                 unsent_);
    }
    stopping_ = true;
    left = std::exchange(connection_, nullptr);
  }
  StopFollowing().IgnoreError();
  {
    // An attempt to attach may have been under way.
    absl::MutexLock lock(&mutex_);
    if (left == nullptr) left = std::exchange(connection_, nullptr);
  }
  if (left != nullptr) Leave(*left);
  queue_.Stop();
}

}  // namespace causeway::server
