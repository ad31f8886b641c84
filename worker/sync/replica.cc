#include "worker/sync/replica.h"

#include <algorithm>

namespace causeway::worker {
namespace {

template <typename T>
std::span<T> Part(std::span<T> arena, const FragmentRange& range) {
  return arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

void HostReplica::CopyParameters(const FragmentRange& range, std::span<float> out) const {
  std::ranges::copy(Part(parameters_, range), out.begin());
}

void HostReplica::CopyGradients(const FragmentRange& range, std::span<float> out) const {
  std::ranges::copy(Part(gradients_, range), out.begin());
}

void HostReplica::Mix(const FragmentRange& range, std::span<const float> published, float alpha) {
  const std::span<float> local = Part(parameters_, range);
  if (alpha == 0) {
    std::ranges::copy(published, local.begin());
    return;
  }
  const float beta = 1.0F - alpha;
  for (size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * published[i];
}

}  // namespace causeway::worker
