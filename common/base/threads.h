// How many threads a command may ask for, and starting them where the machine may have no more.
#ifndef CAUSEWAY_COMMON_BASE_THREADS_H_
#define CAUSEWAY_COMMON_BASE_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway {

// More would be a slip of the keyboard, and could use up the threads of the whole machine.
inline constexpr int kMaxThreads = 1024;

// Resolves --threads=`asked`: 0 is one per core that may be used (control_group.h).
// INVALID_ARGUMENT outside of 0 .. kMaxThreads.
absl::StatusOr<int> ThreadsFor(int asked);

// std::thread without its exception. RESOURCE_EXHAUSTED if the machine or a limit has no more.
absl::StatusOr<std::thread> StartThread(std::function<void()> run);

// Adds `count` threads that each call run(). After an error `threads` has those that were started:
// the caller ends and joins them.
absl::Status StartThreads(int count, const std::function<void()>& run,
                          std::vector<std::thread>& threads);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_THREADS_H_
