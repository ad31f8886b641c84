#include "common/client/session.h"

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/rpc/tcp_stream.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);
// How often a caller who may want no answer any more is asked.
constexpr absl::Duration kLookForStop = absl::Milliseconds(100);
// For the answer to a heartbeat.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
// How long somebody else may answer in the coordinator's place.
constexpr absl::Duration kOtherPatience = absl::Minutes(10);
// For one attempt to be welcomed.
constexpr absl::Duration kWelcomeTimeout = absl::Seconds(10);
// How often it is looked for other credentials.
constexpr absl::Duration kLookForRenewal = absl::Seconds(1);
// Beyond the time in which another coordinator takes the lead, and a session finds it.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);

// stub.Describe, which `stop` ends.
grpc::Status Describe(v1::Session::StubInterface& stub, grpc::ClientContext& context,
                      const v1::DescribeRequest& request, v1::DescribeResponse& response,
                      const std::function<bool()>& stop) {
  if (!stop) return stub.Describe(&context, request, &response);
  absl::Notification done;
  grpc::Status answer;
  stub.async()->Describe(&context, &request, &response, [&](grpc::Status status) {
    answer = std::move(status);
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(kLookForStop)) {
    if (stop()) context.TryCancel();
  }
  return answer;
}

}  // namespace

absl::StatusOr<v1::DescribeResponse> DescribeRun(v1::Session::StubInterface& stub,
                                                 const std::string& address, absl::Duration timeout,
                                                 absl::Duration waited, absl::string_view region_id,
                                                 const std::function<bool()>& stop) {
  v1::DescribeRequest request;
  request.set_wire_version(kWireVersion);
  request.set_software_version(kSoftwareVersion);
  request.set_region_id(std::string(region_id));
  v1::DescribeResponse response;
  const Clock& clock = *Clock::Real();
  const absl::Duration end = clock.Monotonic() + timeout;
  absl::Duration backoff = kFirstBackoff;
  absl::Status status;
  for (;;) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(clock.Now() + (end - clock.Monotonic())));
    const absl::Status answer = FromGrpcStatus(Describe(stub, context, request, response, stop));
    if (answer.ok()) return response;
    if (stop && stop()) return absl::CancelledError("nobody waits for the answer any more");
    // The end of the time says less than what failed before it.
    if (status.ok() || !absl::IsDeadlineExceeded(answer)) status = answer;
    if (!IsRetryable(answer) || clock.Monotonic() + backoff >= end) break;
    absl::SleepFor(backoff);  // A proxy answers at once for a coordinator that is away.
    backoff = std::min(2 * backoff, kMaxBackoff);
  }
  if (MadeOnTheWay(status)) {
    const absl::Status resolved = OtherEndsOf(address).status();
    return absl::UnavailableError(absl::StrCat(
        "no coordinator answers at ", address, " within ", absl::FormatDuration(waited + timeout),
        region_id.empty() ? "; check --coordinator" : "; check --parent",
        resolved.ok() ? absl::StrCat(", that causeway-coordinator runs there, and the firewall (",
                                     status.message(), ")")
                      : absl::StrCat(": ", resolved.message())));
  }
  return Annotate(status, absl::StrCat("the coordinator at ", address));
}

v1::Join JoinOf(const v1::DescribeResponse& run, const std::string& worker_id) {
  v1::Join join;
  join.set_worker_id(worker_id);
  join.set_run_id(run.run_id());
  join.set_wire_version(kWireVersion);
  join.set_config_hash(run.config_hash());
  join.set_plan_hash(run.plan_hash());
  join.set_data_vocabulary_size(run.config().model().vocabulary_size());
  join.set_software_version(kSoftwareVersion);
  return join;
}

void Session::Orders::Note(const v1::Welcome& welcome) {
  if (welcome.started()) started = true;
  data_slot = welcome.data_slot();
  next_draw = welcome.next_draw();
  next_draws.assign(welcome.next_draws().begin(), welcome.next_draws().end());
}

