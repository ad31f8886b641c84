#include "tests/simulation/virtual_session.h"

#include "common/transfer/wire.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {

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
