// How fields of the configuration are refused: each message names the field, what it must be and
// what it is.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace causeway {

inline absl::Status Bad(absl::string_view field, absl::string_view must, absl::string_view is) {
  return absl::InvalidArgumentError(absl::StrCat(field, " must be ", must, "; it is ", is));
}

template <typename T>
absl::Status CheckRange(absl::string_view field, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();  // False for NaN.
  return Bad(field, absl::StrCat("in ", low, " .. ", high), absl::StrCat(value));
}

}  // namespace causeway
