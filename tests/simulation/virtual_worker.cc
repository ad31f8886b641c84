#include "tests/simulation/virtual_worker.h"

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/params/run_config.h"
#include "common/rpc/status.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

constexpr int64_t kTokensPerStep = 64;
constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);
constexpr absl::Duration kDrainTimeout = absl::Seconds(20);

}  // namespace

VirtualWorker::VirtualWorker(Options options)
    : VirtualSession(options, {.welcome = absl::Seconds(30),
                               .first_pause = absl::Milliseconds(500),
                               .longest_pause = absl::Seconds(15)}),
      options_(std::move(options)),
      sync_(options_.scenario->config.sync()),
      schedule_(options_.plan->fragments(), sync_.steps_between_syncs(), MaxOverlapSteps(sync_)),
      early_(sync_, schedule_, options_.forget_merges ? MergeRecord() : *options_.record),
      up_(**FindCodec(sync_.codec_up())),
      down_(**FindCodec(sync_.codec_down())),
      noise_(Checksum64(options_.id)),
      local_(static_cast<size_t>(options_.plan->arena_size())),
      published_(local_.size()),
      fragments_(static_cast<size_t>(options_.plan->fragments())) {
  if (!sync_.error_feedback()) return;
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    fragment(i).residual.resize(static_cast<size_t>(options_.plan->range(i).size()));
  }
}

void VirtualWorker::Start() {
  world().Trace(options_.id, " starts",
                options_.checkpoint.has_value()
                    ? absl::StrCat(" from its checkpoint at step ", options_.checkpoint->step)
                    : " anew");
  OpenStream();
}

std::span<float> VirtualWorker::Part(std::vector<float>& arena, int index) const {
  const FragmentRange& range = options_.plan->range(index);
  return std::span(arena).subspan(static_cast<size_t>(range.begin),
                                  static_cast<size_t>(range.size()));
}

void VirtualWorker::Complete(v1::Join& join) const {
  if (!options_.checkpoint.has_value()) return;
  join.set_has_checkpoint(true);
  join.set_resume_step(options_.checkpoint->step);
}

v1::Heartbeat VirtualWorker::Progress() const {
  v1::Heartbeat heartbeat;
  heartbeat.set_step(step_);
  heartbeat.set_checkpoint_step(checkpoint_step_);
  if (options_.lies) {
    heartbeat.set_tokens(int64_t{1} << 48);
    heartbeat.set_inner_step_seconds(1e-6);
    heartbeat.set_download_bytes_per_second(1e-3);
  }
  return heartbeat;
}

void VirtualWorker::OnWelcome(const v1::Welcome& welcome, bool first) {
  if (first) Begin(welcome);
}

void VirtualWorker::OnTold(const v1::CoordinatorMessage& message) {
  if (message.has_directive()) {
    if (orders_.drain && !std::exchange(draining_, true)) {
      After(kDrainTimeout, [this] {
        // Transfers under way stay in the checkpoint.
        if (phase_ != Phase::kTraining && phase_ != Phase::kHandingOver) return;
        SaveCheckpoint();
        Leave(v1::Leave::DRAINED, Exit::kDrained);
      });
    }
    return Pump();
  }
  if (message.has_lease_renewed() && phase_ == Phase::kFetching) {
    run_step_ = message.lease_renewed().run_step();  // It joins where the run is by then.
  }
}

bool VirtualWorker::OnBroken(const absl::Status& status) {
  if (phase_ == Phase::kLeaving) {
    End(exit_);
    return false;
  }
  if (welcomed_ && (status.ok() || IsRetryable(status))) return true;
  Fail(status);
  return false;
}

void VirtualWorker::ReportApplied(int index, int64_t version) {
  const std::span<const float> published = Part(published_, index);
  options_.auditor->Merged(options_.id, index, version, published);
  Send(server::AppliedOf(index, version, TreeHash(published)));
}

void VirtualWorker::Leave(v1::Leave::Reason reason, Exit exit) {
  phase_ = Phase::kLeaving;
  exit_ = exit;
  if (!connected()) return End(exit);
  v1::WorkerMessage figures;
  *figures.mutable_heartbeat() = Progress();
  stream_->SendFromWorker(figures);
  stream_->SendFromWorker(server::LeaveFor(reason));
  After(kLeaveTimeout, [this] { End(exit_); });
}

void VirtualWorker::Fail(const absl::Status& status) {
  if (dead() || phase_ == Phase::kLeaving) return;
  world().Count("workers_failed");
  world().Trace(options_.id, " fails: ", status.ToString());
  Leave(v1::Leave::FAILED, Exit::kFailed);
}

void VirtualWorker::End(Exit exit) {
  if (dead()) return;
  Kill(/*silently=*/false);
  options_.on_exit(exit);
}