void Session::Orders::Note(const v1::Directive& directive) {
  switch (directive.action()) {
    case v1::Directive::START:
      started = true;
      data_slot = directive.data_slot();
      next_draw = directive.next_draw();
      next_draws.assign(directive.next_draws().begin(), directive.next_draws().end());
      break;
    case v1::Directive::PAUSE:
      paused = true;
      pause_reason = directive.reason();
      break;
    case v1::Directive::RESUME:
      paused = false;
      break;
    case v1::Directive::DRAIN:
      drain = true;
      break;
    case v1::Directive::STOP_AT_STEP:
      stop_at_step = directive.step();
      break;
    case v1::Directive::SET_PACE:
      pace_milli = directive.pace_milli();
      pace_from_step = directive.step();
      break;
    default:
      break;  // An order of a later version cannot be meant for this one.
  }
}

Session::Session(Options options) : options_(std::move(options)) {
  options_.join.set_process_nonce(RandomNonce());
  progress_ = options_.progress;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Attach(Options options) {
  auto session = std::unique_ptr<Session>(new Session(std::move(options)));
  Session* const raw = session.get();
  ASSIGN_OR_RETURN(session->writer_thread_, StartThread([raw] { raw->RunWriter(); }));
  ASSIGN_OR_RETURN(session->session_thread_, StartThread([raw] { raw->RunSession(); }));
  absl::MutexLock lock(&session->mutex_);
  const auto settled = [raw]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(raw->mutex_) {
    return raw->welcomed_ || raw->ended_;
  };
  const bool in_time = session->mutex_.AwaitWithTimeout(
      absl::Condition(&settled), session->options_.first_attach_patience + kWelcomeTimeout);
  if (session->welcomed_) return session;
  if (!session->failure_.ok()) return session->failure_;
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator did not welcome this worker", in_time ? "" : " in time"));
}

Session::~Session() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  if (session_thread_.joinable()) session_thread_.join();
  if (writer_thread_.joinable()) writer_thread_.join();
}

uint64_t Session::incarnation() const {
  absl::MutexLock lock(&mutex_);
  return incarnation_;
}

bool Session::IsAway() const {
  absl::MutexLock lock(&mutex_);
  return stream_ == nullptr && failure_.ok() && !ended_;
}

int64_t Session::epoch() const {
  absl::MutexLock lock(&mutex_);
  return epoch_;
}

void Session::Enqueue(v1::WorkerMessage message) {
  absl::MutexLock lock(&mutex_);
  outbox_.push_back(std::move(message));
}

void Session::Ready(int64_t step, bool anew) {
  absl::MutexLock lock(&mutex_);
  ready_ = true;
  ready_step_ = step;
  ready_anew_ = anew;
  orders_.start_anew.reset();
  outbox_.push_back(ReadyMessage());
}

v1::WorkerMessage Session::ReadyMessage() const {
  v1::WorkerMessage message;
  message.mutable_ready()->set_step(ready_step_);
  message.mutable_ready()->set_anew(ready_anew_);
  return message;
}

void Session::Applied(int fragment, int64_t round, uint64_t published_hash) {
  v1::WorkerMessage message;
  v1::Applied* const applied = message.mutable_applied();
  applied->set_fragment(fragment);
  applied->set_round(round);
  applied->set_published_hash(published_hash);
  Enqueue(std::move(message));
}

void Session::SetProgress(const v1::Heartbeat& progress) {
  absl::MutexLock lock(&mutex_);
  progress_ = progress;
}

void Session::SetStepsBeforeWait(int64_t steps) {
  absl::MutexLock lock(&mutex_);
  progress_.set_steps_before_wait(steps);
}

void Session::SetCheckpoint(int64_t step) {
  absl::MutexLock lock(&mutex_);
  progress_.set_checkpoint_step(step);
  heartbeat_is_due_ = true;
}

