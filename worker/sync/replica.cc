#include "worker/sync/replica.h"

#include <algorithm>
#include <iterator>

namespace causeway::worker {

bool MirrorsGaps(const Codec& up, const Codec& down) {
  return up.needs_error_feedback() || down.needs_error_feedback();
}

void MirrorIntoGaps(const FragmentPlan& plan, int64_t begin, std::span<const float> base,
                    std::span<float> target, std::span<float> residual) {
  const int64_t end = begin + std::ssize(base);
  for (auto gap = std::ranges::lower_bound(plan.gaps(), begin, {}, &ArenaGap::begin);
       gap != plan.gaps().end() && gap->begin < end; ++gap) {
    for (int64_t i = gap->begin; i < gap->end; ++i) {
      const int64_t mirrored = gap->source + (i - gap->begin) % (gap->begin - gap->source);
      const auto to = static_cast<size_t>(i - begin);
      const auto from = static_cast<size_t>(mirrored - begin);
      target[to] = base[to] - (base[from] - target[from]);
      if (!residual.empty()) residual[to] = residual[from];
    }
  }
}

void MixValues(std::span<const float> published, std::span<const float> held, double keep_in_flight,
               float alpha, std::span<float> local) {
  const float beta = 1.0F - alpha;
  if (!held.empty()) {
    for (size_t i = 0; i < local.size(); ++i) {
      const double in_flight = double{local[i]} - double{held[i]};
      local[i] = static_cast<float>(double{published[i]} + keep_in_flight * in_flight);
    }
  } else if (alpha == 0) {
    std::ranges::copy(published, local.begin());
  } else {
    for (size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * published[i];
  }
}

size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  size_t bytes = 0;
  for (const v1::Codec id : {sync.codec_up(), sync.codec_down()}) {
    const Codec& codec = *FindCodec(id).value();
    for (int i = 0; i < plan.fragments(); ++i) {
      bytes += codec.EncodedBytes(static_cast<size_t>(plan.range(i).size()));
    }
  }
  return bytes;
}

}  // namespace causeway::worker
