// Stream of coordinator_host.h: what server/service does with a session, over a network that cuts.

#include "tests/simulation/coordinator_host.h"

namespace causeway::simulation {

class Stream::Sink final : public server::SessionSink {
 public:
  explicit Sink(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void Send(const v1::CoordinatorMessage& message) override {
    if (!stream_->host_.serving(stream_->generation_)) return;
    if (message.has_round_outcome()) {
      const v1::RoundOutcome& outcome = message.round_outcome();
      stream_->host_.auditor_.Shown(outcome.fragment(), outcome.round(), outcome.published_hash());
    }
    if (stream_->incarnation_ == 0) {
      early_.push_back(message);  // Welcome precedes it.
    } else {
      stream_->SendToWorker(message);
    }
  }
  void Close(const absl::Status& status) override {
    if (stream_->host_.serving(stream_->generation_)) stream_->EndToWorker(status);
  }
  void Welcomed() {
    for (const v1::CoordinatorMessage& message : early_) stream_->SendToWorker(message);
    early_.clear();
  }

 private:
  const std::shared_ptr<Stream> stream_;
  std::vector<v1::CoordinatorMessage> early_;
};

Stream::Stream(CoordinatorHost& host, int64_t id, std::weak_ptr<StreamClient> client)
    : host_(host), id_(id), client_(std::move(client)) {}

absl::Duration Stream::Arrival(absl::Duration& last) {
  last = std::max(last, host_.world_.now() + host_.Delay());
  return last - host_.world_.now();
}

void Stream::SendFromWorker(const v1::WorkerMessage& message) {
  host_.world_.After(Arrival(up_arrival_), [self = shared_from_this(), message] {
    if (!self->severed_ && !self->ended_by_coordinator_) self->Receive(message);
  });
}

void Stream::DeliverToWorker(std::function<void(StreamClient&)> deliver) {
  host_.world_.After(Arrival(down_arrival_),
                     [self = shared_from_this(), deliver = std::move(deliver)] {
                       if (self->severed_) return;
                       if (const auto client = self->client_.lock()) deliver(*client);
                     });
}

void Stream::SendToWorker(const v1::CoordinatorMessage& message) {
  if (ended_by_coordinator_) return;
  DeliverToWorker([id = id_, message](StreamClient& client) { client.OnMessage(id, message); });
}

void Stream::EndToWorker(const absl::Status& status) {
  if (ended_by_coordinator_) return;
  ended_by_coordinator_ = true;
  DeliverToWorker([id = id_, status](StreamClient& client) { client.OnStreamEnd(id, status); });
}

void Stream::AbandonByWorker(bool silently) {
  severed_ = true;
  if (silently) return;
  host_.world_.After(host_.Delay(), [self = shared_from_this()] { self->NoticeBreak(); });
}

void Stream::NoticeBreak() {
  if (noticed_ || ended_by_coordinator_ || incarnation_ == 0) return;
  noticed_ = true;
  if (!host_.serving(generation_)) return;
  host_.world_.Trace("the stream of ", worker_, " incarnation ", incarnation_, " broke");
  host_.coordinator_->members().Disconnected(worker_, incarnation_, absl::UnavailableError("cut"));
  host_.Survived();
}

void Stream::Sever() {
  if (severed_) return;
  severed_ = true;
  World& world = host_.world_;
  world.Count("streams_severed");
  const absl::Duration longest = absl::Seconds(5);
  world.After(world.Between(absl::ZeroDuration(), longest), [self = shared_from_this()] {
    if (const auto client = self->client_.lock()) {
      client->OnStreamEnd(self->id_, absl::UnavailableError("the connection was cut"));
    }
  });
  world.After(world.Between(absl::ZeroDuration(), longest),
              [self = shared_from_this()] { self->NoticeBreak(); });
}

void Stream::Stall(absl::Duration time) {
  host_.world_.Count("streams_stalled");
  up_arrival_ = std::max(up_arrival_, host_.world_.now() + time);
  down_arrival_ = std::max(down_arrival_, host_.world_.now() + time);
}

void Stream::Receive(const v1::WorkerMessage& message) {
  if (incarnation_ == 0) {
    Join(message.join());
    return;
  }
  if (!host_.serving(generation_)) return;  // The worker is told otherwise.
  const absl::Status status =
      host_.calls_->Handle(*host_.coordinator_, worker_, incarnation_, message);
  const bool survived = host_.Survived();
  if (survived && host_.calls_->Health(*host_.coordinator_).ok()) {
    host_.auditor_.Handled(worker_, incarnation_, message, status);
  } else if (message.has_leave()) {
    // The coordinator came to an end: its disk may have it that the worker left.
    host_.auditor_.MembershipUnsure(worker_);
  }
  if (!survived) return;
  if (message.has_leave() || !status.ok()) {
    host_.world_.Trace(worker_, " incarnation ", incarnation_,
                       message.has_leave() ? " leaves: " : " is told: ", status.ToString());
  }
  if (!status.ok()) {
    host_.coordinator_->members().Disconnected(worker_, incarnation_, status);
    EndToWorker(status);
  } else if (message.has_leave()) {
    EndToWorker(absl::OkStatus());
  }
}

void Stream::Join(const v1::Join& join) {
  if (host_.coordinator_ == nullptr) {
    EndToWorker(absl::UnavailableError("nobody listens"));
    return;
  }
  generation_ = host_.generation_;
  auto sink = std::make_shared<Sink>(shared_from_this());
  const absl::StatusOr<v1::Welcome> welcome = host_.calls_->Join(*host_.coordinator_, join, sink);
  if (!host_.Survived()) return;
  worker_ = join.worker_id();
  if (!welcome.ok()) {
    host_.world_.Trace(worker_, " may not join: ", welcome.status().ToString());
    EndToWorker(welcome.status());
    return;
  }
  incarnation_ = welcome->incarnation();
  host_.auditor_.Attached(join, *welcome);
  host_.world_.Trace(worker_, " joins as incarnation ", incarnation_, ", slot ",
                     welcome->data_slot(), ", the run is at step ", welcome->run_step());
  v1::CoordinatorMessage message;
  *message.mutable_welcome() = *welcome;
  // A sink that was closed meanwhile says so after the welcome.
  DeliverToWorker([id = id_, message](StreamClient& client) { client.OnMessage(id, message); });
  sink->Welcomed();
}

}  // namespace causeway::simulation
