// Fetches objects from the coordinator, each over several connections at once.
//
// A pull has one stream on every lane, all of one group: the coordinator deals the object's chunks
// out to whichever has room, and each chunk is copied once, from gRPC's buffers to its place in the
// object. A stream that breaks joins the group again after a pause; what is missing when all have
// ended is asked for by another group. A stream that does not move although the object has begun to
// come is given up after a while. Until then it may have to wait for the round to be published, for
// as long as that takes: keepalive ends connections that are dead.
//
// Thread-safe.
#ifndef CAUSEWAY_WORKER_LINK_DOWNLINK_H_
#define CAUSEWAY_WORKER_LINK_DOWNLINK_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "worker/link/link.h"
#include "worker/link/pull_receiver.h"
#include "worker/sync/exchange.h"

namespace causeway::worker {

class Downlink {
 public:
  // The link outlives the downlink.
  explicit Downlink(Link* link);
  // No Pull is under way.
  ~Downlink();
  Downlink(const Downlink&) = delete;
  Downlink& operator=(const Downlink&) = delete;

  // What one Pull can be given up by.
  class Ticket {
   private:
    friend class Downlink;
    bool given_up_ = false;  // Guarded by the downlink's mutex.
  };

  // Returns the object that `request` names, which has `expected_bytes`. Errors that may pass are
  // retried until Cancel or GiveUp; DATA_LOSS if the object arrives damaged again and again without
  // any progress.
  absl::StatusOr<PulledObject> Pull(v1::PullRequest request, int64_t expected_bytes,
                                    Ticket& ticket);
  // The Pull with that ticket, which may be still to come, returns CANCELLED.
  void GiveUp(Ticket& ticket);
  // All Pull calls, later ones too, return CANCELLED.
  void Cancel();

 private:
  class Stripe;
  struct Transfer;

  // --- The thread of a Pull ---
  // One group of streams, until all have ended; the status that says most of why.
  absl::Status RunGroup(Transfer& transfer);
  void OpenStripes(Transfer& transfer);
  // Takes the streams that ended out of the transfer. True once none is left and none is to be
  // opened again.
  bool Collect(Transfer& transfer);
  void CancelStalled(Transfer& transfer);
  void Wait(Transfer& transfer);
  // Sleeps after so many failures in a row; false once cancelled.
  bool Pause(const Transfer& transfer, int failures);
  bool Cancelled(const Transfer& transfer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- gRPC's threads ---
  // True if the stream should read on.
  bool OnRead(Stripe& stripe);
  void OnDone(Stripe& stripe, const absl::Status& status);

  Link* const link_;
  Clock* const clock_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Transfer*> transfers_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> moved_ ABSL_GUARDED_BY(mutex_);  // By lane: when anything came last.
  std::random_device random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_DOWNLINK_H_