void VirtualWorker::Begin(const v1::Welcome& welcome) {
  if (options_.checkpoint.has_value() &&
      (welcome.resumes() || welcome.run_step() - options_.checkpoint->step <=
                                options_.scenario->config.sync().steps_between_syncs())) {
    world().Count("workers_resumed");
    Restore();
    return;
  }
  world().Count("workers_started_anew");
  if (options_.checkpoint.has_value()) world().Count("workers_too_far_behind");
  anew_ = true;
  phase_ = Phase::kFetching;
  run_step_ = welcome.run_step();
  FetchNext();
}

void VirtualWorker::Restore() {
  const WorkerCheckpoint& checkpoint = *options_.checkpoint;
  phase_ = Phase::kEntering;
  step_ = checkpoint.step;
  checkpoint_step_ = checkpoint.step;
  local_ = checkpoint.local;
  published_ = checkpoint.published;
  fragments_ = checkpoint.fragments;
  std::vector<int64_t> versions;
  for (const WorkerFragment& state : fragments_) versions.push_back(state.version);
  if (!options_.merge_unrecorded) early_.Resume(versions);
  std::vector<std::shared_ptr<Flight>> flights;
  for (WorkerFragment& state : fragments_) {
    if (state.flight == nullptr) continue;
    auto flight = std::make_shared<Flight>();
    flight->event = state.flight->event;
    flight->tokens = state.flight->tokens;
    flight->send_step = schedule_.SendStep(flight->event.fragment, flight->event.round);
    flight->object = state.flight->object;
    flights.push_back(std::move(flight));
  }
  std::ranges::stable_sort(flights, {}, [](const auto& flight) { return flight->send_step; });
  for (std::shared_ptr<Flight>& flight : flights) Launch(std::move(flight));
  Pump();
}

void VirtualWorker::FetchNext() {
  options_.host->PullState(weak_from_this(), fetched_,
                           [this, index = fetched_](const CoordinatorHost::Reply& reply) {
                             if (!dead()) OnState(index, reply, false);
                           });
}

void VirtualWorker::OnState(int index, const CoordinatorHost::Reply& reply, bool landing) {
  if (phase_ == Phase::kLeaving) return;
  if (!reply.ok()) {
    if (!IsRetryable(reply.status())) {
      Fail(reply.status());
      return;
    }
    After(BackOff(1), [this, index, landing] {
      options_.host->PullState(weak_from_this(), index,
                               [this, index, landing](const CoordinatorHost::Reply& again) {
                                 if (!dead()) OnState(index, again, landing);
                               });
    });
    return;
  }
  TakeState(index, **reply);
  if (landing) {
    state_asked_ = false;
    RecordMerge(fragment(index).flight->event);
    fragment(index).flight = nullptr;
    Mix(index, phase_ == Phase::kEntering && fetched_ > 0 ? 0 : static_cast<float>(sync_.mixing()));
    Pump();
    return;
  }
  Mix(index, 0);
  if (++fetched_ < options_.plan->fragments()) {
    FetchNext();
    return;
  }
  int64_t received = 0;
  int64_t open = options_.scenario->config.train().steps();
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    const int64_t version = fragment(i).version;
    if (version > 0) received = std::max(received, schedule_.SendStep(i, version));
    open = std::min(open, schedule_.SendStep(i, version + 1) - 1);
  }
  step_ = std::max(run_step_, std::min(received, open));
  phase_ = Phase::kEntering;
  Pump();
}

void VirtualWorker::TakeState(int index, const server::PullObject& state) {
  std::memcpy(Part(published_, index).data(), state.bytes.data(), state.bytes.size());
  fragment(index).version = state.header.round();
  ReportApplied(index, state.header.round());
}

void VirtualWorker::Pump() {
  if (phase_ == Phase::kEntering && Enter()) StartTraining();
  if (phase_ == Phase::kTraining && !stepping_ && MergeDue()) {
    const int64_t budget = options_.scenario->config.train().steps();
    const int64_t end = orders_.stop_at_step > 0 ? std::min(budget, orders_.stop_at_step) : budget;
    if (step_ >= end) {
      phase_ = Phase::kFinishing;
    } else if (orders_.drain) {
      phase_ = Phase::kHandingOver;
    } else if (orders_.started && !orders_.paused) {
      stepping_ = true;
      After(world().Between(options_.scenario->shortest_step, options_.scenario->longest_step),
            [this] { StepDone(); });
    }
  }
  if (phase_ == Phase::kFinishing) {
    for (int i = 0; i < options_.plan->fragments(); ++i) {
      if (fragment(i).flight != nullptr && !Land(i)) return;
    }
    SaveCheckpoint();
    Leave(v1::Leave::FINISHED, Exit::kFinished);
  }
  if (phase_ == Phase::kHandingOver) {
    for (const WorkerFragment& state : fragments_) {
      if (state.flight != nullptr && !state.flight->pushed) return;
    }
    SaveCheckpoint();
    Leave(v1::Leave::DRAINED, Exit::kDrained);
  }
}

