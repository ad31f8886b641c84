#include "worker/backend/cuda/device_thread.h"

#include <utility>

namespace causeway::worker::cuda {

DeviceThread::DeviceThread(std::function<void(const absl::Status&)> failed)
    : failed_(std::move(failed)), thread_([this] { Run(); }) {}

DeviceThread::~DeviceThread() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  thread_.join();
}

void DeviceThread::Post(Task task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

absl::Status DeviceThread::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &DeviceThread::Idle));
  return std::exchange(status_, absl::OkStatus());
}

void DeviceThread::Run() {
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DeviceThread::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      if (!status_.ok()) continue;
      busy_ = true;
    }
    const absl::Status status = task();
    if (!status.ok()) failed_(status);
    absl::MutexLock lock(&mutex_);
    busy_ = false;
    status_ = status;
  }
}

}  // namespace causeway::worker::cuda
