// `causewayctl export`: a run's published parameters as a folder of Hugging Face's, while it
// trains.
#ifndef CAUSEWAY_SERVER_CTL_EXPORT_COMMAND_H_
#define CAUSEWAY_SERVER_CTL_EXPORT_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/ctl/run_admin.h"

namespace causeway::server {

// Refuses what the flags ask for before anything is fetched. INVALID_ARGUMENT and
// FAILED_PRECONDITION (the folder holds a model).
absl::Status CheckExportFlags();

// Fetches and writes, and returns what is to be printed. The flags have been checked.
absl::StatusOr<std::string> ExportCommand(RunAdmin& run, bool json);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_EXPORT_COMMAND_H_
