// Named model shapes and named sets of training and synchronization settings.
#ifndef CAUSEWAY_COMMON_PARAMS_PRESETS_H_
#define CAUSEWAY_COMMON_PARAMS_PRESETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"

namespace causeway {

// Shape fields only. INVALID_ARGUMENT lists the names.
absl::StatusOr<v1::ModelConfig> ModelPreset(absl::string_view name);
std::vector<std::string> ModelPresetNames();

// Train, sync and outer settings. INVALID_ARGUMENT lists the names.
//   paper          Streaming DiLoCo as in 2501.18512: AdamW inside, e3m0 both ways, lr 0.4, mu 0.9
//   best           what measured best here: Muon inside, lm2 both ways, lr 1, no momentum
//   streaming      another name of best
//   diloco         one fragment, no overlap, fp32 both ways (2311.08105)
//   data-parallel  gradients at every step, AdamW at the coordinator, bf16 both ways
absl::StatusOr<v1::RunConfig> RunPreset(absl::string_view name);
std::vector<std::string> RunPresetNames();

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_PRESETS_H_
