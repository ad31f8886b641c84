// One end of all lanes to one peer: what is said, sent, received and acknowledged over them. Both
// ends are made of it: a coordinator's (server/transfer/lane_registry.h) and a worker's
// (lane_client.h).
//
// It has no threads and no sockets. A driver (gRPC's streams, or memory in tests) opens lanes,
// feeds it the messages that come and tells it when a write is done; it tells the driver what to
// write. What takes long, packing and unpacking, it hands to a runner: a lane reads on meanwhile.
//
// Thread-safe. Made by make_shared. The driver and the hooks are called without a lock held.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/chunk_sender.h"

namespace causeway {

// One message to be written.
struct OutgoingMessage {
  v1::LaneControl control;
  std::optional<OutgoingChunk> chunk;  // In place of the control message.
};

// A lane's stream as its driver offers it. Thread-safe; calls after its end do nothing.
class LaneStream {
 public:
  virtual ~LaneStream() = default;
  // At most one at a time: LanePeer::Written says that it is done.
  virtual void Write(OutgoingMessage message) = 0;
  // Reading goes on, after LanePeer::Receive has stopped it.
  virtual void ReadOn() = 0;
  // Ends the stream, soon; then LanePeer::Close is called. Only the first call counts.
  virtual void End(const absl::Status& status) = 0;
};

class LanePeer : public std::enable_shared_from_this<LanePeer> {
 public:
  struct Options {
    Clock* clock = Clock::Real();  // Outlives the peer, as does what the runner stands for.
    Runner run_long;               // Packs and unpacks.
    ChunkSender::Options sender = {};
    // Goes first over every lane, with the lane's number. Nothing: the other end opens lanes.
    std::optional<v1::Greeting> greeting = std::nullopt;
  };
  // One lane, for as long as its stream lives.
  struct Lane;
  using LanePtr = std::shared_ptr<Lane>;

  virtual ~LanePeer();
  LanePeer(const LanePeer&) = delete;
  LanePeer& operator=(const LanePeer&) = delete;

  // --- For drivers ---
  // Begins a lane, which may be written to once Written was called. A former lane of the same
  // number ends.
  LanePtr Open(int number, std::shared_ptr<LaneStream> stream);
  // Takes one message. False: read no more before LaneStream::ReadOn; or the stream is being ended.
  bool Receive(const LanePtr& lane, const MessageBytes& message);
  // The last write has left, or the driver is ready.
  void Written(const LanePtr& lane);
  // The stream is over: the peer forgets it. May be called again.
  void Close(const LanePtr& lane, const absl::Status& why);

  // Lets lanes write whose time has come. Frequent calls keep the rate even. Without a rate
  // (paced), nothing waits for it.
  void PumpAll();
  bool paced() const { return options_.sender.max_bytes_per_second > 0; }
  // Ends lanes that owe an acknowledgement for longer than that.
  void EndStalled(absl::Duration limit);
  void EndAll(const absl::Status& why);
  int lanes() const { return static_cast<int>(AllLanes().size()); }
  // True while an object is on its way to the peer.
  bool sends() const;

 protected:
  static constexpr int kMaxDamaged = 2;

  explicit LanePeer(Options options);

  // --- Hooks ---
  // A message that is not about chunks. An error ends the lane.
  virtual absl::Status OnControl(const LanePtr& lane, v1::LaneControl& message) = 0;
  // All of the object is there.
  virtual void OnWhole(uint64_t transfer, const std::shared_ptr<ChunkAssembly>& object) = 0;
  // The peer holds all of an object that was sent. May be called more than once.
  virtual void OnDelivered(uint64_t /*transfer*/) {}
  // The object came damaged kMaxDamaged times in a row: that is not a passing fault.
  virtual void OnDamaged(uint64_t transfer) = 0;
  // A chunk crosses, of so many bytes on the wire; `again`: not for the first time.
  virtual void OnChunk(uint64_t transfer, bool sent, int64_t bytes, bool again) = 0;
  // The lane is over; it left so many chunks to the others.
  virtual void OnClosed(int number, const absl::Status& why, bool spoke, int64_t chunks_left) = 0;
  // A chunk is ready, and no lane takes it; or that is over.
  virtual void OnBlocked(bool /*blocked*/) {}

  // --- For roles ---
  // Sends what `held` lacks of the object. `introduction` goes before its first chunk on every
  // lane.
  void Send(uint64_t transfer, std::shared_ptr<ChunkSource> source, int64_t due_step, ChunkSet held,
            bool ask_first, v1::LaneControl introduction);
  void StopSending(uint64_t transfer);
  absl::StatusOr<int64_t> Hold(uint64_t transfer, absl::string_view bits, uint64_t holder);
  // Chunks of that transfer go there.
  void Expect(uint64_t transfer, std::shared_ptr<ChunkAssembly> object);
  void StopExpecting(uint64_t transfer);
  // Says it over that lane, or over the one with the least to write; false if there is none.
  bool Say(v1::LaneControl message, LanePtr lane = nullptr);
  // Says which chunks of what the peer sends are held, and in what.
  void SayHolding(uint64_t transfer, const ChunkSet& held, uint64_t holder, LanePtr lane);
  // Says it over every lane: some may have broken, which has not been noticed here yet.
  void SayToAll(const v1::LaneControl& message);
  void Pump(const LanePtr& lane);
  absl::Duration UntilRate() const;
  Clock& clock() const { return *options_.clock; }

 private:
  struct Outgoing {
    std::shared_ptr<ChunkSource> source;
    v1::LaneControl introduction;
  };
  struct Writing;

  std::vector<LanePtr> AllLanes() const;
  absl::Status TakeControl(const LanePtr& lane, v1::LaneControl& message);
  bool TakeChunk(const LanePtr& lane, const MessageBytes& message, const ChunkFields& fields);
  // Puts a chunk into its place. False: it has come over another lane as well, and is being placed.
  bool Place(const LanePtr& lane, const MessageBytes& message, const ChunkFields& fields,
             int64_t sequence, int64_t chunk, const std::shared_ptr<ChunkAssembly>& object);
  // On a thread for long work: the same, once that other one has been placed or was damaged.
  void PlaceLater(const LanePtr& lane, const MessageBytes& message, const ChunkFields& fields,
                  int64_t sequence, int64_t chunk, const std::shared_ptr<ChunkAssembly>& object);
  static void Handled(Lane& lane, int64_t sequence);
  bool NextMessage(Lane& lane, Writing& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<bool> BlockedNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  mutable ChunkSender sender_ ABSL_GUARDED_BY(mutex_);
  std::vector<LanePtr> lanes_ ABSL_GUARDED_BY(mutex_);
  ChunkSender::LaneKey next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<ChunkAssembly>> incoming_ ABSL_GUARDED_BY(mutex_);
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
};

// All but the first three are guarded by the peer's mutex.
struct LanePeer::Lane {
  int number = 0;
  ChunkSender::LaneKey key = 0;
  std::shared_ptr<LaneStream> stream;
  bool open = true;
  bool spoke = false;   // Something came.
  bool writing = true;  // At first: the driver is not ready.
  std::deque<v1::LaneControl> to_say;
  int64_t arrived = 0;       // Chunks that came, handled or not.
  int64_t handled = 0;       // The first so many of them are dealt with.
  std::set<int64_t> ahead;   // Dealt with, while one before is not.
  int64_t acknowledged = 0;  // As the peer was told.
  int unpacking = 0;
  bool paused = false;  // Reading stopped.
};

}  // namespace causeway
