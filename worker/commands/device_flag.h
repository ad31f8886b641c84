// --device and what belongs to it.
#ifndef CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_
#define CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_

#include "absl/status/statusor.h"
#include "worker/run/device_choice.h"

namespace causeway::worker {

// Takes --device, --recompute, --published, --gradients, --attention and --deterministic.
absl::StatusOr<DeviceChoice> DevicesFromFlags();

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_DEVICE_FLAG_H_
