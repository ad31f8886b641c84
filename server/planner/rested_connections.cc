#include "server/planner/rested_connections.h"

#include <algorithm>
#include <cmath>

#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr double kSegmentBytes = 1448;
constexpr double kSentAtOnce = 1.5;  // Segments: the first, and half of the pause after it.
constexpr double kGain = 2.86;       // 2.89, and a hundredth less (tcp_bbr.c, bbr_high_gain).
constexpr double kFirstWindow = 10;  // Segments per round trip that it takes a new link to deliver.

}  // namespace

double RestedSeconds(double bytes, double bit_per_s, int connections, double round_trip_seconds) {
  if (connections < 1 || std::isinf(bit_per_s)) return 0;
  const double chunks = std::ceil(bytes / static_cast<double>(kChunkBytes));
  const double segments = bytes / std::min<double>(chunks, connections) / kSegmentBytes;
  const double paced = segments - kSentAtOnce;
  if (paced <= 0) return 0;
  // In round trips: at the rate of a new connection, and at the gain times `segments` in (1 +
  // that).
  const double at_first = paced / (kGain * kFirstWindow);
  const double at_length = paced / (kGain * segments - paced);
  return std::max(0.0, std::min(at_first, at_length) * round_trip_seconds - 8 * bytes / bit_per_s);
}

}  // namespace causeway::server
