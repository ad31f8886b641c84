#include "tests/simulation/virtual_shards.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kShardPause = absl::Milliseconds(500);

}  // namespace

// --- The lead ---

std::vector<std::shared_ptr<ShardStream>> VirtualLead::Streams() {
  std::vector<std::shared_ptr<ShardStream>> streams;
  for (const auto& open : streams_) {
    if (auto stream = open.lock(); stream != nullptr) streams.push_back(std::move(stream));
  }
  return streams;
}

void VirtualLead::Kill() {
  for (const auto& stream : Streams()) stream->LeadIsGone();
}

absl::StatusOr<std::shared_ptr<ShardStream>> VirtualLead::Attach(
    const v1::ShardHello& hello, const std::shared_ptr<VirtualShard>& shard,
    const Scenario& scenario) {
  absl::StatusOr<std::shared_ptr<server::ShardHub::Line>> line = hub_.Attach(hello);
  if (!line.ok()) return line.status();
  auto stream =
      std::make_shared<ShardStream>(world_, scenario, shared_from_this(), shard, *std::move(line));
  std::erase_if(streams_, [](const auto& open) { return open.expired(); });
  streams_.push_back(stream);
  stream->Order();  // The hub's first roster.
  return stream;
}

void VirtualLead::Tell(const v1::ShardRoster& roster, bool wait) {
  hub_.Tell(roster, /*wait=*/false);
  for (const auto& stream : Streams()) {
    if (wait && !does_not_wait_) {
      stream->Flush();
    } else {
      stream->Order();
    }
  }
}

void VirtualLead::Call(int fragment, v1::ShardCall call,
                       std::function<void(const absl::Status&)> done) {
  hub_.Call(fragment, std::move(call), std::move(done));
  for (const auto& stream : Streams()) stream->Order();
}

// --- A stream ---

absl::Duration ShardStream::Arrival(absl::Duration& last) {
  const absl::Duration delay = world_.Between(scenario_.shortest_delay, scenario_.longest_delay);
  last = std::max(last, world_.now() + delay);
  return last - world_.now();
}

void ShardStream::Report(v1::ShardReport report) {
  reports_.push_back(std::move(report));
  world_.After(Arrival(up_arrival_), [self = shared_from_this()] {
    if (!self->severed_) self->TakeOne();
  });
}

bool ShardStream::TakeOne() {
  const auto lead = lead_.lock();
  if (lead == nullptr || ended_at_lead_ || reports_.empty()) return false;
  const v1::ShardReport report = std::move(reports_.front());
  reports_.pop_front();
  const absl::Status taken = lead->hub_.Take(*line_, report);
  if (!taken.ok()) world_.Violate("shards_are_taken_back", std::string(taken.message()));
  return taken.ok();
}

void ShardStream::Order() {
  world_.After(Arrival(down_arrival_), [self = shared_from_this()] {
    if (!self->severed_) self->ObeyAll();
  });
}

bool ShardStream::ObeyAll() {
  bool any = false;
  for (;;) {
    const auto lead = lead_.lock();
    const auto shard = shard_.lock();
    if (lead == nullptr || shard == nullptr || ended_at_lead_ || ended_at_shard_) return any;
    const std::optional<v1::ShardOrder> order = lead->hub_.TryNextOrder(*line_);
    if (!order.has_value()) return any;
    any = true;
    shard->Obey(*order);
  }
}

void ShardStream::Flush() {
  if (severed_ || world_.now() < stalled_until_) {
    severed_ = true;
    EndAtLead();
    EndAtShard();
    return;
  }
  bool more = true;
  while (more) {
    more = ObeyAll();
    while (TakeOne()) more = true;
  }
}

void ShardStream::Sever() {
  if (severed_) return;
  severed_ = true;
  world_.Count(Happening::kShardCut);
  const absl::Duration longest = absl::Seconds(5);
  world_.After(world_.Between(absl::ZeroDuration(), longest),
               [self = shared_from_this()] { self->EndAtShard(); });
  world_.After(world_.Between(absl::ZeroDuration(), longest),
               [self = shared_from_this()] { self->EndAtLead(); });
}

void ShardStream::Stall(absl::Duration time) {
  world_.Count(Happening::kStreamStalled);
  stalled_until_ = world_.now() + time;
  up_arrival_ = std::max(up_arrival_, stalled_until_);
  down_arrival_ = std::max(down_arrival_, stalled_until_);
}

void ShardStream::LeadIsGone() {
  severed_ = true;
  ended_at_lead_ = true;
  world_.After(world_.Between(scenario_.shortest_delay, scenario_.longest_delay),
               [self = shared_from_this()] { self->EndAtShard(); });
}

void ShardStream::ShardIsGone() {
  severed_ = true;
  ended_at_shard_ = true;
  world_.After(world_.Between(scenario_.shortest_delay, scenario_.longest_delay),
               [self = shared_from_this()] { self->EndAtLead(); });
}

void ShardStream::EndAtLead() {
  const auto lead = lead_.lock();
  if (std::exchange(ended_at_lead_, true) || lead == nullptr) return;
  lead->hub_.Close(*line_);
  lead->hub_.Detach(line_, absl::UnavailableError("cut"));
}

void ShardStream::EndAtShard() {
  const auto shard = shard_.lock();
  if (std::exchange(ended_at_shard_, true) || shard == nullptr) return;
  shard->OnStreamEnd(this);
}

