// The files of a trace; arrays that are awkward to encode, and what the real codecs make of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

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

// Writes into `folder`, which exists, codecs.json, a list of cases {codec, name, values, bytes,
// feedback}, and cases.bin, which has of each case, one after the other:
//
//   base, target, residual (f32)   what goes in (a residual only where there is feedback)
//   encoded, left_out (f32)        what Encode makes of it (left_out: the new residual)
//   decoded (f64)                  what Accumulate adds with weight 1
//   applied (f32)                  what Apply makes of the base
absl::Status WriteCodecCases(const std::string& folder);

}  // namespace causeway
