#include "tests/simulation/virtual_region.h"

#include "common/params/draws.h"
#include "common/rpc/status.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kRegionPoll = absl::Milliseconds(200);
constexpr absl::Duration kRegionLeaveTimeout = absl::Seconds(10);

}  // namespace

void VirtualRegion::Start() {
  options_.own->Command(
      [this](server::Coordinator& region) { paused_ = region.GetStatus().paused(); });
  After(absl::ZeroDuration(), [this] { Poll(); });
}

void VirtualRegion::Poll() {
  if (options_.own->Command([&](server::Coordinator& own) { place_ = own.region()->Place(); })) {
    if (!member_ && place_.ready) {
      Attach();
    } else if (member_ && !place_.ready) {
      Detach();
    } else if (welcomed_) {
      Obey();
    }
  } else if (options_.own->coordinator() != nullptr && !std::exchange(failed_, true)) {
    options_.own->Replace();
  }
  After(kRegionPoll, [this] { Poll(); });
}

void VirtualRegion::Attach() {
  welcomed_ = false;
  begun_slot_ = -1;
  orders_ = {};
  tries_ = 0;
  ready_ = true;
  ready_step_ = place_.step;
  OpenStream();
}

void VirtualRegion::Complete(v1::Join& join) const {
  join.set_sites(options_.sites);
  join.set_resume_step(ready_step_);
  join.set_has_checkpoint(true);
}

void VirtualRegion::OnTold(const v1::CoordinatorMessage& message) {
  if (message.has_round_outcome()) {
    NotePublished(message.round_outcome().fragment(), message.round_outcome().round());
  }
  if (!message.has_directive()) return;
  const v1::Directive& directive = message.directive();
  world().Trace(options_.id, " is told ", v1::Directive::Action_Name(directive.action()), " ",
                directive.step());
  switch (directive.action()) {
    case v1::Directive::START:
      orders_.started = true;
      orders_.data_slot = directive.data_slot();
      orders_.next_draws.assign(directive.next_draws().begin(), directive.next_draws().end());
      options_.auditor->Draws(options_.id, directive.data_slot());
      break;
    case v1::Directive::PAUSE:
      orders_.paused = true;
      break;
    case v1::Directive::RESUME:
      orders_.paused = false;
      break;
    case v1::Directive::DRAIN:
      orders_.drain = true;
      break;
    case v1::Directive::STOP_AT_STEP:
      orders_.stop_at_step = directive.step();
      break;
    default:
      break;
  }
}

void VirtualRegion::OnWelcome(const v1::Welcome& welcome, bool /*first*/) {
  world().Count("regions_attached");
  if (welcome.started()) orders_.started = true;
  orders_.data_slot = welcome.data_slot();
  orders_.next_draws.assign(welcome.next_draws().begin(), welcome.next_draws().end());
  for (int i = 0; i < welcome.published_versions_size(); ++i) {
    NotePublished(i, welcome.published_versions(i));
  }
}

void VirtualRegion::NotePublished(int fragment, int64_t round) {
  options_.own->Command([=](server::Coordinator& own) {
    own.region()->NoteParentPublished(fragment, round).IgnoreError();
  });
}

bool VirtualRegion::OnBroken(const absl::Status& status) {
  const bool may_pass =
      status.ok() || IsRetryable(status) || (!welcomed_ && absl::IsAlreadyExists(status));
  if (!may_pass) Fail(status);
  return may_pass;
}

void VirtualRegion::Fail(const absl::Status& status) {
  world().Trace(options_.id, " fails: ", status.ToString());
  options_.own->Command([&](server::Coordinator& own) { own.region()->Fail(status); });
}

void VirtualRegion::Obey() {
  options_.own->Command([this](server::Coordinator& own) {
    server::Region& region = *own.region();
    if (orders_.started && orders_.data_slot != begun_slot_) {
      if (!region.Begin(orders_.data_slot, orders_.next_draws).ok()) return;
      begun_slot_ = orders_.data_slot;
    }
    if (orders_.paused != paused_) {
      if (!(orders_.paused ? own.orders().Pause("the parent paused the run")
                           : own.orders().Resume())
               .ok()) {
        return;
      }
      paused_ = orders_.paused;
    }
    if (orders_.stop_at_step > 0 && orders_.stop_at_step != stop_step_) {
      if (!region.Stop(orders_.stop_at_step).ok()) return;
      stop_step_ = orders_.stop_at_step;
    }
    if (orders_.drain && !drained_) drained_ = own.orders().Drain("").ok();
  });
}

