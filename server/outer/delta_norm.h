// How far a contribution would move its fragment.
#ifndef CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_
#define CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/codec/codec.h"

namespace causeway::server {

// The sum of squares of one codec chunk of a delta, decoded, in double and in one order: the same
// bits everywhere. `base` as in Codec::Accumulate, at most kCodecChunk values; the errors are its,
// too. A delta's norm is the root of the sum over its chunks, in order.
absl::StatusOr<double> DeltaSquares(const Codec& codec, std::span<const uint8_t> encoded,
                                    std::span<const float> base);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_DELTA_NORM_H_
