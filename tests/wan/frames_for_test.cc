#include "tests/wan/frames_for_test.h"

#include <cstring>

namespace causeway::wan {
namespace {

void Put16(uint8_t* to, size_t value) {
  to[0] = static_cast<uint8_t>(value >> 8);
  to[1] = static_cast<uint8_t>(value);
}

void Put32(uint8_t* to, uint32_t value) {
  Put16(to, value >> 16);
  Put16(to + 2, value & 0xffff);
}

}  // namespace

uint16_t OnesComplementSum(std::span<const uint8_t> bytes, uint32_t begin) {
  uint32_t sum = begin;
  for (size_t i = 0; i < bytes.size(); ++i) {
    sum += i % 2 == 0 ? static_cast<uint32_t>(bytes[i]) << 8 : bytes[i];
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<uint16_t>(sum);
}

std::vector<uint8_t> MakeTcpFrame(const FrameOptions& options) {
  std::vector<uint8_t> frame(kHeaderBytes + options.payload_bytes);
  const bool segmented = options.segment_payload_bytes > 0;
  frame[0] = 1;                  // The checksum is to be finished.
  frame[1] = segmented ? 1 : 0;  // As TCP over IPv4.
  const auto segment = static_cast<uint16_t>(options.segment_payload_bytes);
  std::memcpy(&frame[4], &segment, sizeof(segment));
  uint8_t* const ip = frame.data() + kOffloadBytes;
  ip[0] = 0x45;
  Put16(ip + 2, frame.size() - kOffloadBytes);
  Put16(ip + 4, 500);     // Id.
  Put16(ip + 6, 0x4000);  // Not to be fragmented.
  ip[8] = 64;
  ip[9] = 6;
  Put32(ip + 12, options.endpoints.source_address);
  Put32(ip + 16, options.endpoints.destination_address);
  uint8_t* const tcp = ip + kIpBytes;
  Put16(tcp, options.endpoints.source_port);
  Put16(tcp + 2, options.endpoints.destination_port);
  Put32(tcp + 4, options.sequence);
  Put32(tcp + 8, options.acknowledged);
  tcp[12] = kTcpBytes / 4 << 4;
  tcp[13] = options.flags;
  for (size_t i = 0; i < options.payload_bytes; ++i) {
    frame[kHeaderBytes + i] = static_cast<uint8_t>(i % 251);
  }
  return frame;
}

}  // namespace causeway::wan
