#include "server/outer/delta_norm.h"

#include <array>

#include "common/base/status_macros.h"
#include "server/outer/step_kernels.h"

namespace causeway::server {

absl::StatusOr<double> DeltaSquares(const Codec& codec, std::span<const uint8_t> encoded,
                                    std::span<const float> base) {
  std::array<double, kCodecChunk> store = {};
  const std::span<double> delta = std::span(store).first(base.size());
  RETURN_IF_ERROR(codec.Accumulate(encoded, base, 1.0, delta));
  return SumOfSquares(std::span<const double>(delta));
}

}  // namespace causeway::server