bool VirtualWorker::Enter() {
  const bool resumed = options_.checkpoint.has_value() && fetched_ == 0;
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    WorkerFragment& state = fragment(i);
    const int64_t sent = schedule_.RoundsSentBy(i, step_);
    while (state.version < sent) {
      if (state.flight == nullptr) {
        // Sent by others before this process began: it is merged when they do.
        auto flight = std::make_shared<Flight>();
        flight->event = {i, state.version + 1};
        flight->pushed = true;
        Hold(i);
        Launch(std::move(flight));
      }
      if (schedule_.MergeStep(i, state.version + 1) > step_) break;
      if (!Land(i)) return false;
      if (!resumed) Mix(i, 0);
    }
  }
  return true;
}

void VirtualWorker::StartTraining() {
  phase_ = Phase::kTraining;
  if (options_.scenario->undisturbed_bits) SaveCheckpoint();
  ready_ = true;
  ready_step_ = step_;
  world().Trace(options_.id, " is ready at step ", step_);
  Send(server::ReadyAt(step_, anew_));
}

void VirtualWorker::StepDone() {
  if (phase_ != Phase::kTraining) return;
  stepping_ = false;
  ++step_;
  // As a gradient does, it depends on all values: on what was merged when.
  const uint64_t noise = noise_ ^ TreeHash(local_);
  for (size_t i = 0; i < local_.size(); i += 4) {
    const uint64_t bits = RandomBits(noise, static_cast<uint64_t>(step_), i);
    for (size_t k = i; k < std::min(i + 4, local_.size()); ++k) {
      const auto draw = static_cast<int16_t>(bits >> (16 * (k - i)));
      local_[k] += 0x1p-21f * static_cast<float>(draw);
    }
  }
  const std::vector<SyncEvent> early = EarlyMerges();
  merges_due_.insert(merges_due_.end(), early.begin(), early.end());
  for (WorkerFragment& state : fragments_) state.tokens += kTokensPerStep;
  for (const SyncEvent& event : schedule_.SendsAfter(step_)) {
    if (event.round > fragment(event.fragment).version) SendDelta(event);
  }
  for (const SyncEvent& event : schedule_.MergesAfter(step_)) merges_due_.push_back(event);
  Pump();
}

std::vector<SyncEvent> VirtualWorker::EarlyMerges() const {
  std::vector<SyncEvent> early;
  for (const WorkerFragment& state : fragments_) {
    if (state.flight == nullptr) continue;
    const worker::EarlyMerges::Answer answer = early_.After(step_, state.flight->event);
    if (answer == worker::EarlyMerges::Answer::kRecorded ||
        (answer == worker::EarlyMerges::Answer::kIfThere && state.flight->done)) {
      early.push_back(state.flight->event);
    }
  }
  if (!early.empty()) world().Count("merges_before_the_last_step");
  return early;
}

bool VirtualWorker::MergeDue() {
  while (!merges_due_.empty()) {
    const SyncEvent event = merges_due_.front();
    if (event.round > fragment(event.fragment).version && !Land(event.fragment)) return false;
    merges_due_.pop_front();
  }
  const int every = options_.scenario->checkpoint_every_steps;
  if (every > 0 && step_ >= checkpoint_step_ + every) SaveCheckpoint();
  return true;
}

void VirtualWorker::SendDelta(const SyncEvent& event) {
  WorkerFragment& state = fragment(event.fragment);
  if (state.flight != nullptr || event.round != state.version + 1) {
    world().Violate("reaches_the_end",
                    absl::StrCat(options_.id, " is to send round ", event.round, " of fragment ",
                                 event.fragment, " at version ", state.version));
    return;
  }
  auto flight = std::make_shared<Flight>();
  flight->event = event;
  flight->send_step = step_;
  flight->tokens = std::exchange(state.tokens, 0);
  const std::span<const float> base = Part(published_, event.fragment);
  const std::span<const float> target = Part(local_, event.fragment);
  Hold(event.fragment);
  flight->base_hash = TreeHash(base);
  flight->object.resize(up_.EncodedBytes(base.size()));
  const absl::Status encoded =
      up_.Encode(base, target, {.residual = state.residual}, flight->object);
  if (!encoded.ok()) {
    Fail(encoded);
    return;
  }
  options_.auditor->DeltaMade(options_.id, event.fragment, event.round, base, target,
                              flight->object, state.residual, state.ledger);
  Launch(std::move(flight));
}

void VirtualWorker::Launch(std::shared_ptr<Flight> flight) {
  fragment(flight->event.fragment).flight = flight;
  if (flight->object.empty()) {
    flight->pushed = true;
    PullFlight(flight);
  } else {
    PushFlight(flight);
  }
}