absl::StatusOr<Session::Orders> Session::WaitForGo(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto go = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || orders_.drain || orders_.start_anew.has_value() ||
           (orders_.started && !orders_.paused);
  };
  mutex_.AwaitWithTimeout(absl::Condition(&go), timeout);
  RETURN_IF_ERROR(failure_);
  return orders_;
}

absl::StatusOr<Session::Orders> Session::orders() const {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  return orders_;
}

void Session::NoteRunStep(int64_t step) {
  run_step_ = step;
  run_step_at_ = options_.clock->Monotonic();
  ++renewals_;
}

absl::StatusOr<int64_t> Session::RunStep(absl::Duration max_age) {
  absl::MutexLock lock(&mutex_);
  if (options_.clock->Monotonic() - run_step_at_ >= max_age) {
    heartbeat_is_due_ = true;
    const auto told = [this, before = renewals_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return renewals_ != before || !failure_.ok() || stopping_ || orders_.drain;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&told), kAnswerTimeout);
  }
  RETURN_IF_ERROR(failure_);
  return run_step_;
}

void Session::RequestDrain() {
  absl::MutexLock lock(&mutex_);
  orders_.drain = true;
}

void Session::Leave(v1::Leave::Reason reason, const std::string& detail) {
  absl::MutexLock lock(&mutex_);
  if (ended_ || leaving_) return;
  leaving_ = true;
  v1::WorkerMessage message;
  message.mutable_leave()->set_reason(reason);
  message.mutable_leave()->set_detail(detail);
  outbox_.push_back(std::move(message));
  const bool heard =
      mutex_.AwaitWithTimeout(absl::Condition(&ended_), kLeaveTimeout) && failure_.ok();
  if (!heard) {
    Log().warn("the coordinator did not confirm that this worker leaves; its lease will end");
  }
  left_ = true;
}

void Session::OnFailure(std::function<void(const absl::Status&)> callback) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    failure = failure_;
    if (failure.ok()) on_failure_ = std::move(callback);
  }
  if (!failure.ok()) callback(failure);
}

void Session::Fail(const absl::Status& status) {
  std::function<void(const absl::Status&)> callback;
  {
    absl::MutexLock lock(&mutex_);
    failure_ = status;
    callback = std::move(on_failure_);
  }
  if (callback) callback(status);
}

void Session::RunSession() {
  absl::Duration backoff = kFirstBackoff;
  alone_since_ = options_.clock->Monotonic();
  absl::BitGen jitter;  // So that the workers of a run do not come back all at once.
  absl::Status failure;
  for (;;) {
    const uint64_t before = incarnation();
    const absl::Status status = RunStream();
    const bool was_attached = incarnation() != before;
    if (was_attached) {
      retries_ = 0;
      backoff = kFirstBackoff;
      alone_since_ = options_.clock->Monotonic();
    }
    absl::MutexLock lock(&mutex_);
    if (stopping_ || (said_leave_ && status.ok())) break;
    const bool passes = status.ok() || options_.passes(status);
    const bool is_other =
        welcomed_ && !was_attached && MayBeAnothers(status) && (!passes || MadeOnTheWay(status));
    const bool news = retries_++ == 0 || (is_other && !other_since_.has_value());
    const absl::Duration now = options_.clock->Monotonic();
    if (!is_other) {
      other_since_.reset();
    } else if (!other_since_.has_value()) {
      other_since_ = now;
    }
    const absl::Duration since = is_other ? *other_since_ : alone_since_;
    const absl::Duration patience = is_other    ? kOtherPatience
                                    : welcomed_ ? absl::InfiniteDuration()
                                                : options_.first_attach_patience;
    const bool may_pass =
        passes || is_other ||
        (!welcomed_ && options_.join.has_checkpoint() && absl::IsAlreadyExists(status));
    if (!may_pass || said_leave_ || now - since >= patience) {
      failure = status.ok() ? absl::UnavailableError("the coordinator ended the session") : status;
      break;
    }
    options_.on_failed_try(status);
    if (!news || left_) {
      Log().debug("attaching again: {}", std::string(status.message()));
    } else {
      const char* const what = is_other    ? "somebody else answers in the coordinator's place"
                               : welcomed_ ? "the session with the coordinator broke"
                                           : "not welcome yet";
      options_.events->Record(
          "session_broke",
          absl::StrCat(what, " (", status.message(), "); attaching again, every ",
                       absl::FormatDuration(kMaxBackoff), " at least, ",
                       patience == absl::InfiniteDuration()
                           ? "until it is back"
                           : absl::StrCat("for ", absl::FormatDuration(patience))),
          {{"code", std::string(absl::StatusCodeToString(status.code()))},
           {"reason", std::string(status.message())}});
    }
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), backoff * absl::Uniform(jitter, 0.5, 1.0));
    if (stopping_) break;
    backoff = std::min(2 * backoff, kMaxBackoff);
  }
  if (!failure.ok()) Fail(failure);
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

