// Threads that wait for the network, so that training does not.
#ifndef CAUSEWAY_WORKER_SYNC_TRANSFER_THREADS_H_
#define CAUSEWAY_WORKER_SYNC_TRANSFER_THREADS_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace causeway::worker {

// Runs jobs in the order in which they were added, `threads` at a time. Thread-safe.
class TransferThreads {
 public:
  explicit TransferThreads(int threads);
  // Waits for the running jobs and drops the waiting ones.
  ~TransferThreads();

  // RESOURCE_EXHAUSTED if some threads could not be started: there are fewer, or none.
  const absl::Status& started() const { return started_; }
  void Add(std::function<void()> job);

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status started_;
  std::vector<std::thread> threads_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_TRANSFER_THREADS_H_
