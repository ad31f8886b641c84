#include "common/client/connection_tuner.h"

#include <algorithm>
#include <cmath>

namespace causeway {
namespace {

constexpr int kFirstConnections = 4;
// On shorter links one connection's window is never what limits.
constexpr absl::Duration kNoticeableRtt = absl::Milliseconds(5);
// The kernel's own overhead takes about half of a buffer (common/rpc/socket_buffers.h).
constexpr double kPayloadShare = 0.5;
constexpr int64_t kUsualSendBuffer = int64_t{4} << 20;
// Connections do not share the load evenly.
constexpr double kRoom = 1.25;
// One measurement is of so many bytes at least, to fill the link.
constexpr double kMeasuredBytes = 24 << 20;
// Round trips before a measurement, and of one. New connections fill their buffers at once, which
// crosses nothing yet, and are slow at first. The search needs to know what they carry in the end;
// where that only adds more of them later, there is no need to wait for it.
constexpr int kSettlingRoundTrips = 5;
constexpr int kMeasuredRoundTrips = 5;
constexpr int kSettlingRoundTripsOfSearch = 20;
constexpr int kMeasuredRoundTripsOfSearch = 10;
constexpr double kWorthwhile = 1.15;

}  // namespace

ConnectionTuner::ConnectionTuner(int connections)
    : fixed_(connections > 0), connections_(fixed_ ? connections : kFirstConnections) {}

int ConnectionTuner::Needed(double bytes_per_second, const ConnectionTraits& traits) {
  const int64_t buffer = traits.send_buffer_bytes > 0 ? traits.send_buffer_bytes : kUsualSendBuffer;
  const double window = kPayloadShare * static_cast<double>(buffer);
  const double under_way = bytes_per_second * absl::ToDoubleSeconds(traits.rtt);
  return static_cast<int>(std::ceil(std::min(kRoom * under_way / window, 1.0 * kMaxConnections)));
}

void ConnectionTuner::GrowTo(int connections) {
  // Not by more at once: what was seen is of the present number.
  const int next = std::min({connections, 2 * connections_, kMaxConnections});
  if (next <= connections_) return;
  connections_ = next;
  settling_ = absl::ZeroDuration();
}

void ConnectionTuner::Search(double bytes_per_second) {
  if (found_) return;
  if (baseline_ > 0 && bytes_per_second < kWorthwhile * baseline_) {
    connections_ /= 2;
    found_ = true;
    return;
  }
  baseline_ = bytes_per_second;
  found_ = connections_ == kMaxConnections;
  if (!found_) GrowTo(2 * connections_);
}

void ConnectionTuner::Note(int64_t bytes, absl::Duration time, const ConnectionTraits& traits) {
  if (fixed_ || traits.rtt < kNoticeableRtt || time <= absl::ZeroDuration()) return;
  const int settling = traits.paced ? kSettlingRoundTrips : kSettlingRoundTripsOfSearch;
  if (settling_ < settling * traits.rtt) {
    settling_ += time;
    return;
  }
  bytes_ += static_cast<double>(bytes);
  time_ += time;
  const int measured = traits.paced ? kMeasuredRoundTrips : kMeasuredRoundTripsOfSearch;
  if (bytes_ < kMeasuredBytes || time_ < measured * traits.rtt) return;
  const double bytes_per_second = bytes_ / absl::ToDoubleSeconds(time_);
  bytes_ = 0;
  time_ = absl::ZeroDuration();
  if (!traits.paced) Search(bytes_per_second);
  GrowTo(Needed(bytes_per_second, traits));
}

}  // namespace causeway
