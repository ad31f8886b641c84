// Brings the lanes of one process of a worker together, and bounds their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "server/core/coordinator.h"
#include "server/transfer/answer_outbox.h"
#include "server/transfer/delta_inbox.h"
#include "server/transfer/worker_lanes.h"

namespace causeway::server {

inline constexpr int kMaxLaneNumber = 15;

// Thread-safe.
class LaneRegistry {
 public:
  struct Options {
    Runner run_long;         // Packs and unpacks.
    Clock* clock = nullptr;  // Outlives the registry.
    // A lane that owes an acknowledgement for so long is ended.
    absl::Duration stall = absl::Seconds(60);
  };
  // All outlive the registry and what it makes.
  LaneRegistry(Coordinator& coordinator, DeltaInbox& inbox, AnswerOutbox& outbox, Options options)
      : coordinator_(coordinator), inbox_(inbox), outbox_(outbox), options_(std::move(options)) {}

  // Notes a lane that has not said yet whose it is. `peer` names who opened it, for a bound.
  // RESOURCE_EXHAUSTED if there are too many.
  absl::Status Open(const std::string& peer, const std::shared_ptr<WorkerLaneStream>& stream);
  // Returns the lanes that this one belongs to. The errors are those of a lane.
  absl::StatusOr<std::shared_ptr<WorkerLanes>> Join(const v1::Greeting& greeting);
  // Lets lanes go on whose time has come, and ends those that stand still. Frequent calls keep the
  // rates even.
  void Tick();
  // The coordinator stops: what is under way goes on elsewhere, or later.
  void EndAll(const absl::Status& why);
  size_t lanes() const;
  // True while an object is on its way to a worker.
  bool sends() const;

 private:
  using Process = std::pair<std::string, uint64_t>;  // Worker, process.
  struct Stranger {
    std::string peer;
    std::weak_ptr<WorkerLaneStream> stream;
    absl::Duration opened;
  };

  std::vector<std::shared_ptr<WorkerLanes>> All() const;

  Coordinator& coordinator_;
  DeltaInbox& inbox_;
  AnswerOutbox& outbox_;
  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<Process, std::weak_ptr<WorkerLanes>> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Stranger> strangers_ ABSL_GUARDED_BY(mutex_);               // They have not greeted.
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();  // For lanes that stall.
};

}  // namespace causeway::server
