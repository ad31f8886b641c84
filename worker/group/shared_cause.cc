#include "worker/group/shared_cause.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

void SharedCause::Set(int rank, const absl::Status& cause) {
  Set(absl::AbortedError(absl::StrCat("rank ", rank, ": ", cause.message())));
}

void SharedCause::Set(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = absl::AbortedError(cause.message());
  }
  absl::MutexLock lock(&listeners_mutex_);
  for (const auto& [id, listener] : std::exchange(listeners_, {})) listener(Get());
}

absl::Status SharedCause::Get() const {
  absl::MutexLock lock(&mutex_);
  return cause_;
}

absl::Status SharedCause::WaitFor(absl::Duration patience) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !cause_.ok(); };
  mutex_.AwaitWithTimeout(absl::Condition(&there), patience);
  return cause_;
}

int SharedCause::Listen(Listener listener) {
  absl::MutexLock lock(&listeners_mutex_);
  const int id = next_id_++;
  if (const absl::Status cause = Get(); !cause.ok()) {
    listener(cause);
  } else {
    listeners_[id] = std::move(listener);
  }
  return id;
}

void SharedCause::Remove(int id) {
  absl::MutexLock lock(&listeners_mutex_);
  listeners_.erase(id);
}

}  // namespace causeway::worker
