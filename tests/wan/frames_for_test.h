// Frames as a TUN device would hand them over, for tests of the link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/wan/wire_packet.h"

namespace causeway::wan {

// Sizes of virtio_net_hdr, of IPv4 without options, and of TCP with timestamps.
inline constexpr size_t kOffloadBytes = 10;
inline constexpr size_t kIpBytes = 20;
inline constexpr size_t kTcpBytes = 32;
inline constexpr size_t kHeaderBytes = kOffloadBytes + kIpBytes + kTcpBytes;

struct FrameOptions {
  TcpEndpoints endpoints = {0x0a4d0101, 0x0a4d0001, 40000, 7070};
  uint32_t sequence = 1000;
  uint32_t acknowledged = 77;
  uint8_t flags = 0x18;  // ACK and PSH.
  size_t payload_bytes = 0;
  size_t segment_payload_bytes = 0;  // 0: not to be segmented.
};

// The payload's byte i is i modulo 251.
std::vector<uint8_t> MakeTcpFrame(const FrameOptions& options);

// Sums IP packets by RFC 1071; a header or a segment with a right checksum sums to 0xffff.
uint16_t OnesComplementSum(std::span<const uint8_t> bytes, uint32_t begin = 0);

}  // namespace causeway::wan
