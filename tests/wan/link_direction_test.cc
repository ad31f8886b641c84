#include "tests/wan/link_direction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

namespace causeway::wan {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint32_t kMss = 1448;
constexpr int64_t kRateMbit = 100;
// Time of a full segment at that rate.
constexpr int64_t kSegmentNs = 1500 * 8 * 1000 / kRateMbit;

void Put16(uint8_t* to, size_t value) {
  to[0] = static_cast<uint8_t>(value >> 8);
  to[1] = static_cast<uint8_t>(value);
}

// A frame of TCP over IPv4 as a TUN device would hand it over: virtio_net_hdr, IP, TCP with
// timestamps, and a payload of full segments.
std::vector<uint8_t> MakeTcpFrame(uint32_t sequence, size_t payload_bytes) {
  std::vector<uint8_t> frame(10 + 20 + 32 + payload_bytes);
  frame[0] = 1;  // The checksum is to be finished.
  frame[1] = 1;  // To be segmented as TCP over IPv4.
  const uint16_t segment_payload = kMss;
  std::memcpy(&frame[4], &segment_payload, sizeof(segment_payload));
  uint8_t* const ip = frame.data() + 10;
  ip[0] = 0x45;
  Put16(ip + 2, frame.size() - 10);
  Put16(ip + 6, 0x4000);  // Not to be fragmented.
  ip[8] = 64;
  ip[9] = 6;
  uint8_t* const tcp = ip + 20;
  Put16(tcp + 4, sequence >> 16);
  Put16(tcp + 6, sequence & 0xffff);
  tcp[12] = 32 / 4 << 4;
  tcp[13] = 0x18;  // ACK and PSH.
  return frame;
}

// A direction in virtual time, with a sender of numbered bytes.
class Wire {
 public:
  explicit Wire(const DirectionSettings& settings, uint64_t seed = 1) : link(settings, seed) {}

  // One frame of so many full segments.
  void Send(int64_t now_ns, int segments) {
    const size_t payload = static_cast<size_t>(segments) * kMss;
    const auto frame = MakeTcpFrame(sent, payload);
    sent += static_cast<uint32_t>(payload);
    link.Arrive(now_ns, ParseFrame(frame).value(), frame);
  }

  // Lets everything happen at exactly its time until then.
  void RunUntil(int64_t end_ns) {
    for (int64_t next; (next = link.NextEventNs()) <= end_ns;) RunAt(next);
    RunAt(end_ns);
  }

  void RunAt(int64_t now_ns) {
    link.Advance(now_ns, [&](std::span<const uint8_t> frame) {
      const FrameLayout layout = ParseFrame(frame).value();
      for (int i = 0; i < layout.segments; ++i) {
        const auto segment = layout.tcp->sequence + static_cast<uint32_t>(i) * kMss;
        order.push_back(segment);
        arrived_ns[segment] = now_ns;
      }
    });
  }

  void ExpectAccountsToBalance() const {
    const DirectionCounters& counted = link.counters();
    EXPECT_EQ(counted.arrived.packets, counted.delivered.packets + counted.lost.packets +
                                           counted.dropped_by_queue.packets + counted.cut.packets);
    EXPECT_EQ(counted.arrived.bytes, counted.delivered.bytes + counted.lost.bytes +
                                         counted.dropped_by_queue.bytes + counted.cut.bytes);
  }

