// The thread that serves one GPU.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_THREAD_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace causeway::worker::cuda {

// Runs tasks in the order in which they are posted. After one that fails, those that follow are
// dropped until Wait has returned its error. Post and Wait are called by one thread.
class DeviceThread {
 public:
  using Task = std::function<absl::Status()>;

  // `failed` is called on this thread with every error, at once.
  explicit DeviceThread(std::function<void(const absl::Status&)> failed);
  // Runs what was posted to its end.
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  void Post(Task task);
  // Until all tasks are done: the first error since the last Wait.
  absl::Status Wait();

 private:
  void Run();
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty() && !busy_; }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || !tasks_.empty(); }

  const std::function<void(const absl::Status&)> failed_;
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses the above.
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_THREAD_H_
