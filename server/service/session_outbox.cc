#include "server/service/session_outbox.h"

#include <algorithm>
#include <utility>

namespace causeway::server {
namespace {

size_t MemoryOf(const v1::CoordinatorMessage& message) { return message.SpaceUsedLong(); }

bool ReplacesItsLike(const v1::CoordinatorMessage& message) {
  return message.has_roster() || message.has_lease_renewed();
}

}  // namespace

bool SessionOutbox::Add(const v1::CoordinatorMessage& message) {
  if (ReplacesItsLike(message)) {
    const auto former = std::ranges::find_if(waiting_, [&](const Waiting& one) {
      return one.message.message_case() == message.message_case();
    });
    if (former != waiting_.end()) {
      bytes_ -= former->bytes;
      waiting_.erase(former);
    }
  }
  const size_t bytes = MemoryOf(message);
  if (bytes > max_bytes_ - std::min(bytes_, max_bytes_)) return false;
  waiting_.push_back({message, bytes});
  bytes_ += bytes;
  return true;
}

void SessionOutbox::AddFirst(v1::CoordinatorMessage message) {
  const size_t bytes = MemoryOf(message);
  waiting_.push_front({std::move(message), bytes});
  bytes_ += bytes;
}

const v1::CoordinatorMessage& SessionOutbox::Take() {
  taken_ = std::move(waiting_.front().message);
  bytes_ -= waiting_.front().bytes;
  waiting_.pop_front();
  return taken_;
}

void SessionOutbox::Clear() {
  waiting_.clear();
  bytes_ = 0;
}

}  // namespace causeway::server
