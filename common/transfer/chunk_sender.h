// Chooses which chunk goes over which lane next: the sending half of all transfers that one end has
// for one peer. A coordinator has one for each worker's process, a worker has one for its
// coordinator.
//
// A chunk waits, is given to a lane, and is acknowledged. A lane that has room takes the next
// waiting chunk of the object that is due first. So a fast lane carries more than a slow one. An
// urgent object waits only for what is in the sockets already. When a lane breaks, its chunks that
// were not acknowledged wait again, for any lane.
//
// Pure: no I/O, no clock. Not thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/thread_pool.h"
#include "common/transfer/chunk_message.h"

namespace causeway {

// An object to be sent, once for all who receive it: its chunks with their checksums and, where the
// run packs what it sends, their packed form.

// A chunk that lies where it is until `owner` is released.
struct OutgoingChunk {
  ChunkFields fields;  // Apart from data_position.
  std::span<const uint8_t> data;
  std::shared_ptr<const void> owner;
};

// Thread-safe.
class ChunkSource {
 public:
  struct Options {
    std::span<const uint8_t> bytes;  // They do not change before `owner` is released.
    // The checksums of the chunks, where they are known; or empty: they are taken on the way.
    std::span<const uint64_t> leaves;
    std::shared_ptr<const void> owner;
    bool pack = false;  // Chunks cross packed where that makes them smaller.
    // Packed chunks are kept as long as it has room; it outlives the source. Null: they are not.
    ByteBudget* cache = nullptr;
  };
  explicit ChunkSource(Options options);
  ~ChunkSource();
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;

  int64_t object_bytes() const { return static_cast<int64_t>(options_.bytes.size()); }
  // True if Chunk may take long, as packing does.
  bool packs() const { return options_.pack; }
  // Returns the chunk. Its checksum is computed once; so is its packed form, if there is room to
  // keep it.
  OutgoingChunk Chunk(int64_t chunk);

 private:
  struct Packed {
    std::string bytes;  // Empty: the chunk does not get smaller.
    uint64_t checksum = 0;
  };
  std::span<const uint8_t> Plain(int64_t chunk) const;
  std::shared_ptr<const Packed> Pack(int64_t chunk);

  const Options options_;
  std::vector<std::atomic<uint64_t>> checksums_;  // 0: not known yet.
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<const Packed>> packed_ ABSL_GUARDED_BY(mutex_);
  int64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A bucket of credit that fills at the rate and may be overdrawn by one piece: whoever takes the
// last credit may send a whole chunk, and the next one waits until that is paid for. Time comes
// with every call. Not thread-safe.
class ByteRate {
 public:
  // 0: no limit.
  explicit ByteRate(int64_t bytes_per_second = 0) : rate_(static_cast<double>(bytes_per_second)) {}

  // Returns how long until something may be sent; zero: now.
  absl::Duration Wait(absl::Duration now) {
    if (rate_ <= 0) return absl::ZeroDuration();
    if (filled_ == -absl::InfiniteDuration()) filled_ = now;
    // A moment may be saved up, so that who wakes up a little late loses nothing.
    const double most = rate_ * absl::ToDoubleSeconds(absl::Milliseconds(50));
    credit_ = std::min(most, credit_ + rate_ * absl::ToDoubleSeconds(now - filled_));
    filled_ = now;
    return credit_ >= 0 ? absl::ZeroDuration() : absl::Seconds(-credit_ / rate_);
  }
  // Notes that so much is sent now; a negative number gives back what was spent too much.
  void Spend(int64_t bytes) { credit_ -= static_cast<double>(bytes); }

 private:
  double rate_;
  double credit_ = 0;
  absl::Duration filled_ = -absl::InfiniteDuration();
};

class ChunkSender {
 public:
  // Names one lane for as long as its stream lives; never used twice.
  using LaneKey = int64_t;

  struct Options {
    int64_t max_bytes_per_second = 0;  // 0: no limit.
    // Introduces every object again after a lane broke, because the peer's answer may have been
    // lost, and waits for the answer (Hold) where chunks of the object were on that lane.
    bool repeats_introductions = false;
  };
  // Says what a lane is to send.
  struct Piece {
    uint64_t transfer = 0;
    int64_t chunk = kIntroduction;
    int64_t bytes = 0;   // Unpacked.
    bool again = false;  // It has been sent before.
  };
  static constexpr int64_t kIntroduction = -1;

