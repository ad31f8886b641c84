#include "common/base/random.h"

#include "absl/base/macros.h"

namespace causeway {

uint64_t RandomPermutation(uint64_t seed, uint64_t stream, uint64_t size, uint64_t index) {
  ABSL_ASSERT(index < size);
  const int half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  if (half_bits == 0) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = RandomBits(seed, stream, (right << 3) | round) & mask;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= size);
  return value;
}

}  // namespace causeway