  LinkDirection link;
  uint32_t sent = 0;
  std::vector<uint32_t> order;
  std::map<uint32_t, int64_t> arrived_ns;
};

DirectionSettings Settings(int64_t delay_ms, int64_t queue_bytes = 100 << 20) {
  return {
      .rate_bits_per_s = kRateMbit * 1e6, .delay_ns = delay_ms * kMs, .queue_bytes = queue_bytes};
}

TEST(LinkDirectionTest, SegmentsArriveAtTheRateAfterTheDelay) {
  Wire wire(Settings(50));
  for (int i = 0; i < 100; ++i) wire.Send(0, 40);
  wire.RunUntil(1000 * kMs);
  ASSERT_EQ(wire.order.size(), 4000U);
  EXPECT_TRUE(std::ranges::is_sorted(wire.order));
  for (uint32_t i = 0; i < 4000; ++i) {
    const int64_t exact = 50 * kMs + (i + 1) * kSegmentNs;
    const int64_t arrival = wire.arrived_ns[i * kMss];
    EXPECT_GE(arrival, exact);
    EXPECT_LE(arrival, exact + kBurstNs) << "segments that arrive together";
  }
  EXPECT_EQ(wire.link.timeline()[0] + wire.link.timeline()[1] + wire.link.timeline()[2] +
                wire.link.timeline()[3] + wire.link.timeline()[4] + wire.link.timeline()[5],
            4000 * 1500);
  wire.ExpectAccountsToBalance();
}

TEST(LinkDirectionTest, CallerThatComesLateChangesNoRateAndIsToldSo) {
  Wire wire(Settings(50));
  for (int i = 0; i < 10; ++i) wire.Send(0, 40);
  wire.RunAt(50 * kMs + 400 * kSegmentNs + 5 * kMs);
  EXPECT_EQ(wire.order.size(), 400U);
  EXPECT_GT(wire.link.counters().late_bytes, 0);
  EXPECT_GE(wire.link.counters().latest_ns, 5 * kMs);
}

TEST(LinkDirectionTest, QueueDropsTheSegmentsThatDoNotFitAndNoOthers) {
  Wire wire(Settings(10, 100'000));  // 66 segments.
  wire.Send(0, 44);
  wire.Send(0, 44);
  wire.RunUntil(100 * kMs);
  EXPECT_EQ(wire.link.counters().dropped_by_queue.packets, 22);
  ASSERT_EQ(wire.order.size(), 66U);
  EXPECT_EQ(wire.order.back(), 65 * kMss);
  EXPECT_LE(wire.link.counters().largest_queue_bytes, 100'000);
  // There is room again now.
  wire.Send(100 * kMs, 1);
  wire.RunUntil(200 * kMs);
  EXPECT_EQ(wire.order.back(), 88 * kMss);
  wire.ExpectAccountsToBalance();
}

TEST(LinkDirectionTest, QueueHoldsOneBandwidthDelayProductUnlessToldOtherwise) {
  const DirectionSettings settings{.rate_bits_per_s = 1e9, .delay_ns = 50 * kMs};
  EXPECT_EQ(settings.QueueBytes(), 12'500'000);
  EXPECT_EQ(DirectionSettings{.rate_bits_per_s = 1e6}.QueueBytes(), kLeastQueueBytes);
}

TEST(LinkDirectionTest, LostSegmentsAreMissingOneByOneAndTakeTheirTime) {
  DirectionSettings settings = Settings(10);
  settings.loss = 0.01;
  Wire wire(settings, 7);
  for (int i = 0; i < 500; ++i) wire.Send(0, 40);
  wire.RunUntil(10'000 * kMs);
  const auto& counted = wire.link.counters();
  EXPECT_EQ(counted.lost.packets + static_cast<int64_t>(wire.order.size()), 20'000);
  // 200 are expected; five standard deviations.
  EXPECT_NEAR(static_cast<double>(counted.lost.packets), 200, 5 * std::sqrt(200.0));
  EXPECT_TRUE(std::ranges::is_sorted(wire.order));
  EXPECT_NEAR(static_cast<double>(wire.arrived_ns.rbegin()->second),
              static_cast<double>(10 * kMs + 20'000 * kSegmentNs), 20.0 * kSegmentNs);
  wire.ExpectAccountsToBalance();

  Wire again(settings, 7);
  for (int i = 0; i < 500; ++i) again.Send(0, 40);
  again.RunUntil(10'000 * kMs);
  EXPECT_EQ(again.order, wire.order) << "the same seed loses the same segments";
}

TEST(LinkDirectionTest, NothingArrivesWhileTheLinkIsCut) {
  Wire wire(Settings(20));
  for (int i = 0; i < 100; ++i) {
    wire.RunUntil(i * kMs);
    if (i == 30) wire.link.CutUntil(60 * kMs);
    wire.Send(i * kMs, 1);
  }
  wire.RunUntil(500 * kMs);
  for (const auto& [segment, arrival] : wire.arrived_ns) {
    EXPECT_TRUE(arrival < 30 * kMs || arrival >= 60 * kMs) << arrival;
  }
  // Sent from 10 to 39 ms, less or more one at either end.
  EXPECT_NEAR(static_cast<double>(wire.link.counters().cut.packets), 30, 1);
  wire.ExpectAccountsToBalance();
}

TEST(LinkDirectionTest, ShorterDelayLetsNothingOvertake) {
  Wire wire(Settings(100));
  wire.Send(0, 1);
  wire.RunUntil(10 * kMs);
  wire.link.Change(Settings(1));
  wire.Send(10 * kMs, 1);
  wire.RunUntil(500 * kMs);
  EXPECT_THAT(wire.order, testing::ElementsAre(0, kMss));
}

TEST(LinkDirectionTest, RateCanChangeWhileSegmentsWait) {
  Wire wire(Settings(0));
  wire.Send(0, 2);
  wire.RunUntil(2 * kSegmentNs);
  DirectionSettings slow = Settings(0);
  slow.rate_bits_per_s /= 10;
  wire.link.Change(slow);
  wire.Send(2 * kSegmentNs, 1);
  wire.RunUntil(100 * kMs);
  EXPECT_EQ(wire.arrived_ns[2 * kMss], 12 * kSegmentNs);
}

}  // namespace
}  // namespace causeway::wan