absl::Status Session::RunStream() {
  std::shared_ptr<grpc::Channel> own = options_.channels->Now();
  const std::unique_ptr<v1::Session::Stub> stub = v1::Session::NewStub(own);
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("stopping");
    context_ = &context;
    outdated_ = false;
    own.swap(channel_);  // The former one goes when this returns.
  }
  const std::unique_ptr<Stream> stream = stub->Attach(&context);
  v1::WorkerMessage join;
  *join.mutable_join() = options_.join;
  join.mutable_join()->set_seen_epoch(epoch());
  v1::CoordinatorMessage message;
  if (stream->Write(join) && stream->Read(&message) && message.has_welcome()) {
    bool resumed = false;  // And somebody cares.
    {
      absl::MutexLock lock(&mutex_);
      const v1::Welcome& welcome = message.welcome();
      epoch_ = std::max(epoch_, welcome.epoch());
      if (!welcomed_) welcome_ = welcome;
      incarnation_ = welcome.incarnation();
      lease_ms_ = std::max<int64_t>(1, welcome.lease_ms());
      NoteRunStep(welcome.run_step());
      orders_.Note(welcome);
      if (welcomed_ && ready_) {
        if (!welcome.resumes() && welcome.run_step() - std::max(ready_step_, progress_.step()) >
                                      options_.max_steps_behind) {
          orders_.start_anew = welcome;
        } else {
          // As it was said first, not the present step: rounds that are still under way go on
          // expecting this worker, and the coordinator may not have heard it.
          outbox_.push_front(ReadyMessage());
        }
      }
      resumed = std::exchange(welcomed_, true) && !left_;
      stream_ = stream.get();
      heartbeat_is_due_ = true;  // All of the progress is news.
    }
    if (options_.on_welcome) options_.on_welcome(message.welcome());
    options_.on_stream(true);
    if (resumed) {
      const uint64_t now = message.welcome().incarnation();
      const double away = absl::ToDoubleSeconds(options_.clock->Monotonic() - alone_since_);
      options_.events->Record(
          "session_resumed",
          absl::StrFormat("attached again after %.1f s, as incarnation %d", away, now),
          {{"incarnation", now}, {"away_seconds", away}, {"tries", retries_}});
    }
    while (stream->Read(&message)) Obey(message);
    options_.on_stream(false);
  }
  {
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; };
    // A write on a broken stream returns at once.
    mutex_.Await(absl::Condition(&idle));
    context_ = nullptr;
  }
  const absl::Status end = FromGrpcStatus(stream->Finish(), context, options_.join.run_id());
  absl::MutexLock lock(&mutex_);
  if (!outdated_ || !absl::IsCancelled(end)) return end;
  return Renewal();
}

void Session::EndOutdated() {
  const std::shared_ptr<grpc::Channel> now = options_.channels->Now();
  absl::MutexLock lock(&mutex_);
  if (channel_ == now || context_ == nullptr || leaving_) return;
  outdated_ = true;
  context_->TryCancel();
}

