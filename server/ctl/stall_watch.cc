#include "server/ctl/stall_watch.h"

namespace causeway::server {

StallWatch::StallWatch(grpc::ClientContext& call, absl::Duration patience)
    : call_(call), patience_(patience), thread_([this] { Run(); }) {}

StallWatch::~StallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }
  thread_.join();
}

void StallWatch::Moved() {
  absl::MutexLock lock(&mutex_);
  moved_ = true;
}

bool StallWatch::stalled() const {
  absl::MutexLock lock(&mutex_);
  return stalled_;
}

void StallWatch::Run() {
  absl::MutexLock lock(&mutex_);
  const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return moved_ || done_; };
  while (mutex_.AwaitWithTimeout(absl::Condition(&something), patience_)) {
    if (done_) return;
    moved_ = false;
  }
  stalled_ = true;
  call_.TryCancel();
}

}  // namespace causeway::server