// --- A shard ---

void VirtualShard::After(absl::Duration delay, std::function<void()> event) {
  options_.world->After(delay, [self = weak_from_this(), event = std::move(event)] {
    const auto shard = self.lock();
    if (shard != nullptr && !shard->dead_) event();
  });
}

void VirtualShard::Start() {
  After(absl::ZeroDuration(), [this] { Attach(); });
}

void VirtualShard::Kill() {
  dead_ = true;
  if (stream_ != nullptr) stream_->ShardIsGone();
  options_.auditor->HearsNothing(options_.number);
}

void VirtualShard::Attach() {
  const std::shared_ptr<VirtualLead> lead = options_.lead();
  absl::Status status = absl::UnavailableError("there is no lead");
  v1::ShardHello hello;
  hello.set_wire_version(kWireVersion);
  hello.set_name(options_.name);
  hello.set_run_id("simulated-1");
  for (const int fragment : options_.fragments) hello.add_fragments(fragment);
  hello.set_address(options_.name);
  hello.set_process_nonce(options_.nonce);
  if (lead != nullptr) {
    auto stream = lead->Attach(hello, shared_from_this(), *options_.scenario);
    status = stream.status();
    if (stream.ok()) stream_ = *std::move(stream);
  }
  if (!status.ok()) {
    // The lead may not have noticed yet that the former process is gone.
    if (!IsRetryable(status) && !absl::IsAlreadyExists(status)) {
      options_.world->Violate("shards_are_taken_back", status.ToString());
    }
    After(kShardPause, [this] { Attach(); });
    return;
  }
  options_.world->Count(Happening::kShardAttached);
  options_.world->Trace(options_.name, " attaches");
  sent_.clear();
  v1::ShardReport report;
  options_.own->Command([&](server::Coordinator& shard) {
    for (v1::ShardContribution& past : shard.PastDraws()) {
      v1::ShardReport drawn;
      *drawn.mutable_contribution() = std::move(past);
      stream_->Report(std::move(drawn));
    }
    *report.mutable_accounts() = shard.Accounts();
  });
  Queue(std::move(report), /*fragments_changed=*/true);
}

void VirtualShard::Queue(v1::ShardReport report, bool fragments_changed) {
  if (stream_ == nullptr) return;
  if (fragments_changed && options_.own->coordinator() != nullptr) {
    const v1::RunStatus status = options_.own->coordinator()->GetStatus();
    for (const v1::FragmentStatus& fragment : status.fragments()) {
      std::string now = fragment.SerializeAsString();
      if (now == sent_[fragment.fragment()]) continue;
      sent_[fragment.fragment()] = std::move(now);
      v1::ShardReport changed;
      *changed.mutable_fragment() = fragment;
      stream_->Report(std::move(changed));
    }
  }
  stream_->Report(std::move(report));
}

void VirtualShard::Obey(const v1::ShardOrder& order) {
  if (dead_ || stream_ == nullptr) return;
  absl::Status status = absl::UnavailableError("it has failed");
  v1::ShardReport report;
  if (order.has_roster()) {
    options_.own->Command([&](server::Coordinator& shard) {
      status = shard.FollowLead(order.roster());
      if (!status.ok()) return;
      options_.auditor->Heard(options_.number, order.roster());
      if (order.roster().finished()) shard.Tick();
      *report.mutable_accounts() = shard.Accounts();
    });
    // It may have died of it.
    if (dead_ || stream_ == nullptr) return;
    if (absl::IsUnavailable(status)) {
      options_.auditor->HearsNothing(options_.number);  // It does nothing any more.
      return;
    }
    if (!status.ok()) {
      options_.world->Violate("shards_are_taken_back", status.ToString());
      return;
    }
    Queue(std::move(report), /*fragments_changed=*/true);
    v1::ShardReport heard;
    heard.set_heard(order.roster().number());
    Queue(std::move(heard), false);
    return;
  }
  options_.own->Command(
      [&](server::Coordinator& shard) { status = shard.AnswerLead(order.call()); });
  if (dead_ || stream_ == nullptr) return;
  report.mutable_answer()->set_number(order.call().number());
  report.mutable_answer()->set_code(static_cast<int>(status.code()));
  report.mutable_answer()->set_message(std::string(status.message()));
  Queue(std::move(report), false);
}

void VirtualShard::OnStreamEnd(const ShardStream* stream) {
  if (dead_ || stream_.get() != stream) return;
  options_.world->Trace(options_.name, " hears nothing of its lead");
  stream_ = nullptr;
  options_.auditor->HearsNothing(options_.number);
  if (options_.own->coordinator() != nullptr) options_.own->coordinator()->LoseLead();
  After(kShardPause, [this] { Attach(); });
}

void VirtualShard::OnContributed(const v1::PushHeader& header, bool quarantined) {
  v1::ShardReport report;
  *report.mutable_contribution()->mutable_header() = header;
  report.mutable_contribution()->set_quarantined(quarantined);
  // When the coordinator is done with it.
  After(absl::ZeroDuration(),
        [this, report = std::move(report)] { Queue(report, /*fragments_changed=*/true); });
}

void VirtualShard::OnPublished(const server::RoundRecord& round,
                               const std::vector<std::string>& missing) {
  After(absl::ZeroDuration(), [this, report = server::RoundReport(round, missing)] {
    Queue(report, /*fragments_changed=*/true);
  });
}

}  // namespace causeway::simulation
