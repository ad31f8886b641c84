// Receives deltas, and keeps what has come of them.
//
// All lanes of a worker fill one ChunkAssembly for each delta. When its last chunk is there the
// coordinator takes the object, and whoever brought it is told what became of it. Lanes that break,
// and workers that start again, take nothing away: what came is held for whoever brings the rest.
//
// A delta is dropped when it was accepted or refused, when its round closes, or when the worker
// offers another object for the same round. One that nobody is sending is dropped after keep_idle,
// or as soon as another one needs the memory, the longest idle first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/transfer/chunk_message.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// Who offers deltas. Called by any thread, without a lock.
class DeltaBearer {
 public:
  virtual ~DeltaBearer() = default;
  // Says what became of the delta, once for each offer that was taken.
  virtual void EndOffer(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result) = 0;
};

// Thread-safe. Made by make_shared: callbacks of the coordinator may outlive it.
class DeltaInbox : public std::enable_shared_from_this<DeltaInbox> {
 public:
  struct Options {
    ByteBudget* memory = nullptr;  // For objects that are being received; outlives the inbox.
    Runner run_long;               // Verifies and merges.
    Clock* clock = nullptr;        // Outlives the inbox.
    // A worker whose chunks stay away for so long is not sending.
    absl::Duration stall = absl::Seconds(60);
    // An object that nobody goes on with is kept for so long.
    absl::Duration keep_idle = absl::Minutes(10);
    // Names the coordinator's process in Holding.holder: chunks of another one are not here.
    uint64_t process = 1;
  };
  // The coordinator outlives the inbox.
  DeltaInbox(Coordinator& coordinator, Options options);
  ~DeltaInbox();

  // One object that is being received.
  struct Delta {
    uint64_t holder = 0;  // Names what holds the chunks: Holding.holder.
    std::shared_ptr<ChunkAssembly> chunks;
  };

  // A delta is offered, maybe once more. Null if it was accepted before: `accepted` says how then.
  // Otherwise the bearer is told its end. Errors are those of an Offer.
  absl::StatusOr<std::shared_ptr<Delta>> Offer(const std::shared_ptr<DeltaBearer>& bearer,
                                               uint64_t transfer, const v1::PushHeader& header,
                                               v1::PushResponse& accepted);
  // A chunk of that worker came.
  void Moved(const std::string& worker_id);
  // All of it is there.
  void Whole(const std::shared_ptr<Delta>& delta);

  // Looks after deltas that nobody goes on with. A few times a second.
  void Tick();

  struct Counters {
    size_t deltas = 0;
    int64_t resumed_chunks = 0;  // Held already when somebody offered an idle delta again.
    int64_t evicted = 0;         // Dropped for want of memory.
  };
  Counters counters() const;

 private:
  using Key = std::tuple<int, int64_t, std::string>;  // Fragment, round, worker.
  using Bearer = std::pair<std::weak_ptr<DeltaBearer>, uint64_t>;
  using Bearers = std::vector<Bearer>;
  struct Kept;

  static Key KeyOf(const v1::PushHeader& header);
  static void End(const Bearers& bearers, const absl::StatusOr<v1::PushResponse>& result);
  // Ends what is still being received for a round that has closed.
  void EndClosed(const Key& key);
  // Whether EndClosed was called for that round or a later one of its fragment.
  bool HasClosed(const v1::PushHeader& header) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Kept>> FindOrMake(const v1::PushHeader& header, Bearers& replaced,
                                                   Bearers& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Kept>> MakeRoom(const v1::PushHeader& header, Bearers& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EvictOne(Bearers& evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle(const Kept& delta, absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks it as taken if it is whole and nobody has yet: the caller then runs Contribute.
  bool StartContributing(Kept& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Contribute(const std::shared_ptr<Kept>& delta);
  void Drop(Kept& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  const Options options_;
  mutable absl::Mutex mutex_;
  uint64_t next_holder_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<Kept>> deltas_ ABSL_GUARDED_BY(mutex_);
  // The last round of each fragment that is known to have closed.
  std::map<int, int64_t> closed_ ABSL_GUARDED_BY(mutex_);
  // When the last chunk of a worker came. Of workers with deltas.
  std::map<std::string, absl::Duration> moved_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
