// The files of a trace.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {

// Writes values or bytes as they lie in memory (little endian) to folder/name.
template <typename T>
absl::Status WriteTraceFile(const std::string& folder, const std::string& name,
                            std::span<const T> values) {
  ASSIGN_OR_RETURN(const auto file, FileSystem::Real()->Create(JoinPath(folder, name)));
  return file->Append(
      std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()));
}

inline absl::Status WriteTraceText(const std::string& folder, const std::string& name,
                                   absl::string_view text) {
  return WriteTraceFile(folder, name, std::span(text.data(), text.size()));
}

}  // namespace causeway
