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

}  // namespace causeway::server
