#include "worker/link/connection_tuner.h"

namespace causeway::worker {
namespace {

constexpr int kFirstConnections = 4;
// An object of so many bytes fills a link for some round trips.
constexpr int64_t kSizeable = int64_t{8} << 20;
// On shorter links one connection's window is never what limits.
constexpr absl::Duration kNoticeableRtt = absl::Milliseconds(5);
// One measurement says little: others share the link.
constexpr int kSamples = 3;
constexpr double kWorthwhile = 1.15;

}  // namespace

ConnectionTuner::ConnectionTuner(int connections)
    : connections_(connections > 0 ? connections : kFirstConnections), settled_(connections > 0) {}

void ConnectionTuner::Note(int64_t bytes, absl::Duration time, absl::Duration rtt) {
  if (settled_ || bytes < kSizeable || rtt < kNoticeableRtt || time <= absl::ZeroDuration()) return;
  ++samples_;
  bytes_ += static_cast<double>(bytes);
  seconds_ += absl::ToDoubleSeconds(time);
  if (samples_ < kSamples) return;
  const double goodput = bytes_ / seconds_;
  samples_ = 0;
  bytes_ = 0;
  seconds_ = 0;
  if (baseline_ > 0 && goodput < kWorthwhile * baseline_) {
    connections_ /= 2;
    settled_ = true;
    return;
  }
  baseline_ = goodput;
  settled_ = connections_ == kMaxConnections;
  if (!settled_) connections_ *= 2;
}

}  // namespace causeway::worker
