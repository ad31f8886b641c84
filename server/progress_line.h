// Says what a run does, in one line for the log.
#ifndef CAUSEWAY_SERVER_PROGRESS_LINE_H_
#define CAUSEWAY_SERVER_PROGRESS_LINE_H_

#include <string>

#include "causeway/v1/admin.pb.h"

namespace causeway::server {

// "step 40 of 100, 2 workers, 5120 tokens/s, 8 rounds, 1.2 MB up, 1.2 MB down; waiting for b ..."
std::string ProgressLine(const v1::RunStatus& status);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PROGRESS_LINE_H_
