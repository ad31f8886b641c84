// The worker's end of all lanes to its coordinator, and a region's to its parent. Brings deltas and
// fetches answers and states, whatever breaks meanwhile.
//
//   auto client = std::make_shared<LaneClient>(options);      // `dial` opens lanes
//   auto push = client->Offer({...});
//   auto pull = client->Want({...});
//   LaneClient::Result result = client->Await(push);          // blocks; or Tick() and Done()
//
// A lane that breaks is dialed again after a pause; the others carry its chunks. An error that
// passes begins the transfer again under a new number, after a pause. Both ends keep what they hold
// of it.
//
// The client has no thread: Tick, which Await calls, dials lanes and ends pauses.
//
// Thread-safe. Made by make_shared.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"
#include "common/transfer/lane_peer.h"

namespace causeway {

// Hears how the client's transfers go. Called without a lock, by any thread.
class LaneObserver {
 public:
  virtual ~LaneObserver() = default;
  // Hears nothing.
  static LaneObserver* Nobody() {
    static LaneObserver nobody;
    return &nobody;
  }
  virtual void OnChunk(bool /*sent*/, int64_t /*bytes*/, bool /*again*/) {}
  virtual void OnResume() {}                            // A transfer goes on after a cut.
  virtual void OnFlow(bool /*sent*/) {}                 // The first bytes of an object may flow.
  virtual void OnEnd(bool /*sent*/, bool /*whole*/) {}  // After OnFlow.
  virtual void OnBlocked(bool /*blocked*/) {}
  // Something failed that is tried again: a lane, for the first time, or a transfer.
  virtual void OnTrouble(const std::string& /*what*/, const absl::Status& /*why*/) {}
};

class LaneClient final : public LanePeer {
 public:
  struct Options {
    Clock* clock = Clock::Real();
    Runner run_long;
    v1::Greeting greeting;  // Apart from `lane`.
    int64_t max_upload_bytes_per_second = 0;
    // Opens the lane's stream, which calls self->Open; called by threads that call Tick.
    std::function<void(int lane, const std::shared_ptr<LanePeer>& self)> dial;
    std::function<int()> lanes = [] { return 1; };  // How many there should be, by now.
    // The session's incarnation, which goes into every offer.
    std::function<uint64_t()> incarnation = [] { return uint64_t{0}; };
    // A lane that owes an acknowledgement for longer is given up.
    std::function<absl::Duration()> stall = [] { return absl::Seconds(30); };
    absl::Duration poll = absl::Seconds(1);           // How often those who wait look at the clock.
    LaneObserver* observer = LaneObserver::Nobody();  // Outlives the client.
    // True for errors, of a lane or a transfer, that pass.
    std::function<bool(const absl::Status&)> passes;
    // True for others that pass where they end a lane.
    std::function<bool(const absl::Status&)> lane_passes = [](const absl::Status&) {
      return false;
    };
  };
  explicit LaneClient(Options options);

  struct Offered {
    v1::PushHeader header;  // total_bytes and object_hash, too; without incarnation.
    std::shared_ptr<ChunkSource> source;
    int64_t due_step = 0;
    bool maybe_held = false;  // A former process may have sent some of it.
  };
  struct Wanted {
    v1::Want want;  // Apart from transfer and held_chunks.
    int64_t expected_bytes = 0;
  };
  struct Result {
    absl::Status status;
    v1::PushResponse accepted = {};  // Answers an offer.
    v1::PullHeader header = {};      // Describes the object that was wanted.
    std::shared_ptr<ByteBuffer> bytes = nullptr;
  };
  class Transfer;
  using Handle = std::shared_ptr<Transfer>;

  Handle Offer(Offered offered);
  Handle Want(Wanted wanted);
  // Waits for the end.
  Result Await(const Handle& handle);
  // Waits for a moment, `poll` at most, and says whether the end has come.
  bool AwaitAWhile(const Handle& handle);
  bool Done(const Handle& handle) const;
  // Ends it with CANCELLED, if it has not ended.
  void GiveUp(const Handle& handle);
  // Ends all lanes, and all transfers, later ones too, with CANCELLED.
  void Cancel();
  // Does what is due by the clock: lanes are dialed, given up, and transfers begun again.
  void Tick();

 private:
  struct Tries {
    bool open = false;
    int failures = 0;  // In a row.
    absl::Duration not_before = -absl::InfiniteDuration();
  };

  absl::Status OnControl(const LanePtr& lane, v1::LaneControl& message) override;
  void OnWhole(uint64_t transfer, const std::shared_ptr<ChunkAssembly>& object) override;
  void OnDamaged(uint64_t transfer) override;
  void OnChunk(uint64_t transfer, bool sent, int64_t bytes, bool again) override;
  void OnClosed(int number, const absl::Status& why, bool spoke, int64_t chunks_left) override;
  void OnBlocked(bool blocked) override;

  absl::Status OnAnnouncement(const LanePtr& lane, const v1::Announcement& message);
  void OnOutcome(const v1::Outcome& message);
  Handle Add(Handle transfer);
  Handle Find(uint64_t number);
  // Begins it, or begins it again, under a new number.
  void Begin(const Handle& transfer) ABSL_LOCKS_EXCLUDED(client_mutex_);
  void SayWant(Transfer& transfer) ABSL_LOCKS_EXCLUDED(client_mutex_);
  void SayDrop(uint64_t number, LanePtr lane = nullptr);
  // Begins it again later if the error passes, or ends it.
  void Fail(const Handle& transfer, const absl::Status& status);
  void End(const Handle& transfer, Result result);
  void StopCurrent(Transfer& transfer);
  absl::Duration UntilNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(client_mutex_);

  const Options own_;
  mutable absl::Mutex client_mutex_;  // Taken before the peer's, never while holding it.
  bool cancelled_ ABSL_GUARDED_BY(client_mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(client_mutex_) = 0;
  std::map<uint64_t, Handle> transfers_ ABSL_GUARDED_BY(client_mutex_);  // By number; unfinished.
  std::vector<Handle> paused_ ABSL_GUARDED_BY(client_mutex_);
  std::vector<Tries> tries_ ABSL_GUARDED_BY(client_mutex_);
  int64_t news_ ABSL_GUARDED_BY(client_mutex_) = 0;  // Counts what those who wait should look at.
};

}  // namespace causeway
