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
#include "common/transfer/lane_peer.h"
#include "server/core/coordinator.h"
#include "server/transfer/answer_outbox.h"
#include "server/transfer/delta_inbox.h"

namespace causeway::server {

// The coordinator's end of all lanes of one process of a worker: offers go to the inbox, wants to
// the outbox. It lives as long as one of its lanes; a worker whose lanes all broke repeats its
// offers and wants.

// A lane that somebody answers for.
class WorkerLaneStream : public LaneStream {
 public:
  // OK if whoever opened it may still offer (or want) in its worker's name.
  virtual absl::Status Admit(bool offers) = 0;
  // True once it has said whose it is.
  virtual bool greeted() = 0;
};

class WorkerLanes final : public LanePeer, public DeltaBearer {
 public:
  // All outlive it.
  WorkerLanes(LanePeer::Options options, Coordinator& coordinator, DeltaInbox& inbox,
              AnswerOutbox& outbox, std::string worker_id)
      : LanePeer(std::move(options)),
        coordinator_(coordinator),
        inbox_(inbox),
        outbox_(outbox),
        worker_id_(std::move(worker_id)) {}

  const std::string& worker_id() const { return worker_id_; }
  void EndOffer(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result) override;

 private:
  struct Wanted {
    v1::Want::Object object = v1::Want::OBJECT_UNSPECIFIED;
    std::shared_ptr<const void> waits = nullptr;  // While the outbox looks for it.
    std::shared_ptr<const void> hold = nullptr;   // While it is sent.
  };

  absl::Status OnControl(const LanePtr& lane, v1::LaneControl& message) override;
  void OnWhole(uint64_t transfer, const std::shared_ptr<ChunkAssembly>& object) override;
  void OnDelivered(uint64_t transfer) override { Forget(transfer); }
  void OnDamaged(uint64_t transfer) override;
  void OnChunk(uint64_t transfer, bool sent, int64_t bytes, bool again) override;
  void OnClosed(int, const absl::Status&, bool, int64_t) override {}

  // OK if the lane's worker may offer (or want) that transfer.
  absl::Status Admit(Lane& lane, uint64_t transfer, bool offers);
  void OnOffer(const LanePtr& lane, v1::Offer& offer);
  absl::Status OnWant(const LanePtr& lane, const v1::Want& want);
  void Deliver(const v1::Want& want, absl::StatusOr<AnswerOutbox::Found> found);
  // An outcome known at once goes over the lane that asked: if that has broken, the worker asks
  // again. One that comes later goes over all of them: the worker has asked over the newest, too,
  // and only the worker knows which of them have broken.
  void SayOutcome(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result,
                  const LanePtr& lane = nullptr);
  void Forget(uint64_t transfer);

  Coordinator& coordinator_;
  DeltaInbox& inbox_;
  AnswerOutbox& outbox_;
  const std::string worker_id_;
  absl::Mutex roles_mutex_;  // Never held while the peer, the inbox or the outbox is called.
  std::map<uint64_t, std::shared_ptr<DeltaInbox::Delta>> offers_ ABSL_GUARDED_BY(roles_mutex_);
  std::map<uint64_t, Wanted> wants_ ABSL_GUARDED_BY(roles_mutex_);
};

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
