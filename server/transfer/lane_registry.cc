#include "server/transfer/lane_registry.h"

#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr size_t kMaxWorkerIdBytes = 64;
constexpr int kMaxLanes = 4096;
// With those of former processes that are not noticed to be gone.
constexpr int kMaxLanesOfWorker = 64;
constexpr absl::Duration kLookAtLanes = absl::Seconds(1);

absl::Status Check(const v1::Greeting& greeting, const std::string& run_id) {
  if (greeting.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "wire_version differs: the worker has ", greeting.wire_version(), ", the coordinator ",
        kWireVersion, "; install the coordinator's release (", kSoftwareVersion, ") there"));
  }
  RETURN_IF_ERROR(CheckRunId("lane", greeting.run_id(), run_id));
  if (greeting.worker_id().size() > kMaxWorkerIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("worker_id has ", greeting.worker_id().size(),
                                                   " bytes; at most ", kMaxWorkerIdBytes));
  }
  if (greeting.lane() < 0 || greeting.lane() > kMaxLaneNumber) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane must be 0 .. ", kMaxLaneNumber, ", it is ", greeting.lane()));
  }
  if (greeting.max_bytes_per_second() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_bytes_per_second must not be negative, it ",
                                                   "is ", greeting.max_bytes_per_second()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LaneRegistry::Open(const std::string& peer,
                                const std::shared_ptr<WorkerLaneStream>& stream) {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  const auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ssize(strangers_) >= kMaxLanes ||
           std::ranges::count(strangers_, peer, &Stranger::peer) >= kMaxLanesOfWorker;
  };
  if (full()) {
    // Tick may not have come by for a while.
    std::erase_if(strangers_, [](const Stranger& one) {
      const std::shared_ptr<WorkerLaneStream> stranger = one.stream.lock();
      return stranger == nullptr || stranger->greeted();
    });
  }
  if (full()) {
    return absl::ResourceExhaustedError("too many lanes wait for their greeting; try again later");
  }
  strangers_.push_back({peer, stream, now});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WorkerLanes>> LaneRegistry::Join(const v1::Greeting& greeting) {
  RETURN_IF_ERROR(Check(greeting, coordinator_.run_id()));
  absl::MutexLock lock(&mutex_);
  int all = 0;
  int of_worker = 0;
  std::erase_if(workers_, [](const auto& item) { return item.second.expired(); });
  for (const auto& [process, weak] : workers_) {
    const std::shared_ptr<WorkerLanes> worker = weak.lock();
    if (worker == nullptr) continue;
    all += worker->lanes();
    if (process.first == greeting.worker_id()) of_worker += worker->lanes();
  }
  if (all >= kMaxLanes || of_worker >= kMaxLanesOfWorker) {
    return absl::ResourceExhaustedError(absl::StrCat("there are ", of_worker,
                                                     " lanes of this worker and ", all,
                                                     " in all already; try again later"));
  }
  std::weak_ptr<WorkerLanes>& known = workers_[{greeting.worker_id(), greeting.process()}];
  std::shared_ptr<WorkerLanes> worker = known.lock();
  if (worker == nullptr) {
    worker = std::make_shared<WorkerLanes>(
        LanePeer::Options{.clock = options_.clock,
                          .run_long = options_.run_long,
                          .sender = {.max_bytes_per_second = greeting.max_bytes_per_second()}},
        coordinator_, inbox_, outbox_, greeting.worker_id());
    known = worker;
  }
  return worker;
}

std::vector<std::shared_ptr<WorkerLanes>> LaneRegistry::All() const {
  std::vector<std::shared_ptr<WorkerLanes>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [process, weak] : workers_) {
    std::shared_ptr<WorkerLanes> worker = weak.lock();
    if (worker != nullptr) all.push_back(std::move(worker));
  }
  return all;
}

