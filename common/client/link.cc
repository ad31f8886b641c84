#include "common/client/link.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr absl::Duration kRefreshInterval = absl::Seconds(1);
constexpr int kStalledRoundTrips = 3;
// A link that carried less while a stream stood still is taken for silent.
constexpr int64_t kSpeakingBytes = 64 << 10;
// Connections do not share a link evenly.
constexpr double kUnfairness = 3;
constexpr absl::Duration kLongestTurn = absl::Minutes(10);

}  // namespace

Link::Link(Options options)
    : options_(std::move(options)),
      meter_(options_.clock),
      channels_(kMaxConnections),
      generation_(options_.generation()),
      up_(options_.connections),
      down_(options_.connections) {}

std::shared_ptr<grpc::Channel> Link::channel(int lane) {
  const int64_t generation = options_.generation();
  std::vector<std::shared_ptr<grpc::Channel>> former(kMaxConnections);  // Outlives the lock.
  absl::MutexLock lock(&mutex_);
  if (std::exchange(generation_, generation) != generation) channels_.swap(former);
  std::shared_ptr<grpc::Channel>& channel = channels_[static_cast<size_t>(lane)];
  if (channel == nullptr) channel = options_.make_channel(lane);
  return channel;
}

int Link::connections() const {
  absl::MutexLock lock(&mutex_);
  return std::max(up_.connections(), down_.connections());
}

void Link::EndObject(Direction direction, bool whole) {
  const LinkMeter::Sample sample = meter_.End(direction, whole);
  Refresh();
  absl::MutexLock lock(&mutex_);
  ConnectionTuner& tuner = direction == Direction::kUp ? up_ : down_;
  const int before = tuner.connections();
  tuner.Note(sample.bytes, sample.time,
             {.rtt = tcp_.min_rtt,
              .send_buffer_bytes = options_.send_buffer_bytes,
              .paced = absl::StrContains(tcp_.congestion_control, "bbr")});
  if (tuner.connections() != before) {
    Log().info("from now on {} connections carry what goes {}, instead of {}", tuner.connections(),
               direction == Direction::kUp ? "up" : "down", before);
  }
}

absl::Duration Link::stall_limit(Direction direction) const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration limit = options_.stalled_after + kStalledRoundTrips * tcp_.rtt;
  if (carried_.size() < 2) return limit;
  const auto way = static_cast<size_t>(direction);
  const int64_t bytes = carried_.back().bytes[way] - carried_.front().bytes[way];
  const absl::Duration time = carried_.back().at - carried_.front().at;
  // Not what keepalive and heartbeats come to.
  if (bytes < kSpeakingBytes || time <= absl::ZeroDuration()) return limit;
  const int connections = (direction == Direction::kUp ? up_ : down_).connections();
  const double turn = static_cast<double>(kChunkBytes) * connections / static_cast<double>(bytes);
  return limit + std::min(kUnfairness * turn * time, kLongestTurn);
}

void Link::Refresh() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  if (!options_.tcp || now - refreshed_ < kRefreshInterval) return;
  refreshed_ = now;
  tcp_ = options_.tcp();
  carried_.push_back({now, {tcp_.sent_bytes, tcp_.received_bytes}});
  while (carried_.size() > 2 && carried_[1].at <= now - options_.stalled_after) {
    carried_.pop_front();
  }
}

v1::LinkReport Link::Report() {
  Refresh();
  v1::LinkReport report;
  meter_.Report(report);
  absl::MutexLock lock(&mutex_);
  report.set_rtt_seconds(absl::ToDoubleSeconds(tcp_.min_rtt));
  report.set_retransmitted_segments(tcp_.retransmitted_segments);
  report.set_connections(std::max(up_.connections(), down_.connections()));
  return report;
}

}  // namespace causeway
