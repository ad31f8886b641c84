// Keeps what workers want, until it is there: answers of rounds that are not published yet, and
// objects that are read or copied first. From then on their lanes send it.
#pragma once

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

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/thread_pool.h"
#include "common/transfer/chunk_sender.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// Hands tasks to a runner: of each owner one at a time, in the order in which they came.
// Thread-safe. Made by make_shared: tasks keep it.
class FairQueue : public std::enable_shared_from_this<FairQueue> {
 public:
  explicit FairQueue(Runner run) : run_(std::move(run)) {}

  void Run(const std::string& owner, std::function<void()> task) {
    {
      absl::MutexLock lock(&mutex_);
      const auto [waiting, is_free] = waiting_.try_emplace(owner);
      if (!is_free) {
        waiting->second.push_back(std::move(task));
        return;
      }
    }
    Start(owner, std::move(task));
  }

 private:
  void Start(const std::string& owner, std::function<void()> task) {
    run_([self = shared_from_this(), owner, task = std::move(task)] {
      task();
      self->Next(owner);
    });
  }
  void Next(const std::string& owner) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      const auto waiting = waiting_.find(owner);
      if (waiting->second.empty()) {
        waiting_.erase(waiting);
        return;
      }
      task = std::move(waiting->second.front());
      waiting->second.pop_front();
    }
    Start(owner, std::move(task));
  }

  const Runner run_;
  absl::Mutex mutex_;
  // Owners of a task that runs, or is about to, and what they have beside.
  std::map<std::string, std::deque<std::function<void()>>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe. Made by make_shared: callbacks of the coordinator may outlive it.
class AnswerOutbox : public std::enable_shared_from_this<AnswerOutbox> {
 public:
  struct Options {
    ByteBudget* cache = nullptr;  // For packed chunks; outlives the outbox.
    Runner run_long;              // Reads and copies objects.
    // Most bytes of different objects that one worker's transfers hold in memory. Answers of past
    // rounds are read for it alone, and stay for as long as it takes them.
    int64_t max_bytes_of_worker = std::numeric_limits<int64_t>::max();
  };
  // The coordinator outlives the outbox.
  AnswerOutbox(Coordinator& coordinator, Options options)
      : coordinator_(coordinator),
        options_(std::move(options)),
        reads_(std::make_shared<FairQueue>(options_.run_long)) {}

  // Says what is to be sent, and how. The object counts against its worker while `hold` is kept.
  struct Found {
    v1::PullHeader header;
    std::shared_ptr<ChunkSource> source;
    std::shared_ptr<const void> hold;
  };
  using Deliver = std::function<void(absl::StatusOr<Found>)>;
  // Finds the object and calls back, at once or once it is published; not at all if nobody
  // `waits` any more. Errors are those of a Want.
  void Want(const std::string& worker_id, const v1::Want& want, std::weak_ptr<const void> waits,
            Deliver deliver);
  // Answers that are waited for, by different workers.
  size_t waiting_answers() const;

 private:
  // Who waits for the answer of which fragment's round.
  struct Answer {
    std::string worker;
    int fragment = 0;
    int64_t round = 0;
    friend auto operator<=>(const Answer&, const Answer&) = default;
  };
  using Object = absl::StatusOr<std::shared_ptr<const PullObject>>;
  struct Waiting {
    v1::Want want;
    std::weak_ptr<const void> waits;
    Deliver deliver;
  };
  // One worker.
  struct Held {
    std::multiset<const PullObject*> objects;
    int64_t bytes = 0;  // Each object counts once.
  };

  static absl::Status Check(const v1::Want& want);
  void Answered(const Answer& answer, const Object& object);
  // Whether the worker may hold an object of that size beside those that it does.
  absl::Status CheckRoom(const std::string& worker_id, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Object ReadState(const std::string& worker_id, int fragment);
  absl::StatusOr<Found> Take(const std::string& worker_id, const v1::Want& want,
                             const Object& object);
  void LetGo(const std::string& worker_id, const PullObject& object);
  std::shared_ptr<ChunkSource> SourceOf(const std::shared_ptr<const PullObject>& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  const Options options_;
  const std::shared_ptr<FairQueue> reads_;  // States and answers, by worker.
  mutable absl::Mutex mutex_;
  // For one worker the coordinator is asked once for an answer, whatever waits for it.
  std::map<Answer, std::vector<Waiting>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Held> held_ ABSL_GUARDED_BY(mutex_);  // By worker.
  // One for all who are sent an object, which is packed once so. It goes with the last of them, and
  // not with the object, which is kept for longer: then its packed chunks leave the cache.
  std::map<const PullObject*, std::weak_ptr<ChunkSource>> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