void LaneRegistry::Tick() {
  std::vector<std::shared_ptr<WorkerLaneStream>> silent;
  bool look = false;
  {
    const absl::Duration now = options_.clock->Monotonic();
    // They outlive the lock: they may be the last references.
    std::vector<std::shared_ptr<WorkerLaneStream>> seen;
    absl::MutexLock lock(&mutex_);
    look = now - looked_ >= kLookAtLanes;
    if (look) looked_ = now;
    std::erase_if(strangers_, [&](const Stranger& stranger) {
      std::shared_ptr<WorkerLaneStream> stream = stranger.stream.lock();
      if (stream == nullptr) return true;
      seen.push_back(stream);
      if (stream->greeted()) return true;
      if (now - stranger.opened <= options_.stall) return false;
      silent.push_back(std::move(stream));
      return true;
    });
  }
  for (const auto& stream : silent) {
    stream->End(absl::DeadlineExceededError("no greeting came over the lane"));
  }
  for (const auto& worker : All()) {
    if (look) worker->EndStalled(options_.stall);
    if (worker->paced()) worker->PumpAll();
  }
}

void LaneRegistry::EndAll(const absl::Status& why) {
  for (const auto& worker : All()) worker->EndAll(why);
}

bool LaneRegistry::sends() const {
  return std::ranges::any_of(All(), [](const auto& worker) { return worker->sends(); });
}

size_t LaneRegistry::lanes() const {
  size_t lanes = 0;
  for (const auto& worker : All()) lanes += static_cast<size_t>(worker->lanes());
  return lanes;
}

namespace {

// Counts for one process of a worker, both ways: it has a few fragments under way.
constexpr size_t kMaxTransfers = 1024;

}  // namespace

absl::Status WorkerLanes::OnControl(const LanePtr& lane, v1::LaneControl& message) {
  switch (message.message_case()) {
    case v1::LaneControl::kOffer:
      OnOffer(lane, *message.mutable_offer());
      return absl::OkStatus();
    case v1::LaneControl::kWant:
      return OnWant(lane, message.want());
    case v1::LaneControl::kHolding:
      return Hold(message.holding().transfer(), message.holding().held_chunks(), 0).status();
    case v1::LaneControl::kDrop:
      Forget(message.drop().transfer());
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          "a worker says on a lane what it offers, wants, holds and has, and nothing else");
  }
}

void WorkerLanes::SayOutcome(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result,
                             const LanePtr& lane) {
  // Messages are bounded, and a status may quote what a peer sent.
  constexpr size_t kMaxMessageBytes = 2048;
  v1::LaneControl message;
  v1::Outcome& outcome = *message.mutable_outcome();
  outcome.set_transfer(transfer);
  if (result.ok()) {
    *outcome.mutable_accepted() = *result;
  } else {
    outcome.set_code(result.status().raw_code());
    outcome.set_message(std::string(result.status().message().substr(0, kMaxMessageBytes)));
  }
  if (lane == nullptr) return SayToAll(message);
  Say(std::move(message), lane);
}

absl::Status WorkerLanes::Admit(Lane& lane, uint64_t transfer, bool offers) {
  RETURN_IF_ERROR(static_cast<WorkerLaneStream&>(*lane.stream).Admit(offers));
  absl::MutexLock lock(&roles_mutex_);
  const bool known = offers_.contains(transfer) || wants_.contains(transfer);
  if (known || offers_.size() + wants_.size() < kMaxTransfers) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the worker has ", kMaxTransfers, " transfers under way already; try again later"));
}

void WorkerLanes::OnOffer(const LanePtr& lane, v1::Offer& offer) {
  const uint64_t transfer = offer.transfer();
  v1::PushHeader& header = *offer.mutable_header();
  header.set_run_id(coordinator_.run_id());
  header.set_worker_id(worker_id_);
  const absl::Status status = Admit(*lane, transfer, /*offers=*/true);
  if (!status.ok()) return SayOutcome(transfer, status, lane);
  std::shared_ptr<DeltaInbox::Delta> known;
  {
    absl::MutexLock lock(&roles_mutex_);
    known = offers_.try_emplace(transfer).first->second;
  }
  // It comes over every lane: the coordinator is asked once.
  if (known != nullptr) return SayHolding(transfer, known->chunks->held(), known->holder, lane);
  v1::PushResponse accepted;
  auto self = std::static_pointer_cast<WorkerLanes>(shared_from_this());
  const auto delta = inbox_.Offer(self, transfer, header, accepted);
  if (!delta.ok() || *delta == nullptr) {
    Forget(transfer);
    if (!delta.ok()) return SayOutcome(transfer, delta.status(), lane);
    return SayOutcome(transfer, std::move(accepted), lane);
  }
  Expect(transfer, (*delta)->chunks);
  bool ended = false;
  {
    absl::MutexLock lock(&roles_mutex_);
    const auto offer_here = offers_.find(transfer);
    ended = offer_here == offers_.end();
    if (!ended) offer_here->second = *delta;
  }
  if (ended) return StopExpecting(transfer);  // Other lanes were faster: the bearer was told.
  SayHolding(transfer, (*delta)->chunks->held(), (*delta)->holder, lane);
}

