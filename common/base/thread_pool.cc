#include "common/base/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "common/base/control_group.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {

absl::StatusOr<int> ThreadsFor(int asked) {
  if (asked < 0 || asked > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("--threads must be in 0 .. ", kMaxThreads,
                                                   " (0: one per core); it is ", asked));
  }
  if (asked > 0) return asked;
  return std::min(UsableCores(ReadControlGroupLimits(*FileSystem::Real())), kMaxThreads);
}

absl::StatusOr<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no thread can be started (", error.code().message(),
        "): raise the limits of processes and memory (ulimit -u, TasksMax, MemoryMax), "
        "or end what uses them up"));
  }
}

absl::Status StartThreads(int count, const std::function<void()>& run,
                          std::vector<std::thread>& threads) {
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(std::thread thread, StartThread(run));
    threads.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

absl::Status PeriodicThread::Start(absl::Duration pause, std::function<absl::Duration()> act) {
  ASSIGN_OR_RETURN(thread_, StartThread([this, pause, act = std::move(act)]() mutable {
                     absl::MutexLock lock(&mutex_);
                     while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) {
                       mutex_.Unlock();
                       pause = act();
                       mutex_.Lock();
                     }
                   }));
  return absl::OkStatus();
}

void PeriodicThread::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

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

WorkQueue::WorkQueue(int threads) {
  started_ = StartThreads(
      threads, [this] { Loop(); }, threads_);
}

WorkQueue::~WorkQueue() { Stop(); }

void WorkQueue::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkQueue::Run(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (!dropping_) tasks_.push_back(std::move(task));
}

void WorkQueue::Drop() {
  absl::MutexLock lock(&mutex_);
  dropping_ = true;
  tasks_.clear();
}

size_t WorkQueue::length() const {
  absl::MutexLock lock(&mutex_);
  return tasks_.size();
}

void WorkQueue::Loop() {
  const auto has_something_to_do = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stop_ || !tasks_.empty();
  };
  for (;;) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_something_to_do));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

bool ByteBudget::Take(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (bytes > free_) return false;
  free_ -= bytes;
  return true;
}

void ByteBudget::Return(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_ += bytes;
}

void ByteBudget::GrowTo(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const int64_t more = std::max<int64_t>(0, bytes - bytes_);
  bytes_ += more;
  free_ += more;
}

int64_t ByteBudget::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

int64_t ByteBudget::taken() const {
  absl::MutexLock lock(&mutex_);
  return bytes_ - free_;
}

}  // namespace causeway
