#include "common/base/work_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/thread_pool.h"

namespace causeway {

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
