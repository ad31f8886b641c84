// How far a contribution would move its fragment.
#ifndef CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_
#define CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/codec/codec.h"

namespace causeway::server {

// The Euclidean norm of the decoded delta, summed in double in order of position: the same bits
// everywhere. `base` as in Codec::Accumulate, whose errors are these; against_zeros: it says only
// how many values there are, and the delta was encoded against zeros. One pass, 32 KiB of memory.
absl::StatusOr<double> DeltaNorm(const Codec& codec, std::span<const uint8_t> encoded,
                                 std::span<const float> base, bool against_zeros = false);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_
