#include "common/params/initialize.h"

#include <algorithm>

#include "common/base/checksum.h"
#include "common/base/random.h"

namespace causeway {

void InitializeParameters(const FragmentPlan& plan, uint64_t seed, std::span<float> arena) {
  std::fill(arena.begin(), arena.end(), 0.0F);
  for (const PlacedTensor& tensor : plan.tensors()) {
    const auto values =
        arena.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.info.size()));
    if (tensor.info.initial_stddev == 0) {
      std::fill(values.begin(), values.end(), tensor.info.role == TensorRole::kBias ? 0.0F : 1.0F);
      continue;
    }
    const uint64_t stream = Checksum64(tensor.info.name);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(tensor.info.initial_stddev * RandomNormal(seed, stream, i));
    }
  }
}

}  // namespace causeway
