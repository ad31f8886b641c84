#include "common/client/link.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr int kFirstConnections = 4;
// On shorter links one connection's window is never what limits.
constexpr absl::Duration kNoticeableRtt = absl::Milliseconds(5);
// The kernel's own overhead takes about half of a buffer (common/rpc/tcp_links.h).
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

namespace {

// Weight of the newest object in the smoothed rate.
constexpr double kNewest = 0.25;
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
      ways_{Way{.tuner = ConnectionTuner(options_.connections)},
            Way{.tuner = ConnectionTuner(options_.connections)}} {}

int Link::LanesWorthHaving() const {
  return std::max(ways_[0].tuner.connections(), ways_[1].tuner.connections());
}

int Link::connections() const {
  absl::MutexLock lock(&mutex_);
  return LanesWorthHaving();
}

int64_t Link::bytes(Direction direction) const {
  absl::MutexLock lock(&mutex_);
  return ways_[static_cast<size_t>(direction)].bytes;
}

void Link::OnChunk(bool sent, int64_t bytes, bool again) {
  absl::MutexLock lock(&mutex_);
  way(sent).bytes += bytes;
  way(sent).sample_bytes += bytes;
  if (again) ++resent_chunks_;
}

void Link::OnResume() {
  absl::MutexLock lock(&mutex_);
  ++resumes_;
}

void Link::OnFlow(bool sent) {
  absl::MutexLock lock(&mutex_);
  Way& of = way(sent);
  if (of.under_way++ == 0) of.busy_since = options_.clock->Monotonic();
}

void Link::OnEnd(bool sent, bool whole) {
  int64_t bytes = 0;
  absl::Duration time;
  {
    absl::MutexLock lock(&mutex_);
    Way& of = way(sent);
    const absl::Duration now = options_.clock->Monotonic();
    of.sample_time += now - of.busy_since;
    of.busy_since = now;
    --of.under_way;
    if (whole) {
      bytes = std::exchange(of.sample_bytes, 0);
      time = std::exchange(of.sample_time, absl::ZeroDuration());
      if (bytes > 0 && time > absl::ZeroDuration()) {
        const double rate = static_cast<double>(bytes) / absl::ToDoubleSeconds(time);
        of.goodput = of.goodput == 0 ? rate : (1 - kNewest) * of.goodput + kNewest * rate;
      }
    }
  }
  Refresh();  // Its time is not the transfer's.
  if (!whole) return;
  absl::MutexLock lock(&mutex_);
  ConnectionTuner& tuner = way(sent).tuner;
  const int before = tuner.connections();
  tuner.Note(bytes, time,
             {.rtt = tcp_.min_rtt,
              .send_buffer_bytes = options_.send_buffer_bytes,
              .paced = absl::StrContains(tcp_.congestion_control, "bbr")});
  if (tuner.connections() != before) {
    Log().info("from now on {} connections carry what goes {}, instead of {}", tuner.connections(),
               sent ? "up" : "down", before);
  }
}

void Link::OnBlocked(bool blocked) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  // Reports of two threads may come in the other order.
  if (blocked == blocked_since_.has_value()) return;
  if (blocked) {
    blocked_since_ = now;
  } else {
    blocked_ += now - *std::exchange(blocked_since_, std::nullopt);
  }
}

void Link::OnTrouble(const std::string& what, const absl::Status& why) {
  if (IsRenewal(why)) return;  // Said once, by the files.
  Log().warn("{}: trying again after: {}", what, std::string(why.message()));
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
  const int connections = ways_[way].tuner.connections();
  const double turn = static_cast<double>(kChunkBytes) * connections / static_cast<double>(bytes);
  return limit + std::min(kUnfairness * turn * time, kLongestTurn);
}

void Link::Refresh() {
  absl::MutexLock asking(&asking_);
  const absl::Duration now = options_.clock->Monotonic();
  if (!options_.tcp || now - refreshed_ < kRefreshInterval) return;
  refreshed_ = now;
  TcpLink tcp = options_.tcp();  // Takes a while: no chunk waits for it.
  absl::MutexLock lock(&mutex_);
  tcp_ = std::move(tcp);
  carried_.push_back({now, {tcp_.sent_bytes, tcp_.received_bytes}});
  while (carried_.size() > 2 && carried_[1].at <= now - options_.stalled_after) {
    carried_.pop_front();
  }
}

v1::LinkReport Link::Report() {
  Refresh();
  v1::LinkReport report;
  absl::MutexLock lock(&mutex_);
  report.set_goodput_up_bytes_per_second(ways_[0].goodput);
  report.set_goodput_down_bytes_per_second(ways_[1].goodput);
  report.set_resent_chunks(resent_chunks_);
  report.set_resumes(resumes_);
  report.set_send_blocked_seconds(absl::ToDoubleSeconds(blocked_));
  report.set_rtt_seconds(absl::ToDoubleSeconds(tcp_.min_rtt));
  report.set_retransmitted_segments(tcp_.retransmitted_segments);
  report.set_connections(LanesWorthHaving());
  return report;
}

}  // namespace causeway
