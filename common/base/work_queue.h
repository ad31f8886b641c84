// Threads for work that others must not wait for: a reactor for merging, copying whole fragments or
// writing to disk, a training thread for the network.
#ifndef CAUSEWAY_COMMON_BASE_WORK_QUEUE_H_
#define CAUSEWAY_COMMON_BASE_WORK_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace causeway {

// Runs a task soon, on a thread that may take its time.
using Runner = std::function<void(std::function<void()>)>;

// Thread-safe. Tasks start in the order in which they came.
class WorkQueue {
 public:
  explicit WorkQueue(int threads);
  // RESOURCE_EXHAUSTED if some threads could not be started: the queue has fewer, or none.
  const absl::Status& started() const { return started_; }
  // Stops.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Runs what is queued, then ends the threads. What is queued later is never run. May be called
  // again.
  void Stop();
  // Forgets the tasks that wait for a thread, and those that come later.
  void Drop();

  // Never blocks. Whoever queues large tasks bounds them: see ByteBudget.
  void Run(std::function<void()> task);
  // Tasks that wait for a thread.
  size_t length() const;
  // The queue outlives what it returns.
  Runner runner() {
    return [this](std::function<void()> task) { Run(std::move(task)); };
  }

 private:
  void Loop();

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool dropping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status started_;
  std::vector<std::thread> threads_;
};

// Memory that peers may fill. Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t bytes) : bytes_(bytes), free_(bytes) {}
  // False if so much is not free.
  bool Take(int64_t bytes);
  void Return(int64_t bytes);
  // Makes it at least so large.
  void GrowTo(int64_t bytes);
  // The whole budget, and the part of it that is taken.
  int64_t bytes() const;
  int64_t taken() const;

 private:
  mutable absl::Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_);
  int64_t free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_WORK_QUEUE_H_
