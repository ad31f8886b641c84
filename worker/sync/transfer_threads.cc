#include "worker/sync/transfer_threads.h"

#include <utility>

#include "common/base/threads.h"

namespace causeway::worker {

TransferThreads::TransferThreads(int threads) {
  started_ = StartThreads(
      threads, [this] { Run(); }, threads_);
}

TransferThreads::~TransferThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void TransferThreads::Add(std::function<void()> job) {
  absl::MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
}

void TransferThreads::Run() {
  for (;;) {
    std::function<void()> job;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || !jobs_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace causeway::worker
