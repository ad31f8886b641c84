#include "common/http/connection_timer.h"

#include <sys/socket.h>

namespace causeway {

ConnectionTimer::ConnectionTimer(absl::Duration timeout, absl::Duration look_interval,
                                 const Clock* clock)
    : timeout_(timeout), look_interval_(look_interval), clock_(clock), thread_([this] { Run(); }) {}

ConnectionTimer::~ConnectionTimer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ConnectionTimer::Opened(const void* key, int descriptor) {
  absl::MutexLock lock(&mutex_);
  connections_[key] = {descriptor, clock_->Monotonic()};
}

void ConnectionTimer::Answered(const void* key) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(key);
  if (found != connections_.end()) found->second.since = clock_->Monotonic();
}

void ConnectionTimer::Closing(const void* key) {
  absl::MutexLock lock(&mutex_);
  connections_.erase(key);
}

void ConnectionTimer::EndOverdue() {
  const absl::Duration now = clock_->Monotonic();
  for (const auto& [key, connection] : connections_) {
    if (now - connection.since >= timeout_) shutdown(connection.descriptor, SHUT_RDWR);
  }
}

void ConnectionTimer::Run() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &ConnectionTimer::HasWork));
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), look_interval_)) return;
    EndOverdue();
  }
}

}  // namespace causeway