void Session::Obey(const v1::CoordinatorMessage& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (left_) return;
  }
  if (message.has_directive()) {
    const v1::Directive& directive = message.directive();
    const std::string action = v1::Directive::Action_Name(directive.action());
    options_.events->Record(
        "ordered",
        absl::StrCat("the coordinator says ", action, directive.reason().empty() ? "" : ": ",
                     directive.reason()),
        {{"action", action}, {"step", directive.step()}, {"reason", directive.reason()}});
    absl::MutexLock lock(&mutex_);
    orders_.Note(directive);
  } else if (message.has_roster()) {
    std::string ids;
    for (const std::string& id : message.roster().worker_ids()) {
      absl::StrAppend(&ids, ids.empty() ? "" : ", ", id);
    }
    Log().info("members: {}", ids);
    absl::MutexLock lock(&mutex_);
    orders_.members.assign(message.roster().worker_ids().begin(),
                           message.roster().worker_ids().end());
  } else if (message.has_lease_renewed()) {
    const v1::LeaseRenewed& renewed = message.lease_renewed();
    options_.on_waits_for(renewed.waits_for());
    absl::MutexLock lock(&mutex_);
    // A coordinator of an earlier release does not say it.
    NoteRunStep(renewed.has_run_step() ? renewed.run_step() : run_step_);
  } else if (message.has_notice()) {
    Log().warn("{}", Printable(message.notice().text()));
  } else if (message.has_round_outcome()) {
    const v1::RoundOutcome& outcome = message.round_outcome();
    Log().debug("round {} of fragment {} published with {} contributions: {}", outcome.round(),
                outcome.fragment(), outcome.contributors_size(), outcome.reason());
    if (options_.on_outcome) options_.on_outcome(outcome);
  }
}

void Session::RunWriter() {
  absl::Duration next_heartbeat = -absl::InfiniteDuration();
  absl::Duration next_look = -absl::InfiniteDuration();
  for (;;) {
    const absl::Duration now = Clock::Real()->Monotonic();
    if (now >= next_look) {
      EndOutdated();
      next_look = now + kLookForRenewal;
    }
    v1::WorkerMessage message;
    Stream* stream = nullptr;
    bool last = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || ended_ ||
               (stream_ != nullptr && (!outbox_.empty() || heartbeat_is_due_));
      };
      mutex_.AwaitWithTimeout(
          absl::Condition(&work),
          std::max(std::min(next_heartbeat, next_look) - now, absl::Milliseconds(1)));
      if (stopping_ || ended_) return;
      if (stream_ == nullptr) {
        // Nothing to write to: wait for the next stream.
        const auto attached = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || ended_ || stream_ != nullptr;
        };
        mutex_.Await(absl::Condition(&attached));
        continue;
      }
      if (!outbox_.empty()) {
        message = std::move(outbox_.front());
        outbox_.pop_front();
      } else if (heartbeat_is_due_ || Clock::Real()->Monotonic() >= next_heartbeat) {
        *message.mutable_heartbeat() = progress_;
        heartbeat_is_due_ = false;
        next_heartbeat = Clock::Real()->Monotonic() + absl::Milliseconds(lease_ms_) / 3;
      }
      if (message.message_case() == v1::WorkerMessage::MESSAGE_NOT_SET) continue;
      last = message.has_leave();
      if (last) {
        // The last word carries the final figures before it.
        v1::WorkerMessage figures;
        *figures.mutable_heartbeat() = progress_;
        outbox_.clear();
        outbox_.push_back(std::move(message));
        message = std::move(figures);
      }
      stream = stream_;
      writing_ = true;
    }
    bool written = stream->Write(message);
    if (last && written) {
      {
        absl::MutexLock lock(&mutex_);
        message = std::move(outbox_.front());
        outbox_.pop_front();
      }
      written = stream->Write(message);
      stream->WritesDone();
    }
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!written && !message.has_heartbeat()) {
      outbox_.push_front(std::move(message));  // For the next stream.
    }
    if (last && written) {
      said_leave_ = true;
      return;
    }
  }
}

}  // namespace causeway
