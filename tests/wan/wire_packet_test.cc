#include "tests/wan/wire_packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/wan/frames_for_test.h"

namespace causeway::wan {
namespace {

constexpr uint32_t kPacketMss = 1448;
constexpr uint8_t kFinPushAck = 0x19;

std::span<const uint8_t> IpOf(std::span<const uint8_t> frame) {
  return frame.subspan(kOffloadBytes);
}

// The beginning of TCP's checksum.
uint16_t PseudoHeader(std::span<const uint8_t> frame) {
  const std::span<const uint8_t> ip = IpOf(frame);
  return OnesComplementSum(ip.subspan(12, 8), static_cast<uint32_t>(6 + ip.size() - kIpBytes));
}

uint16_t Stored16(std::span<const uint8_t> frame, size_t offset) {
  return static_cast<uint16_t>(frame[offset] << 8 | frame[offset + 1]);
}

TEST(WirePacketTest, PacketThatStandsForManySegmentsIsThatManyPacketsOnTheWire) {
  const auto frame =
      MakeTcpFrame({.payload_bytes = 3 * kPacketMss + 100, .segment_payload_bytes = kPacketMss});
  const FrameLayout layout = ParseFrame(frame).value();
  ASSERT_EQ(layout.segments, 4);
  EXPECT_EQ(layout.WireBytes(0), 1500);
  EXPECT_EQ(layout.WireBytes(2), 1500);
  EXPECT_EQ(layout.WireBytes(3), 152);
  EXPECT_EQ(layout.tcp->sequence, 1000U);
  EXPECT_EQ(layout.tcp->endpoints.source_port, 40000);
}

TEST(WirePacketTest, PiecesAreWhatTheNetworkCardWouldHaveSent) {
  const auto frame = MakeTcpFrame({.flags = kFinPushAck,
                                   .payload_bytes = 5 * kPacketMss + 7,
                                   .segment_payload_bytes = kPacketMss});
  const FrameLayout layout = ParseFrame(frame).value();
  std::vector<uint8_t> payload;
  const std::pair<int, int> pieces[] = {{0, 1}, {1, 3}, {4, 2}};
  for (const auto& [first, count] : pieces) {
    const auto piece = CutSegments(layout, frame, first, count);
    const FrameLayout own = ParseFrame(piece).value();
    EXPECT_EQ(own.segments, count);
    EXPECT_EQ(own.tcp->sequence, 1000 + static_cast<uint32_t>(first) * kPacketMss);
    EXPECT_EQ(own.tcp->acknowledged, 77U);
    EXPECT_EQ(own.tcp->fin, first == 4) << "only the last piece ends the stream";
    EXPECT_EQ(Stored16(piece, kOffloadBytes + 2), piece.size() - kOffloadBytes);
    EXPECT_EQ(Stored16(piece, kOffloadBytes + 4), 500 + first);
    EXPECT_EQ(OnesComplementSum(IpOf(piece).first(kIpBytes)), 0xffff);
    EXPECT_EQ(Stored16(piece, kOffloadBytes + kIpBytes + 16), PseudoHeader(piece));
    payload.insert(payload.end(), piece.begin() + kHeaderBytes, piece.end());
  }
  EXPECT_TRUE(std::ranges::equal(payload, std::span(frame).subspan(kHeaderBytes)));
}

TEST(WirePacketTest, ResetComesFromTheOtherEndAndStartsAtWhatWasAcknowledged) {
  const auto frame = MakeTcpFrame({.sequence = 5000, .acknowledged = 123456});
  const TcpHeader header = *ParseFrame(frame).value().tcp;
  const auto reset = MakeReset(header);
  const FrameLayout layout = ParseFrame(reset).value();
  EXPECT_TRUE(layout.tcp->reset);
  EXPECT_EQ(layout.tcp->endpoints, header.endpoints.Reversed());
  EXPECT_EQ(layout.tcp->sequence, 123456U);
  EXPECT_EQ(OnesComplementSum(IpOf(reset).first(kIpBytes)), 0xffff);
  EXPECT_EQ(OnesComplementSum(IpOf(reset).subspan(kIpBytes), PseudoHeader(reset)), 0xffff);
}

TEST(WirePacketTest, FramesThatNoKernelMakesAreRefused) {
  const auto frame = MakeTcpFrame({.payload_bytes = 3000, .segment_payload_bytes = kPacketMss});
  EXPECT_FALSE(ParseFrame(std::span(frame).first(kOffloadBytes)).ok());
  EXPECT_FALSE(ParseFrame(std::span(frame).first(kOffloadBytes + kIpBytes + 4)).ok());
  auto unknown = frame;
  unknown[1] = 9;
  EXPECT_FALSE(ParseFrame(unknown).ok());
  auto short_header = frame;
  short_header[kOffloadBytes] = 0x41;
  EXPECT_FALSE(ParseFrame(short_header).ok());
}

TEST(WirePacketTest, WhatIsNotTcpPassesAsOnePacket) {
  auto frame = MakeTcpFrame({.payload_bytes = 800});
  frame[kOffloadBytes + 9] = 17;  // UDP.
  const FrameLayout layout = ParseFrame(frame).value();
  EXPECT_FALSE(layout.tcp.has_value());
  EXPECT_EQ(layout.segments, 1);
  EXPECT_EQ(layout.WireBytes(0), static_cast<int64_t>(frame.size() - kOffloadBytes));
}

}  // namespace
}  // namespace causeway::wan
