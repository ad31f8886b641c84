#include "tests/wan/link_direction.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace causeway::wan {
namespace {

constexpr int64_t kLateNs = 1'000'000;

void Add(SegmentCount& to, int64_t packets, int64_t bytes) {
  to.packets += packets;
  to.bytes += bytes;
}

}  // namespace

int64_t DirectionSettings::QueueBytes() const {
  if (queue_bytes > 0) return queue_bytes;
  const double seconds = 2 * static_cast<double>(delay_ns) / kNsPerSecond;
  return std::max(kLeastQueueBytes, static_cast<int64_t>(rate_bits_per_s / 8 * seconds));
}

bool LinkDirection::LoseNext() {
  if (settings_.loss <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < settings_.loss;
}

int64_t LinkDirection::DepartureNs(const Burst& burst) const {
  const double ns = static_cast<double>(burst.bytes) * 8 * kNsPerSecond / settings_.rate_bits_per_s;
  return std::max(burst.time_ns, transmitter_free_ns_) + static_cast<int64_t>(std::llround(ns));
}

void LinkDirection::Arrive(int64_t now_ns, const FrameLayout& layout,
                           std::span<const uint8_t> frame) {
  Transmit(now_ns);
  const int64_t room = settings_.QueueBytes();
  const double burst_bytes = settings_.rate_bits_per_s / 8 * (kBurstNs / kNsPerSecond);
  int first = 0;  // First of the segments that wait here to be queued together.
  int64_t bytes = 0;
  const auto enqueue = [&](int end) {
    if (end > first) {
      queue_.push_back(
          {CutSegments(layout, frame, first, end - first), end - first, bytes, now_ns});
    }
    first = end;
    bytes = 0;
  };
  for (int i = 0; i < layout.segments; ++i) {
    const int64_t segment = layout.WireBytes(i);
    counters_.arrived.Add(segment);
    if (queued_bytes_ + segment > room) {
      enqueue(i);
      first = i + 1;
      counters_.dropped_by_queue.Add(segment);
      continue;
    }
    queued_bytes_ += segment;
    counters_.largest_queue_bytes = std::max(counters_.largest_queue_bytes, queued_bytes_);
    if (LoseNext()) {
      enqueue(i);
      first = i + 1;
      queue_.push_back({{}, 1, segment, now_ns});
      continue;
    }
    if (static_cast<double>(bytes + segment) > burst_bytes) enqueue(i);
    bytes += segment;
  }
  enqueue(layout.segments);
}

void LinkDirection::Transmit(int64_t now_ns) {
  while (!queue_.empty()) {
    const int64_t departure = DepartureNs(queue_.front());
    if (departure > now_ns) return;
    transmitter_free_ns_ = departure;
    Burst burst = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= burst.bytes;
    if (burst.frame.empty()) {
      Add(counters_.lost, burst.segments, burst.bytes);
      continue;
    }
    burst.time_ns = departure + settings_.delay_ns;
    if (!wire_.empty()) burst.time_ns = std::max(burst.time_ns, wire_.back().time_ns);
    wire_.push_back(std::move(burst));
  }
}

void LinkDirection::Advance(int64_t now_ns,
                            absl::FunctionRef<void(std::span<const uint8_t>)> deliver) {
  Transmit(now_ns);
  while (!wire_.empty() && wire_.front().time_ns <= now_ns) {
    const Burst burst = std::move(wire_.front());
    wire_.pop_front();
    if (burst.time_ns < cut_until_ns_) {
      Add(counters_.cut, burst.segments, burst.bytes);
      continue;
    }
    const int64_t late_ns = now_ns - burst.time_ns;
    counters_.latest_ns = std::max(counters_.latest_ns, late_ns);
    if (late_ns > kLateNs) counters_.late_bytes += burst.bytes;
    Add(counters_.delivered, burst.segments, burst.bytes);
    const auto bin = static_cast<size_t>(std::max<int64_t>(0, burst.time_ns) / kTimelineBinNs);
    if (timeline_.size() <= bin) timeline_.resize(bin + 1);
    timeline_[bin] += burst.bytes;
    deliver(burst.frame);
  }
}

int64_t LinkDirection::NextEventNs() const {
  int64_t next = kForever;
  if (!queue_.empty()) next = DepartureNs(queue_.front());
  // A packet that departs arrives later than those on the wire already.
  if (!wire_.empty()) next = std::min(next, wire_.front().time_ns);
  return next;
}

void LinkDirection::Clear() {
  for (std::deque<Burst>* const bursts : {&queue_, &wire_}) {
    for (const Burst& burst : *bursts) Add(counters_.cut, burst.segments, burst.bytes);
    bursts->clear();
  }
  queued_bytes_ = 0;
}

}  // namespace causeway::wan