void VirtualWorker::PushFlight(const std::shared_ptr<Flight>& flight) {
  v1::PushHeader header =
      server::HeaderOf("simulated-1", options_.id, incarnation_, flight->event.fragment,
                       flight->event.round, up_.id(), flight->object);
  header.set_tokens(options_.lies ? int64_t{1} << 48 : flight->tokens);
  header.set_send_step(flight->send_step);
  header.set_base_hash(flight->base_hash);
  Push(header, {flight, &flight->object}, [this, flight](const CoordinatorHost::Reply& reply) {
    const absl::Status& status = reply.status();
    flight->pushed = true;
    flight->late = absl::IsAborted(status);
    if (flight->late || absl::IsAlreadyExists(status) || status.ok()) {
      PullFlight(flight);
    } else {
      flight->answer = status;
      flight->done = true;
    }
    Pump();
  });
}

void VirtualWorker::PullFlight(const std::shared_ptr<Flight>& flight) {
  Pull(flight->event.fragment, flight->event.round,
       [this, flight](const CoordinatorHost::Reply& reply) {
         flight->answer = reply;
         flight->done = true;
         Pump();
       });
}

bool VirtualWorker::Land(int index) {
  WorkerFragment& state = fragment(index);
  const std::shared_ptr<Flight> flight = state.flight;
  if (flight == nullptr) {
    Fail(absl::InternalError(absl::StrCat("fragment ", index, " is due but not in flight")));
    return false;
  }
  if (!flight->done || state_asked_) return false;
  const absl::Status status = flight->answer.status();
  if (!status.ok() && !absl::IsNotFound(status)) {
    Fail(status);
    return false;
  }
  const std::span<float> published = Part(published_, index);
  if (flight->late) FoldLateDelta(*flight);
  options_.auditor->Landed(options_.id, index, flight->event.round, published, flight->object,
                           state.residual, state.ledger);
  if (absl::IsNotFound(status)) {
    // So late that the answer is gone: the published state as a whole.
    state_asked_ = true;
    flight->late = false;
    options_.host->PullState(weak_from_this(), index,
                             [this, index](const CoordinatorHost::Reply& reply) {
                               if (!dead()) OnState(index, reply, true);
                             });
    return false;
  }
  const absl::Status applied = down_.Apply((*flight->answer)->bytes, published);
  if (!applied.ok()) {
    Fail(applied);
    return false;
  }
  state.flight = nullptr;
  state.version = flight->event.round;
  ReportApplied(index, state.version);
  RecordMerge(flight->event);
  Mix(index, static_cast<float>(sync_.mixing()));
  return true;
}

void VirtualWorker::FoldLateDelta(const Flight& flight) {
  WorkerFragment& state = fragment(flight.event.fragment);
  const std::span<const float> base = Part(published_, flight.event.fragment);
  state.residual.resize(base.size());
  state.tokens += flight.tokens;
  if (options_.drop_late_deltas) return;
  std::vector<double> sum(state.residual.begin(), state.residual.end());
  const absl::Status decoded = up_.Accumulate(flight.object, base, 1.0, sum);
  if (!decoded.ok()) Fail(decoded);
  for (size_t i = 0; i < sum.size(); ++i) state.residual[i] = static_cast<float>(sum[i]);
}

void VirtualWorker::RecordMerge(const SyncEvent& event) {
  options_.record->try_emplace({event.fragment, event.round}, step_);
}

void VirtualWorker::Hold(int index) {
  if (sync_.keep_in_flight() == 0) return;
  const std::span<const float> local = Part(local_, index);
  fragment(index).held.assign(local.begin(), local.end());
}

void VirtualWorker::Mix(int index, float alpha) {
  const std::span<float> local = Part(local_, index);
  const std::span<const float> published = Part(published_, index);
  const std::vector<float> held = std::exchange(fragment(index).held, {});
  for (size_t i = 0; i < held.size(); ++i) {
    const double in_flight = double{local[i]} - double{held[i]};
    local[i] = static_cast<float>(double{published[i]} + sync_.keep_in_flight() * in_flight);
  }
  if (!held.empty()) return;
  for (size_t i = 0; i < local.size(); ++i) {
    local[i] = alpha == 0 ? published[i] : alpha * local[i] + (1 - alpha) * published[i];
  }
}

void VirtualWorker::SaveCheckpoint() {
  WorkerCheckpoint checkpoint{step_, local_, published_, fragments_};
  for (WorkerFragment& state : checkpoint.fragments) {
    if (state.flight != nullptr) state.flight = std::make_shared<Flight>(*state.flight);
  }
  checkpoint_step_ = step_;
  options_.save(checkpoint);
}

}  // namespace causeway::simulation
