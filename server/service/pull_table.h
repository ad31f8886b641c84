// Objects on their way down: who waits for which, which chunk goes over which stream, and when.
//
// Streams of one worker with the same stripe_group share a PullGroup: one object, and one record of
// the chunks that are dealt out. Whichever stream has room takes the next chunk, so a slow
// connection slows nothing but what it has taken. A stream that has room but may not send yet,
// because another object of the worker is due earlier or its rate is spent, is parked here.
//
// A chunk on a stream that breaks is lost: the worker asks for what it misses in a new group.
#ifndef CAUSEWAY_SERVER_SERVICE_PULL_TABLE_H_
#define CAUSEWAY_SERVER_SERVICE_PULL_TABLE_H_

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/clock.h"
#include "common/rpc/chunk_set.h"
#include "server/core/coordinator.h"
#include "server/service/byte_rate.h"
#include "server/service/fair_queue.h"
#include "server/service/pull_source.h"
#include "server/service/work_queue.h"

namespace causeway::server {

// One Exchange.Pull. All are called by any thread, without a lock.
class PullStream {
 public:
  virtual ~PullStream() = default;
  // Only after the former one has left (PullTable::Sent).
  virtual void SendHeader(const v1::PullHeader& header) = 0;
  virtual void SendChunk(const OutgoingChunk& chunk) = 0;
  // The stream is over; only the first call counts. OK: all that was sent has left.
  virtual void End(const absl::Status& status) = 0;
};

// Thread-safe. Every opened stream is closed. Made by make_shared: callbacks of the coordinator may
// outlive it.
class PullTable : public std::enable_shared_from_this<PullTable> {
 public:
  struct Options {
    ByteBudget* cache = nullptr;  // For packed chunks; outlives the table, as does the clock.
    Runner run_long;              // Reads and copies objects, packs chunks.
    Clock* clock = nullptr;
    // A worker that takes nothing of what is sent to it for so long is not there.
    absl::Duration stall = absl::Seconds(60);
    // An object that is due first holds others up only while it moves.
    absl::Duration patience = absl::Seconds(5);
    // Streams that join a group so long after it was done find it done.
    absl::Duration keep_done = absl::Seconds(60);
    size_t max_streams = 4096;
    // As many as a worker's connections carry: nobody takes those of all others.
    size_t max_streams_of_worker = 1024;
    // Of different objects that one worker's streams hold in memory: answers of past rounds are
    // read for it alone, and stay for as long as it takes them.
    int64_t max_bytes_of_worker = std::numeric_limits<int64_t>::max();
  };
  // The coordinator outlives the table.
  PullTable(Coordinator& coordinator, Options options)
      : coordinator_(coordinator),
        options_(std::move(options)),
        reads_(std::make_shared<FairQueue>(options_.run_long)),
        max_bytes_of_worker_(options_.max_bytes_of_worker) {}

  // Another bound for each worker's objects, once it is known.
  void BoundBytesOfWorker(int64_t bytes);

  // A stream begins. What it is to do, or why it ends, it is told, possibly at once.
  void Open(const v1::PullRequest& request, std::shared_ptr<PullStream> stream);
  // What the stream was given last has left: it has room.
  void Sent(PullStream* stream);
  // The stream ended or broke. Nothing is called on it any more. May be called again.
  void Close(PullStream* stream);
  // Lets parked streams go whose time has come, and ends those that stand still. The rate is kept
  // the more evenly, the more often it is called.
  void Tick();

  struct Counters {
    size_t streams = 0;
    size_t groups = 0;
    size_t waiting_rounds = 0;  // Asked of the coordinator.
  };
  Counters counters() const;

 private:
  struct Group;
  struct Entry {
    std::shared_ptr<PullStream> stream;
    std::shared_ptr<Group> group;
    enum class State { kWaiting, kSending, kReady, kEnding } state = State::kWaiting;
    absl::Duration since = absl::ZeroDuration();  // In kSending.
    int64_t bytes = 0;                            // Of the chunk that it sends.
  };
  // One worker.
  struct Downlink {
    std::deque<PullStream*> ready;
    std::set<std::shared_ptr<Group>> serving;
    std::multiset<std::shared_ptr<const PullObject>> held;  // One for each group.
    int64_t held_bytes = 0;                                 // Of different ones.
    ByteRate rate;
    absl::Duration moved = absl::ZeroDuration();  // A stream sent something, or opened.
    size_t streams = 0;
  };
  // Who waits for the answer of which fragment's round.
  struct Wanted {
    std::string worker;
    int fragment = 0;
    int64_t round = 0;
    friend auto operator<=>(const Wanted&, const Wanted&) = default;
  };
  using Object = absl::StatusOr<std::shared_ptr<const PullObject>>;
  using GroupKey = std::pair<std::string, uint64_t>;
  using Actions = std::vector<std::function<void()>>;  // To be done once the lock is released.

  absl::Status Check(const v1::PullRequest& request) const;
  absl::StatusOr<std::shared_ptr<Group>> FindGroup(const v1::PullRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fetch(const std::shared_ptr<Group>& group, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answered(const Wanted& wanted, const Object& object);
  // Before an object of that size is read: whether its worker may hold it.
  absl::Status CheckRoom(const std::string& worker, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRoomLocked(const Downlink& downlink, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t StateBytes(int fragment) const;
  // The group's object is there, or never comes.
  void Begin(const std::shared_ptr<Group>& group, const Object& object, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeObject(Group& group, const Object& object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts the group's object against its worker; or not any more, and returns it.
  absl::Status Hold(Group& group, const std::shared_ptr<const PullObject>& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const PullObject> LetGo(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<PullSource> SourceOf(const std::shared_ptr<const PullObject>& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendHeader(PullStream* stream, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(PullStream* stream, const absl::Status& status, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives chunks to ready streams as far as priority and rate allow.
  void Deal(const std::string& worker, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The step before which nothing of the worker's may be held up: of what moves, the earliest.
  int64_t UrgentStep(const Downlink& downlink) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DealChunk(PullStream* stream, Downlink& downlink, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndDone(Downlink& downlink, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::shared_ptr<Group>& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Do(Actions actions);

  Coordinator& coordinator_;
  const Options options_;
  const std::shared_ptr<FairQueue> reads_;  // Of states and answers, by worker.
  mutable absl::Mutex mutex_;
  int64_t max_bytes_of_worker_ ABSL_GUARDED_BY(mutex_);
  std::map<PullStream*, Entry> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupKey, std::shared_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);  // With a number.
  std::map<std::string, Downlink> downlinks_ ABSL_GUARDED_BY(mutex_);          // By worker.
  // Finished groups whose last stream has left, and when: in this order they are forgotten.
  std::deque<std::pair<absl::Duration, std::weak_ptr<Group>>> done_ ABSL_GUARDED_BY(mutex_);
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();  // For streams that stand.
  // For one worker the coordinator is asked once for an answer, whatever waits for it.
  std::map<Wanted, std::set<std::shared_ptr<Group>>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<const PullObject*, std::weak_ptr<PullSource>> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PULL_TABLE_H_
