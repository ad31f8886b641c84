// A JSON object out of a file that anybody may have written.
#ifndef CAUSEWAY_COMMON_FILES_JSON_OBJECT_H_
#define CAUSEWAY_COMMON_FILES_JSON_OBJECT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/files/limited_json.h"
#include "nlohmann/json.hpp"

namespace causeway {

// As ParseLimitedJson, with `source` in front of its errors; INVALID_ARGUMENT also for anything but
// an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view source,
                                               const JsonLimits& limits);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_JSON_OBJECT_H_
