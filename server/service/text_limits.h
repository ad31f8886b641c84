// How long a text for people may be that a peer sends: it lands in logs, events and summaries.
#ifndef CAUSEWAY_SERVER_SERVICE_TEXT_LIMITS_H_
#define CAUSEWAY_SERVER_SERVICE_TEXT_LIMITS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace causeway::server {

inline constexpr size_t kMaxTextBytes = 1024;

inline absl::Status CheckLength(absl::string_view what, absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", text.size(), " bytes, at most ", kMaxTextBytes, " are taken"));
}

// For what must not fail because it is long: the last words of a worker.
inline void ShortenText(std::string& text) {
  if (text.size() > kMaxTextBytes) text.resize(kMaxTextBytes);
}

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_TEXT_LIMITS_H_
