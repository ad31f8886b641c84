// The session of VirtualWorker: what worker/member does over gRPC.
#include <algorithm>
#include <utility>

#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "tests/simulation/virtual_worker.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kWelcomeTimeout = absl::Seconds(30);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);
constexpr absl::Duration kDrainTimeout = absl::Seconds(20);

}  // namespace

void VirtualWorker::OpenStream() {
  v1::Join join;
  join.set_worker_id(options_.id);
  join.set_run_id("simulated-1");
  join.set_wire_version(kWireVersion);
  join.set_config_hash(options_.config_hash);
  join.set_plan_hash(options_.plan->hash());
  join.set_data_vocabulary_size(options_.scenario->config.model().vocabulary_size());
  join.set_process_nonce(options_.nonce);
  join.set_seen_epoch(epoch_);
  if (options_.checkpoint.has_value()) {
    join.set_has_checkpoint(true);
    join.set_resume_step(options_.checkpoint->step);
  }
  stream_welcomed_ = false;
  stream_ = options_.host->Attach(weak_from_this(), join);
  After(kWelcomeTimeout, [this, id = stream_->id()] {
    if (!stream_welcomed_) OnStreamEnd(id, absl::UnavailableError("no welcome"));
  });
}

void VirtualWorker::Send(v1::WorkerMessage message) {
  if (stream_ != nullptr && stream_welcomed_) {
    stream_->SendFromWorker(message);
  } else {
    outbox_.push_back(std::move(message));
  }
}

void VirtualWorker::OnMessage(int64_t stream, const v1::CoordinatorMessage& message) {
  if (dead() || stream_ == nullptr || stream_->id() != stream) return;
  if (message.has_directive()) {
    Obey(message.directive());
    return;
  }
  if (message.has_lease_renewed() && phase_ == Phase::kFetching) {
    run_step_ = message.lease_renewed().run_step();  // It joins where the run is by then.
    return;
  }
  if (!message.has_welcome()) return;
  const v1::Welcome& welcome = message.welcome();
  stream_welcomed_ = true;
  incarnation_ = welcome.incarnation();
  epoch_ = std::max(epoch_, welcome.epoch());
  reattach_attempts_ = 0;
  if (welcome.started()) started_ = true;
  if (ready_) {
    outbox_.push_front(server::ReadyAt(ready_step_, anew_));
  }
  for (const v1::WorkerMessage& queued : outbox_) stream_->SendFromWorker(queued);
  outbox_.clear();
  Beat(++beats_);
  if (!std::exchange(welcomed_, true)) Begin(welcome);
}

void VirtualWorker::OnStreamEnd(int64_t stream, const absl::Status& status) {
  if (dead() || stream_ == nullptr || stream_->id() != stream) return;
  stream_.reset();
  stream_welcomed_ = false;
  if (phase_ == Phase::kLeaving) {
    End(exit_);
    return;
  }
  if (!welcomed_ || !(status.ok() || IsRetryable(status))) {
    Fail(status);
    return;
  }
  After(BackOff(++reattach_attempts_), [this] {
    if (stream_ == nullptr) OpenStream();
  });
}

void VirtualWorker::Obey(const v1::Directive& directive) {
  world().Trace(options_.id, " is told ", v1::Directive::Action_Name(directive.action()), " ",
                directive.step());
  switch (directive.action()) {
    case v1::Directive::START:
      started_ = true;
      options_.auditor->Draws(options_.id, directive.data_slot());
      break;
    case v1::Directive::PAUSE:
      paused_ = true;
      break;
    case v1::Directive::RESUME:
      paused_ = false;
      break;
    case v1::Directive::DRAIN:
      if (!std::exchange(drain_, true)) {
        After(kDrainTimeout, [this] {
          // Transfers under way stay in the checkpoint.
          if (phase_ != Phase::kTraining && phase_ != Phase::kHandingOver) return;
          SaveCheckpoint();
          Leave(v1::Leave::DRAINED, Exit::kDrained);
        });
      }
      break;
    case v1::Directive::STOP_AT_STEP:
      stop_at_step_ = directive.step();
      break;
    default:
      break;
  }
  Pump();
}

void VirtualWorker::Beat(int64_t beat) {
  if (beat != beats_ || stream_ == nullptr || phase_ == Phase::kLeaving) return;
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_step(step_);
  message.mutable_heartbeat()->set_checkpoint_step(checkpoint_step_);
  if (options_.lies) {
    message.mutable_heartbeat()->set_tokens(int64_t{1} << 48);
    message.mutable_heartbeat()->set_inner_step_seconds(1e-6);
    message.mutable_heartbeat()->set_download_bytes_per_second(1e-3);
  }
  stream_->SendFromWorker(message);
  After(absl::Milliseconds(options_.scenario->config.membership().lease_ms()) / 3,
        [this, beat] { Beat(beat); });
}

void VirtualWorker::ReportApplied(int index, int64_t version) {
  options_.auditor->Merged(options_.id, index, version, Part(published_, index));
  v1::WorkerMessage message;
  message.mutable_applied()->set_fragment(index);
  message.mutable_applied()->set_round(version);
  message.mutable_applied()->set_published_hash(
      TreeHash(std::span<const float>(Part(published_, index))));
  Send(std::move(message));
}

void VirtualWorker::Leave(v1::Leave::Reason reason, Exit exit) {
  phase_ = Phase::kLeaving;
  exit_ = exit;
  if (stream_ == nullptr || !stream_welcomed_) {
    End(exit);
    return;
  }
  v1::WorkerMessage figures;
  figures.mutable_heartbeat()->set_step(step_);
  figures.mutable_heartbeat()->set_checkpoint_step(checkpoint_step_);
  stream_->SendFromWorker(figures);
  stream_->SendFromWorker(server::LeaveFor(reason));
  After(kLeaveTimeout, [this] { End(exit_); });
}

void VirtualWorker::Fail(const absl::Status& status) {
  if (dead() || phase_ == Phase::kLeaving) return;
  world().Count(Happening::kWorkerFailed);
  world().Trace(options_.id, " fails: ", status.ToString());
  Leave(v1::Leave::FAILED, Exit::kFailed);
}

void VirtualWorker::End(Exit exit) {
  if (dead()) return;
  phase_ = Phase::kDead;
  if (stream_ != nullptr) stream_->AbandonByWorker(false);
  options_.on_exit(exit);
}

void VirtualWorker::Kill(bool silently) {
  phase_ = Phase::kDead;
  if (stream_ != nullptr) stream_->AbandonByWorker(silently);
}

}  // namespace causeway::simulation
