// Integers out of JSON that came from a file. nlohmann's own accessors convert whatever number they
// find, which is undefined for a float out of range and silent for an integer too large.
#ifndef CAUSEWAY_COMMON_FILES_JSON_INTEGER_H_
#define CAUSEWAY_COMMON_FILES_JSON_INTEGER_H_

#include <concepts>
#include <cstdint>
#include <utility>

#include "nlohmann/json.hpp"

namespace causeway {

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_JSON_INTEGER_H_
