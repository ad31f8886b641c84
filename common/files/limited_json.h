// JSON from strangers: a size, a depth and unique keys are made sure of before a tree is built.
#ifndef CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_
#define CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>

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

// Says what is wrong with JSON of `size` bytes: of a parser's report that byte `position`
// (from 1), at the end of `token`, cannot stand there.
std::string DescribeJsonError(size_t size, size_t position, absl::string_view token);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_LIMITED_JSON_H_
