// One direction of a long link: a drop-tail queue, a transmitter of a fixed rate, a wire of a fixed
// delay on which segments are lost by chance or because it is cut.
//
//   arrival -> queue (drops what does not fit) -> transmitter (rate) -> wire (loss, delay, cuts)
//
// Everything is accounted per segment (wire_packet.h): the queue drops, the transmitter sends and
// the wire loses packets as they would be on a real link. A segment that is lost has taken its time
// on the transmitter. To be fast, segments of one frame that follow each other travel together as
// long as that is less than kBurst on the transmitter; such a burst arrives with its last bit.
//
// Time is an argument, nanoseconds from any beginning.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/wan/wire_packet.h"

namespace causeway::wan {

inline constexpr int64_t kForever = INT64_MAX;
inline constexpr double kNsPerSecond = 1e9;
inline constexpr int64_t kBurstNs = 250'000;
inline constexpr int64_t kTimelineBinNs = 100'000'000;
// The queue holds so much at least: one burst of segmentation offload.
inline constexpr int64_t kLeastQueueBytes = 64 << 10;

struct DirectionSettings {
  double rate_bits_per_s = 1e9;  // IP packets, headers included.
  int64_t delay_ns = 0;          // One way.
  double loss = 0;               // Probability that a segment is lost, 0 .. 1.
  int64_t queue_bytes = 0;       // 0: the rate over twice the delay.

  int64_t QueueBytes() const;
};

// Segments and their bytes.
struct SegmentCount {
  int64_t packets = 0;
  int64_t bytes = 0;

  void Add(int64_t of_bytes) {
    ++packets;
    bytes += of_bytes;
  }
};

struct DirectionCounters {
  // arrived = dropped_by_queue + lost + cut + delivered + what is under way.
  SegmentCount arrived;
  SegmentCount dropped_by_queue;
  SegmentCount lost;  // By chance.
  SegmentCount cut;   // Would have arrived while the link was cut.
  SegmentCount delivered;
  int64_t largest_queue_bytes = 0;
  // How far the caller lagged behind: bytes handed over more than a millisecond late, and the most.
  int64_t late_bytes = 0;
  int64_t latest_ns = 0;
};

// Not thread-safe.
class LinkDirection {
 public:
  LinkDirection(const DirectionSettings& settings, uint64_t seed)
      : settings_(settings), random_(seed) {}

  // A frame enters the queue, or as much of it as fits.
  void Arrive(int64_t now_ns, const FrameLayout& layout, std::span<const uint8_t> frame);
  // Hands over, in order, all that reaches the far end by now.
  void Advance(int64_t now_ns, absl::FunctionRef<void(std::span<const uint8_t>)> deliver);
  // When Advance is due next; kForever if nothing is under way.
  int64_t NextEventNs() const;

  // Counts for what the transmitter has not begun yet; a shorter delay does not let segments
  // overtake each other.
  void Change(const DirectionSettings& settings) { settings_ = settings; }
  // Nothing arrives at the far end before that time.
  void CutUntil(int64_t until_ns) { cut_until_ns_ = until_ns; }
  // Forgets what is under way; it counts as cut.
  void Clear();

  const DirectionSettings& settings() const { return settings_; }
  const DirectionCounters& counters() const { return counters_; }
  // Bytes that reached the far end in every kTimelineBinNs since time 0.
  const std::vector<int64_t>& timeline() const { return timeline_; }

 private:
  struct Burst {
    std::vector<uint8_t> frame;  // Empty: lost.
    int segments = 0;
    int64_t bytes = 0;
    int64_t time_ns = 0;  // Time of arrival in the queue, then at the far end.
  };

  void Transmit(int64_t now_ns);
  int64_t DepartureNs(const Burst& burst) const;
  bool LoseNext();

  DirectionSettings settings_;
  std::mt19937_64 random_;
  std::deque<Burst> queue_;  // The first is being transmitted.
  std::deque<Burst> wire_;
  int64_t queued_bytes_ = 0;
  int64_t transmitter_free_ns_ = 0;
  int64_t cut_until_ns_ = INT64_MIN;
  DirectionCounters counters_;
  std::vector<int64_t> timeline_;
};

}  // namespace causeway::wan
