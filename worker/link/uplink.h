// Sends objects to the coordinator, each over several connections at once.
//
// An object has one Push stream on every lane. A lane writes one chunk at a time, whichever stream
// it belongs to: the next chunk that waits of the object that is due first. So a fast lane carries
// more than a slow one, and a late object does not hold up an urgent one by more than what is in
// the socket already. Chunks are written where they lie.
//
// A stream that breaks is opened again after a pause. What it was given may have arrived: the
// coordinator is asked, and what it lacks goes to whichever lane has room. A write that makes no
// progress for too long breaks its stream. Once everything is written, keepalive ends connections
// that are dead; and as everything may have been written into some buffer, the coordinator is asked
// now and then what it holds, and streams break whose chunks have not come out at its end.
//
// The thread that calls Push opens streams, asks, packs and waits; gRPC's threads do nothing but
// take the next chunk. Thread-safe.
#ifndef CAUSEWAY_WORKER_LINK_UPLINK_H_
#define CAUSEWAY_WORKER_LINK_UPLINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/rpc/chunk_set.h"
#include "worker/link/link.h"
#include "worker/link/rate_limiter.h"

namespace causeway::worker {

// What is to be sent.
struct UploadObject {
  // All but total_bytes and object_hash, and what differs between streams: attempt, incarnation
  // and stripe.
  v1::PushHeader header;
  std::span<const uint8_t> bytes;
  std::vector<uint64_t> leaves;  // LeafChecksums(bytes), or empty: Push computes them.
  // Keeps the bytes. The network may hold on to them after Push has returned.
  std::shared_ptr<const void> owner;
  // The step at which the answer is wanted.
  int64_t due_step = 0;
  bool entropy = false;  // Chunks are packed where that makes them smaller.
  // A former process may have sent some of it.
  bool maybe_held = false;
};

class Uplink {
 public:
  // `incarnation` says which one holds now. Both outlive the uplink.
  Uplink(Link* link, std::function<uint64_t()> incarnation);
  // No Push is under way.
  ~Uplink();
  Uplink(const Uplink&) = delete;
  Uplink& operator=(const Uplink&) = delete;

  // Returns when the coordinator has answered. Errors that may pass are retried until Cancel;
  // DATA_LOSS if the object arrives damaged again and again without any progress.
  absl::StatusOr<v1::PushResponse> Push(UploadObject object);
  // All Push calls, later ones too, return CANCELLED.
  void Cancel();

 private:
  class Stripe;
  struct Transfer;
  struct LaneState {
    Stripe* writer = nullptr;  // A chunk of it is being written.
    absl::Duration moved;      // When something was written last.
  };

  // --- The thread of a Push ---
  absl::StatusOr<v1::PushResponse> Drive(Transfer& transfer);
  void OpenStripes(Transfer& transfer);
  // Takes the streams that ended out of the transfer, and draws the conclusions.
  void Collect(Transfer& transfer);
  void Conclude(Transfer& transfer, const Stripe& stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks which of the doubtful chunks have arrived.
  void Ask(Transfer& transfer);
  // Asks, once everything has been written for a while, whether it has arrived.
  void AskWhetherArrived(Transfer& transfer);
  // What the coordinator holds of the object.
  absl::StatusOr<ChunkSet> QueryHeld(Transfer& transfer);
  absl::StatusOr<v1::QueryTransferResponse> Query(Transfer& transfer);
  // Packs some chunks ahead of the lanes. False if there was nothing to do.
  bool Pack(Transfer& transfer);
  void CancelStalled(Transfer& transfer);
  void Wait(Transfer& transfer);
  // Ends what is left of the transfer's streams.
  void Close(Transfer& transfer);
  // Every lane that has nothing to write looks for something.
  void WakeLanes();

  // --- gRPC's threads, and WakeLanes ---
  // Gives the lane its next chunk; the caller then starts the write, without the mutex.
  Stripe* NextWrite(int lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWritten(Stripe& stripe, bool ok);
  void OnRead(Stripe& stripe, bool ok);
  void OnDone(Stripe& stripe, const absl::Status& status);

  bool Waiting(const Transfer& transfer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the account of the time in which objects were ready and nothing was being written.
  void NoteBlocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Link* const link_;
  const std::function<uint64_t()> incarnation_;
  Clock* const clock_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t transfers_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Transfer*> transfers_ ABSL_GUARDED_BY(mutex_);  // The one due first first.
  std::vector<LaneState> lanes_ ABSL_GUARDED_BY(mutex_);
  RateLimiter limiter_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Duration> blocked_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_UPLINK_H_
