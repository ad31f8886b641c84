#include "server/link/coordinator_link.h"

#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

}  // namespace

absl::Status CoordinatorLink::StartFollowing() {
  ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void CoordinatorLink::Run() {
  std::string said;
  do {
    if (stopping()) return;
    const absl::Status end = Follow();
    if (end.ok() || stopping()) return;
    if (!Passes(end)) {
      result_ = end;
      Ended(end);
      ended_ = true;
      return;
    }
    std::string line = Line(end);
    if (line != said) Log().warn("{}", line);
    said = std::move(line);
  } while (!AwaitStop(kPause));
}

absl::Status CoordinatorLink::StopFollowing() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Interrupt();
  if (thread_.joinable()) thread_.join();
  return result_;
}

bool CoordinatorLink::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

bool CoordinatorLink::AwaitStop(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&stopping_), timeout);
}

}  // namespace causeway::server
