// A fixed set of threads that run the tasks of one loop together.
//
// Work is cut into tasks by the caller, never by the number of threads: which thread runs a task
// must not matter, so that the result has the same bits on any number of threads.
#ifndef CAUSEWAY_COMMON_BASE_THREAD_POOL_H_
#define CAUSEWAY_COMMON_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_THREAD_POOL_H_
