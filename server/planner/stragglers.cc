#include "server/planner/stragglers.h"

#include <algorithm>
#include <cmath>

#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr double kProbe = 1.25;  // BBR's gain, once in so many round trips.
constexpr double kProbeRoundTrips = 8;

}  // namespace

double StragglerSeconds(double bytes, double bit_per_s, int connections,
                        double round_trip_seconds) {
  constexpr auto chunk_bytes = static_cast<double>(kChunkBytes);
  const double chunks = std::ceil(bytes / chunk_bytes);
  if (connections <= 1 || chunks <= connections || std::isinf(bit_per_s)) return 0;
  const double stragglers = std::fmod(chunks, connections);
  if (stragglers == 0) return 0;
  const double left_bytes = bytes - (chunks - stragglers) * chunk_bytes;
  const double bits = 8 * std::min(left_bytes, chunk_bytes);  // The largest straggling chunk.
  const double share = bit_per_s / connections;
  const double most = connections / stragglers;  // Times its share, when they have the link.
  // The share grows by e in so many seconds.
  const double growth = kProbeRoundTrips * round_trip_seconds / std::log(kProbe);
  const double bits_growing = share * growth * (most - 1);
  const double seconds = bits <= bits_growing
                             ? growth * std::log1p(bits / (share * growth))
                             : growth * std::log(most) + (bits - bits_growing) / (share * most);
  return std::max(0.0, seconds - 8 * left_bytes / bit_per_s);
}

}  // namespace causeway::server
