// What a run does, in one line for the log.
#ifndef CAUSEWAY_SERVER_PROGRESS_LINE_H_
#define CAUSEWAY_SERVER_PROGRESS_LINE_H_

#include <string>

#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"

namespace causeway::server {

// Between two lines of a process, and between two looks at whether it is to stop.
inline constexpr absl::Duration kProgressLineInterval = absl::Seconds(5);
inline constexpr absl::Duration kStopPoll = absl::Milliseconds(200);

// "step 40 of 100, 2 workers, 5120 tokens/s, 8 rounds, 1.2 MB up, 1.2 MB down; waiting for b ..."
std::string ProgressLine(const v1::RunStatus& status);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PROGRESS_LINE_H_
