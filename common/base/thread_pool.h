// A fixed set of threads that run the tasks of one loop together.
//
// Work is cut into tasks by the caller, never by the number of threads: which thread runs a task
// must not matter, so that the result has the same bits on any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace causeway {

// What a command may ask for. More would be a slip of the keyboard, and could use up the threads of
// the whole machine.
inline constexpr int kMaxThreads = 1024;

// Resolves --threads=`asked`: 0 is one per core that may be used (control_group.h).
// INVALID_ARGUMENT outside of 0 .. kMaxThreads.
absl::StatusOr<int> ThreadsFor(int asked);

// std::thread without its exception. RESOURCE_EXHAUSTED if the machine or a limit has no more.
absl::StatusOr<std::thread> StartThread(std::function<void()> run);

// Adds `count` threads that each call run(). After an error `threads` has those that were started:
// the caller ends and joins them.
absl::Status StartThreads(int count, const std::function<void()>& run,
                          std::vector<std::thread>& threads);

// A thread that does something every now and then. As the last member of its owner it ends first.
class PeriodicThread {
 public:
  PeriodicThread() = default;
  ~PeriodicThread() { Stop(); }

  // Runs `act` after `pause`, and again after every pause that it returns. Once. RESOURCE_EXHAUSTED
  // as for StartThread.
  absl::Status Start(absl::Duration pause, std::function<absl::Duration()> act);
  // Waits for an act that is under way. May be called again.
  void Stop();

 private:
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class ThreadPool {
 public:
  // `threads` >= 1 counts the calling thread: ThreadPool(1) starts none. A pool that could not
  // start all of them works with those that it has, more slowly: see `started`.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // RESOURCE_EXHAUSTED if some threads could not be started.
  const absl::Status& started() const { return started_; }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i) once for every i in [0, tasks), on any threads in any order, and returns when
  // all are done; everything they wrote is then visible. The calling thread takes part. Not to be
  // called from inside a task, nor by two threads at once.
  void ParallelFor(int64_t tasks, const std::function<void(int64_t)>& task);

 private:
  void WorkerLoop();
  void RunTasks();

  absl::Status started_;
  std::vector<std::thread> workers_;
  // The present loop. Written under mutex_ before generation_ changes.
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t task_count_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<int> running_workers_{0};
  std::atomic<uint64_t> generation_{0};
  absl::Mutex mutex_;
  absl::CondVar start_;
  absl::CondVar done_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

// Threads for work that others must not wait for: a reactor for merging, copying whole fragments or
// writing to disk, a training thread for the network.

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
