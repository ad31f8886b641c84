// JSON that comes from strangers and files, and messages as JSON. Of strangers' a size, a depth and
// unique keys are made sure of before a tree is built.
#pragma once

#include <google/protobuf/message.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

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

// Integers out of JSON that came from a file. nlohmann's own accessors convert whatever number they
// find, which is undefined for a float out of range and silent for an integer too large.
// False, with `out` as it was, unless `value` is an integer (1.0 is none) that T holds.
template <std::integral T>
bool ReadInteger(const nlohmann::json& value, T& out) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (!std::in_range<T>(number)) return false;
    out = static_cast<T>(number);
    return true;
  }
  if (!value.is_number_integer()) return false;
  const auto number = value.get<int64_t>();
  if (!std::in_range<T>(number)) return false;
  out = static_cast<T>(number);
  return true;
}

// A protobuf message as JSON for people's scripts. Unlike protobuf's own JSON form, integers are
// numbers, not text, and hashes are the 16 hexadecimal digits that logs and files show.
// Every field under its name in the .proto, those that are not set with their defaults; enumerators
// by name, fixed64 as hexadecimal text, a message that is not set as null. Numbers that JSON cannot
// say (infinite, not a number) are null.
nlohmann::json MessageToJson(const google::protobuf::Message& message);

// As text, whatever encoding its strings have: a worker may say anything of itself.
std::string JsonText(const nlohmann::json& json, int indent = -1);

}  // namespace causeway
