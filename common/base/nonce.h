// Numbers that the machine draws, for names and processes that must differ: nothing that is trained
// depends on them. What a seed decides is in random.h.
#ifndef CAUSEWAY_COMMON_BASE_NONCE_H_
#define CAUSEWAY_COMMON_BASE_NONCE_H_

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace causeway {

// Never 0.
inline uint64_t RandomNonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device() | 1;
}

// Eight hexadecimal digits.
inline std::string RandomSuffix() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device(), absl::kZeroPad8));
}

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_NONCE_H_