void WorkerLanes::EndOffer(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result) {
  StopExpecting(transfer);
  {
    absl::MutexLock lock(&roles_mutex_);
    offers_.erase(transfer);
  }
  SayOutcome(transfer, result);
}

void WorkerLanes::OnWhole(uint64_t transfer, const std::shared_ptr<ChunkAssembly>& /*object*/) {
  std::shared_ptr<DeltaInbox::Delta> delta;
  {
    absl::MutexLock lock(&roles_mutex_);
    const auto found = offers_.find(transfer);
    if (found == offers_.end()) return;
    delta = found->second;
  }
  inbox_.Whole(delta);
}

absl::Status WorkerLanes::OnWant(const LanePtr& lane, const v1::Want& want) {
  const uint64_t transfer = want.transfer();
  const absl::Status status = Admit(*lane, transfer, /*offers=*/false);
  if (!status.ok()) {
    SayOutcome(transfer, status, lane);
    return absl::OkStatus();
  }
  const auto waits = std::make_shared<int>();
  bool is_new = false;
  {
    absl::MutexLock lock(&roles_mutex_);
    is_new = wants_.try_emplace(transfer, Wanted{.object = want.object(), .waits = waits}).second;
  }
  // Said again, because a lane broke: it knows better what it holds.
  if (!is_new) return Hold(transfer, want.held_chunks(), 0).status();
  auto weak = std::weak_ptr<LanePeer>(shared_from_this());
  outbox_.Want(worker_id_, want, waits, [weak, want](absl::StatusOr<AnswerOutbox::Found> found) {
    const auto self = std::static_pointer_cast<WorkerLanes>(weak.lock());
    if (self != nullptr) self->Deliver(want, std::move(found));
  });
  return absl::OkStatus();
}

void WorkerLanes::Deliver(const v1::Want& want, absl::StatusOr<AnswerOutbox::Found> found) {
  const uint64_t transfer = want.transfer();
  absl::StatusOr<ChunkSet> held;
  if (found.ok()) {
    held = ChunkSet::FromWire(found->header.total_bytes(), want.held_chunks());
  } else {
    held = found.status();
  }
  if (!held.ok()) {
    Forget(transfer);
    return SayOutcome(transfer, held.status());
  }
  {
    absl::MutexLock lock(&roles_mutex_);
    const auto wanted = wants_.find(transfer);
    if (wanted == wants_.end()) return;
    wanted->second.waits = nullptr;
    wanted->second.hold = std::move(found->hold);
  }
  v1::LaneControl message;
  v1::Announcement& announcement = *message.mutable_announcement();
  announcement.set_transfer(transfer);
  *announcement.mutable_header() = std::move(found->header);
  Send(transfer, std::move(found->source), want.due_step(), *std::move(held), /*ask_first=*/false,
       std::move(message));
}

void WorkerLanes::Forget(uint64_t transfer) {
  StopSending(transfer);
  StopExpecting(transfer);
  Wanted last;  // Outlives the lock: it may let go of the object.
  absl::MutexLock lock(&roles_mutex_);
  offers_.erase(transfer);
  const auto found = wants_.find(transfer);
  if (found == wants_.end()) return;
  last = std::move(found->second);
  wants_.erase(found);
}

void WorkerLanes::OnDamaged(uint64_t transfer) {
  Forget(transfer);
  SayOutcome(transfer,
             absl::DataLossError("the worker gets a chunk of the object damaged again and again"));
}

void WorkerLanes::OnChunk(uint64_t transfer, bool sent, int64_t bytes, bool /*again*/) {
  if (!sent) return inbox_.Moved(worker_id_);
  v1::Want::Object object = v1::Want::OBJECT_UNSPECIFIED;
  {
    absl::MutexLock lock(&roles_mutex_);
    const auto found = wants_.find(transfer);
    if (found == wants_.end()) return;
    object = found->second.object;
  }
  coordinator_.rounds().RecordPulled(worker_id_, object, bytes);
}

}  // namespace causeway::server
