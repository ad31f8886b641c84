// The runs that the oracle re-computes: small models, every codec, both ways of cutting fragments
// at odd sizes, answers that stay out longer than the interval between two sends.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"

namespace causeway {

std::vector<std::string> TraceConfigurationNames();

// Complete. INVALID_ARGUMENT lists the names.
absl::StatusOr<v1::RunConfig> TraceConfiguration(absl::string_view name);

}  // namespace causeway