void VirtualRegion::Detach() {
  bool finished = false;
  bool at_its_end = false;
  const bool there = options_.own->Command([&](server::Coordinator& region) {
    region.Tick();
    finished = region.Finished();
    at_its_end = region.ReachedItsEnd();
  });
  if (!there || dead() || unsent_ > 0) return;
  member_ = false;
  welcomed_ = false;
  outbox_.clear();
  const std::shared_ptr<Stream> left = std::exchange(stream_, nullptr);
  if (left == nullptr) return;
  if (!finished || !std::exchange(stream_welcomed_, false)) {
    world().Count("regions_left_alone");
    world().Trace(options_.id, " has no sites and lets its lease end");
    left->AbandonByWorker(false);
    return;
  }
  world().Trace(options_.id, " leaves");
  v1::WorkerMessage message;
  *message.mutable_heartbeat() = place_.heartbeat;
  left->SendFromWorker(message);
  message.mutable_leave()->set_reason(at_its_end ? v1::Leave::FINISHED : v1::Leave::DRAINED);
  left->SendFromWorker(message);
  world().After(kRegionLeaveTimeout, [left] { left->AbandonByWorker(false); });
}

void VirtualRegion::Carry(server::RegionDelta delta, Callback done) {
  auto flight = std::make_shared<Flight>(Flight{std::move(delta), std::move(done)});
  if (flight->delta.contributes) {
    ++unsent_;
    After(absl::ZeroDuration(), [this, flight] { Push(flight, 1); });
  } else {
    flight->pushed = true;
    After(absl::ZeroDuration(), [this, flight] { Pull(flight, 1); });
  }
}

void VirtualRegion::NotePushed(const std::shared_ptr<Flight>& flight) {
  if (!std::exchange(flight->pushed, true)) --unsent_;
}

void VirtualRegion::Push(const std::shared_ptr<Flight>& flight, int attempt) {
  if (!connected()) {
    After(kRegionPoll, [this, flight, attempt] { Push(flight, attempt); });
    return;
  }
  const server::RegionDelta& delta = flight->delta;
  v1::PushHeader header = delta.header;
  header.set_run_id("simulated-1");
  header.set_incarnation(incarnation_);
  header.set_attempt(static_cast<uint32_t>(attempt));
  header.set_epoch(epoch_);
  const std::span<const uint8_t> object = delta.object.view();
  options_.host->Push(
      weak_from_this(), header, {object.begin(), object.end()},
      [this, flight, attempt](const CoordinatorHost::Reply& reply) {
        if (dead()) return;
        const absl::Status& status = reply.status();
        if (IsRetryable(status)) {
          After(BackOff(attempt), [this, flight, attempt] { Push(flight, attempt + 1); });
          return;
        }
        NotePushed(flight);
        flight->late = absl::IsAborted(status) && !options_.late_counts;
        if (status.ok() || absl::IsAborted(status) || absl::IsAlreadyExists(status)) {
          Pull(flight, 1);
          return;
        }
        options_.own->Command([&](server::Coordinator&) { flight->done(status); });
      });
}

void VirtualRegion::Pull(const std::shared_ptr<Flight>& flight, int attempt) {
  if (!connected()) {
    After(kRegionPoll, [this, flight, attempt] { Pull(flight, attempt); });
    return;
  }
  options_.host->PullAnswer(
      weak_from_this(), flight->delta.header.fragment(), flight->delta.header.round(),
      [this, flight, attempt](const CoordinatorHost::Reply& reply) {
        if (dead()) return;
        if (IsRetryable(reply.status())) {
          After(BackOff(attempt), [this, flight, attempt] { Pull(flight, attempt + 1); });
          return;
        }
        absl::StatusOr<server::ParentAnswer> answer = absl::UnknownError("not asked");
        if (!reply.ok()) {
          answer = reply.status();
        } else {
          const v1::PullHeader& header = (*reply)->header;
          answer = server::ParentAnswer{.late = flight->late,
                                        .round = header.round(),
                                        .codec = header.codec(),
                                        .published_hash = header.published_hash(),
                                        .bytes = (*reply)->bytes};
        }
        options_.own->Command([&](server::Coordinator&) { flight->done(std::move(answer)); });
      });
}

void VirtualRegion::Applied(int fragment, int64_t round, uint64_t published_hash) {
  if (!member_) return;
  Send(server::AppliedOf(fragment, round, published_hash));
}

std::string VirtualRegion::DescribeState() const {
  return absl::StrCat(dead()       ? "dead"
                      : !member_   ? "not a member"
                      : !welcomed_ ? "attaching"
                                   : "there",
                      ", incarnation ", incarnation_, connected() ? "" : ", not attached",
                      place_.ready ? "" : ", without sites", paused_ ? ", paused" : "", ", ",
                      unsent_, " deltas to send");
}

}  // namespace causeway::simulation
