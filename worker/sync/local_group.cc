#include "worker/sync/local_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

int64_t GroupTypeBytes(GroupType type) {
  switch (type) {
    case GroupType::kFloat:
      return sizeof(float);
    case GroupType::kBf16:
      return sizeof(uint16_t);
    case GroupType::kDouble:
      return sizeof(double);
  }
  return 0;
}

absl::Status CheckBounds(std::span<const int64_t> bounds, int pieces) {
  if (std::ssize(bounds) == pieces + 1 && bounds.front() >= 0 && std::ranges::is_sorted(bounds)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("an array of ", pieces, " pieces has ", pieces + 1,
                                                 " ascending bounds, not these ", bounds.size()));
}

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
