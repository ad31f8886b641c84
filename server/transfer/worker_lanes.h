// The coordinator's end of all lanes of one process of a worker: offers go to the inbox, wants to
// the outbox. It lives as long as one of its lanes; a worker whose lanes all broke repeats its
// offers and wants.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "common/transfer/lane_peer.h"
#include "server/core/coordinator.h"
#include "server/transfer/answer_outbox.h"
#include "server/transfer/delta_inbox.h"

namespace causeway::server {

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
  void SayHolding(uint64_t transfer, const DeltaInbox::Delta& delta, const LanePtr& lane);
  void Forget(uint64_t transfer);

  Coordinator& coordinator_;
  DeltaInbox& inbox_;
  AnswerOutbox& outbox_;
  const std::string worker_id_;
  absl::Mutex roles_mutex_;  // Never held while the peer, the inbox or the outbox is called.
  std::map<uint64_t, std::shared_ptr<DeltaInbox::Delta>> offers_ ABSL_GUARDED_BY(roles_mutex_);
  std::map<uint64_t, Wanted> wants_ ABSL_GUARDED_BY(roles_mutex_);
};

}  // namespace causeway::server