  explicit ChunkSender(Options options) : options_(options), rate_(options.max_bytes_per_second) {}

  // --- Objects ---
  // Sends what `held` lacks of the object. With `ask_first`, nothing but the introduction is sent
  // before Hold. `transfer` is new.
  void Add(uint64_t transfer, int64_t due_step, ChunkSet held, bool ask_first);
  // Forgets the transfer, if there is one.
  void Remove(uint64_t transfer);
  // Notes that the receiver holds these chunks, too (Holding, Want). `holder` names what it keeps
  // them in: if that is new, it holds these alone. Returns how many it holds, 0 for an unknown
  // transfer. INVALID_ARGUMENT if the bits are not of this object.
  absl::StatusOr<int64_t> Hold(uint64_t transfer, absl::string_view bits, uint64_t holder);
  // True once every chunk is acknowledged; false for an unknown transfer.
  bool delivered(uint64_t transfer) const;
  // True if a chunk waits for a lane.
  bool waiting() const;

  // --- Lanes ---
  void Open(LaneKey lane, absl::Duration now);
  // Returns how many chunks it leaves to the others.
  int64_t Close(LaneKey lane);
  // Gives the lane its next piece; nothing if there is none, or the rate is spent (Wait).
  std::optional<Piece> Take(LaneKey lane, absl::Duration now);
  // Time until the rate lets another chunk go.
  absl::Duration Wait(absl::Duration now) { return rate_.Wait(now); }
  // Gives back rate: a chunk was smaller on the wire by so much.
  void Refund(int64_t bytes) { rate_.Spend(-bytes); }
  // The peer has dealt with so many chunks of that lane since it was opened. Returns the transfer
  // of each chunk that it had not acknowledged before. INVALID_ARGUMENT if the lane was not given
  // as many.
  absl::StatusOr<std::vector<uint64_t>> Acknowledge(LaneKey lane, int64_t chunks,
                                                    absl::Duration now);
  // The chunk came damaged over that lane: it waits again. Returns how often in a row that has
  // happened to the object without any progress.
  int Damaged(LaneKey lane, uint64_t transfer, int64_t chunk);
  // True if the lane has owed acknowledgements for longer than `limit` and given none. Where a few
  // come over the other lanes meanwhile, the link is slow: then it is false.
  bool Stalled(LaneKey lane, absl::Duration now, absl::Duration limit) const;

 private:
  struct Object {
    uint64_t transfer = 0;
    int64_t due_step = 0;
    ChunkSet taken;         // All that do not wait.
    ChunkSet acknowledged;  // All that the receiver is known to hold.
    ChunkSet sent;          // At least once.
    int64_t first = 0;      // No chunk before it waits.
    uint64_t holder = 0;
    bool asks_first = false;
    bool introduce = true;  // Over the next lane that has room.
    std::set<LaneKey> introduced;
    int damaged = 0;  // In a row.
  };
  struct Given {
    uint64_t transfer = 0;
    int64_t chunk = 0;
    bool counts = true;  // False: it came damaged.
  };
  struct Lane {
    std::deque<Given> given;  // Not acknowledged yet, in order.
    int64_t acknowledged = 0;
    absl::Duration moved;  // It acknowledged something, or began to owe.
    int64_t all_then = 0;  // all_acknowledged_ when it moved.
  };

  Object* Find(uint64_t transfer);
  static bool Waits(const Object& object) { return !object.taken.complete(); }
  static void LetWait(Object& object, int64_t chunk);
  void Moved(Lane& lane, absl::Duration now);

  const Options options_;
  ByteRate rate_;
  std::vector<Object> objects_;  // Sorted by due step, then by age.
  std::map<LaneKey, Lane> lanes_;
  int64_t all_acknowledged_ = 0;  // Chunks, over all lanes.
  absl::Duration moved_;          // Some lane did.
};

}  // namespace causeway
