// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status and absl::StatusOr.
//
//   RETURN_IF_ERROR(file->Sync());
//   ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define CAUSEWAY_CONCAT_INNER(a, b) a##b
#define CAUSEWAY_CONCAT(a, b) CAUSEWAY_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                    \
  do {                                                 \
    absl::Status causeway_status = (expression);       \
    if (!causeway_status.ok()) return causeway_status; \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression) \
  CAUSEWAY_ASSIGN_OR_RETURN(CAUSEWAY_CONCAT(causeway_or_, __LINE__), declaration, expression)
#define CAUSEWAY_ASSIGN_OR_RETURN(temporary, declaration, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return std::move(temporary).status();          \
  declaration = std::move(temporary).value()

namespace causeway {

// The same status with "context: " before its message; OK stays OK. Payloads are kept.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

// Ends the program for an error of the programmer. Never for what a user can get wrong: that is a
// Status.
[[noreturn]] inline void Fatal(const std::string& message) {
  std::fprintf(stderr, "fatal: %s\n", message.c_str());
  std::abort();
}

}  // namespace causeway
