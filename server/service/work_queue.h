// Threads for work that a reactor must not do: merging, copying whole fragments, writing to disk.
#ifndef CAUSEWAY_SERVER_SERVICE_WORK_QUEUE_H_
#define CAUSEWAY_SERVER_SERVICE_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace causeway::server {

// Thread-safe. Tasks start in the order in which they came.
class WorkQueue {
 public:
  explicit WorkQueue(int threads);
  // Runs what is queued, then stops.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Never blocks. Whoever queues large tasks bounds them: see ByteBudget.
  void Run(std::function<void()> task);

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Memory that peers may fill. Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t bytes) : free_(bytes) {}
  // False if so much is not free.
  bool Take(int64_t bytes);
  void Return(int64_t bytes);

 private:
  absl::Mutex mutex_;
  int64_t free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_WORK_QUEUE_H_
