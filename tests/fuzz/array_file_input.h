// Array files (common/files/array_file.h) from a fuzzer's bytes, so made that most of them get past
// the preamble and the checksum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/files/array_file.h"

namespace causeway::fuzz {

// The first byte has options, the rest is
//
//   usually     the header's JSON up to the first zero byte, then what the arrays hold, repeated as
//               often as the header asks for (up to kMaxArrayBytes) unless kBodyAsItIs
//   kWhole      the file itself; with kSeal its last 8 bytes become its checksum
enum ArrayFileOptions : uint8_t { kWhole = 1, kSeal = 2, kBodyAsItIs = 4 };
inline constexpr size_t kMaxArrayBytes = 1 << 16;

std::vector<uint8_t> ArrayFileFromInput(std::span<const uint8_t> input, const ArrayFileKind& kind,
                                        uint32_t version);

}  // namespace causeway::fuzz
