#include "common/base/thread_pool.h"

#include "absl/base/attributes.h"
#include "common/base/threads.h"

namespace causeway {
namespace {

// A worker looks so often for the next loop before it sleeps: long enough for the gap between two
// kernels of one training step, short enough not to steal a shared core.
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  started_ = StartThreads(
      threads - 1, [this] { WorkerLoop(); }, workers_);
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    start_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunTasks() {
  for (;;) {
    const int64_t i = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (i >= task_count_) return;
    (*task_)(i);
  }
}

void ThreadPool::ParallelFor(int64_t tasks, const std::function<void(int64_t)>& task) {
  if (tasks <= 0) return;
  if (workers_.empty() || tasks == 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    task_ = &task;
    task_count_ = tasks;
    next_task_.store(0, std::memory_order_relaxed);
    running_workers_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    start_.SignalAll();
  }
  RunTasks();
  for (int spin = 0; spin < kSpins; ++spin) {
    if (running_workers_.load(std::memory_order_acquire) == 0) return;
    Pause();
  }
  absl::MutexLock lock(&mutex_);
  while (running_workers_.load(std::memory_order_acquire) != 0) done_.Wait(&mutex_);
}

void ThreadPool::WorkerLoop() {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) break;
      Pause();
    }
    {
      absl::MutexLock lock(&mutex_);
      while (generation_.load(std::memory_order_relaxed) == seen && !stop_) start_.Wait(&mutex_);
      if (stop_) return;
      seen = generation_.load(std::memory_order_relaxed);
    }
    RunTasks();
    if (running_workers_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      absl::MutexLock lock(&mutex_);
      done_.SignalAll();
    }
  }
}

}  // namespace causeway
