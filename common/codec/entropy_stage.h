// The lossless stage after the codecs: zstd at its fastest level with entropy coding. Codes are not
// equally frequent, which saves 5 to 26 % of them (docs/results.md has what it brings and
// costs).
//
// One piece of bytes makes one frame, which is unpacked without any other.
//
// Thread-safety: all functions may be called by any number of threads.
#ifndef CAUSEWAY_COMMON_CODEC_ENTROPY_STAGE_H_
#define CAUSEWAY_COMMON_CODEC_ENTROPY_STAGE_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway {

// Fills `packed` and returns true if that is smaller by at least 3 %; otherwise `packed` is
// unspecified, and `plain` is what should be sent.
bool EntropyPack(std::span<const uint8_t> plain, std::string& packed);

// Fills `plain`, whose size the caller has checked: nothing else is allocated that depends on
// `packed`. INVALID_ARGUMENT unless `packed` makes just as many bytes; `plain` is then unspecified.
absl::Status EntropyUnpack(absl::string_view packed, std::span<uint8_t> plain);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_ENTROPY_STAGE_H_
