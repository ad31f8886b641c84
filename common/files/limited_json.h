// JSON from strangers: a size, a depth and unique keys are made sure of before a tree is built.
#ifndef CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_
#define CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace causeway {

struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  int depth = 32;
  int64_t values = 20'000'000;  // Keys included.
};

// INVALID_ARGUMENT for text that is no JSON, goes beyond a limit, or has an object that names a key
// twice. Throws nothing.
absl::StatusOr<nlohmann::json> ParseLimitedJson(absl::string_view text,
                                                const JsonLimits& limits = {});

// The same with `source` in front of its errors; INVALID_ARGUMENT also for anything but an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view source,
                                               const JsonLimits& limits);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_
