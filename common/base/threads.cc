#include "common/base/threads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/control_group.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {

absl::StatusOr<int> ThreadsFor(int asked) {
  if (asked < 0 || asked > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("--threads must be in 0 .. ", kMaxThreads,
                                                   " (0: one per core); it is ", asked));
  }
  if (asked > 0) return asked;
  return std::min(UsableCores(ReadControlGroupLimits(*FileSystem::Real())), kMaxThreads);
}

absl::StatusOr<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no thread can be started (", error.code().message(),
        "): raise the limits of processes and memory (ulimit -u, TasksMax, MemoryMax), "
        "or end what uses them up"));
  }
}

absl::Status StartThreads(int count, const std::function<void()>& run,
                          std::vector<std::thread>& threads) {
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(std::thread thread, StartThread(run));
    threads.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

}  // namespace causeway
