// --device and what belongs to it.
#ifndef CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_
#define CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/open/device_choice.h"

namespace causeway::worker {

// Takes --device, --recompute, --published, --gradients, --attention and --deterministic.
absl::StatusOr<DeviceChoice> DevicesFromFlags();

// INVALID_ARGUMENT if --device asks for a GPU of a command that computes on the CPU alone.
absl::Status RefuseGpus(absl::string_view command);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_
