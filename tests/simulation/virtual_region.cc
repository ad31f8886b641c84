#include "tests/simulation/virtual_region.h"

#include "common/rpc/status.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kRegionPoll = absl::Milliseconds(200);
constexpr absl::Duration kRegionLeaveTimeout = absl::Seconds(10);

}  // namespace

void VirtualRegion::Start() {
  options_.own->Command([this](server::Coordinator& region) { obeyed_.Begin(region); });
  After(absl::ZeroDuration(), [this] { Poll(); });
}

void VirtualRegion::Poll() {
  if (options_.own->Command([&](server::Coordinator& own) { place_ = own.region()->Place(); })) {
    if (!member_ && place_.ready) {
      Attach();
    } else if (member_ && !place_.ready) {
      Detach();
    } else if (welcomed_) {
      options_.own->Command(
          [this](server::Coordinator& own) { obeyed_.Obey(own, orders_).IgnoreError(); });
    }
  } else if (options_.own->coordinator() != nullptr && !std::exchange(failed_, true)) {
    options_.own->Replace();
  }
  After(kRegionPoll, [this] { Poll(); });
}

void VirtualRegion::Attach() {
  welcomed_ = false;
  obeyed_.Attached();
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
}

void VirtualRegion::OnWelcome(const v1::Welcome& welcome, bool /*first*/) {
  world().Count("regions_attached");
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
  const bool contributes = flight->delta.contributes;
  unsent_ += contributes ? 1 : 0;
  After(absl::ZeroDuration(),
        [this, flight, contributes] { contributes ? PushFlight(flight) : PullFlight(flight); });
}

void VirtualRegion::PushFlight(const std::shared_ptr<Flight>& flight) {
  const std::span<const uint8_t> object = flight->delta.object.view();
  Push(flight->delta.header,
       std::make_shared<const std::vector<uint8_t>>(object.begin(), object.end()),
       [this, flight](const CoordinatorHost::Reply& reply) {
         const absl::Status& status = reply.status();
         --unsent_;
         flight->late = absl::IsAborted(status) && !options_.late_counts;
         if (status.ok() || absl::IsAborted(status) || absl::IsAlreadyExists(status)) {
           return PullFlight(flight);
         }
         options_.own->Command([&](server::Coordinator&) { flight->done(status); });
       });
}

void VirtualRegion::PullFlight(const std::shared_ptr<Flight>& flight) {
  const v1::PushHeader& sent = flight->delta.header;
  Pull(sent.fragment(), sent.round(), [this, flight](const CoordinatorHost::Reply& reply) {
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

}  // namespace causeway::simulation
