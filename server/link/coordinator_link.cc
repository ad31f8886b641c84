#include "server/link/coordinator_link.h"

#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"

namespace causeway::server {

absl::Status KeepTrying(const Retry& retry, absl::FunctionRef<absl::Status()> attempt) {
  std::string said;
  for (;;) {
    absl::Status status = attempt();
    if (status.ok() || !retry.passes(status) || absl::Now() >= retry.give_up) return status;
    std::string line = retry.line(status);
    if (line != said) Log().warn("{}", line);
    said = std::move(line);
    if (retry.wait(retry.pause)) return absl::CancelledError("stopped before an answer came");
  }
}

absl::Status CoordinatorLink::StartFollowing() {
  ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void CoordinatorLink::Run() {
  const absl::Status end =
      KeepTrying({.wait = [this](absl::Duration pause) { return AwaitStop(pause); },
                  .passes = [this](const absl::Status& error) { return Passes(error); },
                  .line = [this](const absl::Status& why) { return Line(why); }},
                 [this] {
                   const absl::Status broken = stopping() ? absl::OkStatus() : Follow();
                   return stopping() ? absl::OkStatus() : broken;
                 });
  if (end.ok() || stopping()) return;
  result_ = end;
  Ended(end);
  ended_ = true;
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
