// Long work of many owners, of which none keeps the others waiting.
#ifndef CAUSEWAY_SERVER_TRANSFER_FAIR_QUEUE_H_
#define CAUSEWAY_SERVER_TRANSFER_FAIR_QUEUE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/work_queue.h"

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_TRANSFER_FAIR_QUEUE_H_
