#include "worker/commands/device_flag.h"

#include <string>

#include "absl/flags/flag.h"
#include "common/base/status_macros.h"

ABSL_FLAG(std::string, device, "auto",
          "auto|cpu|cuda|cuda:N,...: auto: the GPUs if there are any; bench and eval take one");
ABSL_FLAG(std::string, recompute, "auto",
          "auto|none|norms|block: on GPUs: what a backward pass computes again instead of keeping "
          "it; auto: as little as the memory allows; the results are the same");
ABSL_FLAG(std::string, published, "device",
          "device|host: on GPUs: where the copy of the published parameters lies; host saves 4 "
          "bytes of GPU memory per parameter and costs copies at each synchronization");
ABSL_FLAG(std::string, gradients, "whole",
          "whole|sharded: what each of several GPUs keeps of them; sharded: its share, which saves "
          "up to 4 bytes of memory per parameter and sums every micro-batch over the GPUs instead "
          "of every step");

ABSL_FLAG(std::string, attention, "auto",
          "auto|own|cudnn: on GPUs: who computes it; own: this program's kernels; auto: what the "
          "worker's earlier steps took, or the faster, which is then kept; they round differently");

ABSL_FLAG(std::string, deterministic, "on",
          "on|off: on GPUs: whether a step that is repeated has the same bits; off: attention by "
          "cuDNN may add up in any order, which is faster");

namespace causeway::worker {

absl::StatusOr<DeviceChoice> DevicesFromFlags() {
  ASSIGN_OR_RETURN(DeviceChoice choice, ParseDevices(absl::GetFlag(FLAGS_device)));
  choice.recompute = absl::GetFlag(FLAGS_recompute);
  choice.published_on_device = absl::GetFlag(FLAGS_published) == "device";
  choice.shard_gradients = absl::GetFlag(FLAGS_gradients) == "sharded";
  choice.attention = absl::GetFlag(FLAGS_attention);
  choice.deterministic = absl::GetFlag(FLAGS_deterministic) == "on";
  return choice;
}

}  // namespace causeway::worker
