#include "tests/simulation/virtual_session.h"

#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kUntilItMayCall = absl::Milliseconds(200);

}  // namespace

void VirtualSession::After(absl::Duration delay, std::function<void()> event) {
  world().After(delay, [self = weak_from_this(), event = std::move(event)] {
    const auto process = self.lock();
    if (process != nullptr && !process->dead()) event();
  });
}

absl::Duration VirtualSession::BackOff(int attempt) const {
  return std::min(patience_.first_pause * (int64_t{1} << std::min(attempt - 1, 10)),
                  patience_.longest_pause);
}

void VirtualSession::OpenStream() {
  v1::Join join;
  join.set_worker_id(session_.id);
  join.set_run_id("simulated-1");
  join.set_wire_version(kWireVersion);
  join.set_config_hash(session_.config_hash);
  join.set_plan_hash(session_.plan->hash());
  join.set_data_vocabulary_size(session_.scenario->config.model().vocabulary_size());
  join.set_process_nonce(session_.nonce);
  join.set_seen_epoch(epoch_);
  Complete(join);
  member_ = true;
  stream_welcomed_ = false;
  stream_ = session_.host->Attach(weak_from_this(), join);
  After(patience_.welcome, [this, id = stream_->id()] {
    if (!stream_welcomed_) OnStreamEnd(id, absl::UnavailableError("no welcome"));
  });
}

void VirtualSession::Send(v1::WorkerMessage message) {
  if (connected()) {
    stream_->SendFromWorker(message);
  } else {
    outbox_.push_back(std::move(message));
  }
}

void VirtualSession::OnMessage(int64_t stream, const v1::CoordinatorMessage& message) {
  if (dead() || stream_ == nullptr || stream_->id() != stream) return;
  if (message.has_directive()) {
    const v1::Directive& directive = message.directive();
    world().Trace(session_.id, " is told ", v1::Directive::Action_Name(directive.action()), " ",
                  directive.step());
    orders_.Note(directive);
    if (directive.action() == v1::Directive::START) {
      session_.auditor->Draws(session_.id, directive.data_slot());
    }
  }
  if (!message.has_welcome()) return OnTold(message);
  const v1::Welcome& welcome = message.welcome();
  stream_welcomed_ = true;
  incarnation_ = welcome.incarnation();
  epoch_ = std::max(epoch_, welcome.epoch());
  tries_ = 0;
  if (ready_) outbox_.push_front(server::ReadyAt(ready_step_, anew_));
  for (const v1::WorkerMessage& queued : outbox_) stream_->SendFromWorker(queued);
  outbox_.clear();
  Beat(++beats_);
  orders_.Note(welcome);
  OnWelcome(welcome, !std::exchange(welcomed_, true));
}

void VirtualSession::OnStreamEnd(int64_t stream, const absl::Status& status) {
  if (dead() || stream_ == nullptr || stream_->id() != stream) return;
  stream_.reset();
  stream_welcomed_ = false;
  if (!OnBroken(status)) return;
  After(BackOff(++tries_), [this] {
    if (member_ && stream_ == nullptr) OpenStream();
  });
}

void VirtualSession::Call(int attempt, const MakeCall& make, const CoordinatorHost::OnReply& done) {
  if (may_call() == When::kNever) return;
  const auto again = [=, this](absl::Duration delay, int next) {
    After(delay, [=, this] { Call(next, make, done); });
  };
  if (may_call() == When::kLater) return again(kUntilItMayCall, attempt);
  make(attempt, [=, this](const CoordinatorHost::Reply& reply) {
    if (dead()) return;
    const absl::Status& status = reply.status();
    if (IsRetryable(status) || (absl::IsDataLoss(status) && attempt < 3)) {
      return again(BackOff(attempt), attempt + 1);
    }
    done(reply);
  });
}

void VirtualSession::Push(const v1::PushHeader& header,
                          const std::shared_ptr<const std::vector<uint8_t>>& object,
                          const CoordinatorHost::OnReply& done) {
  const auto make = [=, this](int attempt, CoordinatorHost::OnReply reply) {
    v1::PushHeader present = header;
    present.set_run_id("simulated-1");
    present.set_incarnation(incarnation_);
    present.set_attempt(static_cast<uint32_t>(attempt));
    present.set_epoch(epoch_);
    session_.host->Push(weak_from_this(), present, *object, std::move(reply));
  };
  Call(1, make, done);
}

void VirtualSession::Pull(int fragment, int64_t round, const CoordinatorHost::OnReply& done) {
  const auto make = [=, this](int /*attempt*/, CoordinatorHost::OnReply reply) {
    session_.host->PullAnswer(weak_from_this(), fragment, round, std::move(reply));
  };
  Call(1, make, done);
}

void VirtualSession::Beat(int64_t beat) {
  if (beat != beats_ || !beats()) return;
  v1::WorkerMessage message;
  *message.mutable_heartbeat() = Progress();
  stream_->SendFromWorker(message);
  After(absl::Milliseconds(session_.scenario->config.membership().lease_ms()) / 3,
        [this, beat] { Beat(beat); });
}

void VirtualSession::Kill(bool silently) {
  dead_ = true;
  if (stream_ != nullptr) stream_->AbandonByWorker(silently);
}

}  // namespace causeway::simulation
