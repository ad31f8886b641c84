// IP packets as a TUN device with segmentation offload hands them over and takes them back: a
// virtio_net_hdr, then one IP packet. A packet of up to 64 KiB may stand for many segments, as TCP
// leaves them to the network card to cut. On the wire of a long link every segment is a packet of
// its own: it takes its own time, fills its own place in the queue and may be lost by itself.
//
// A frame here is the header and the packet together.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::wan {

// Largest size of a frame: the header and an IP packet.
inline constexpr size_t kMaxFrameBytes = (64 << 10) + 64;

// One direction of a TCP connection, in the byte order of the host.
struct TcpEndpoints {
  uint32_t source_address = 0;
  uint32_t destination_address = 0;
  uint16_t source_port = 0;
  uint16_t destination_port = 0;

  auto operator<=>(const TcpEndpoints&) const = default;
  TcpEndpoints Reversed() const {
    return {destination_address, source_address, destination_port, source_port};
  }
};

struct TcpHeader {
  TcpEndpoints endpoints;
  uint32_t sequence = 0;
  uint32_t acknowledged = 0;
  bool syn = false;
  bool reset = false;
};

// The layout of a frame. Offsets are bytes of the frame.
struct FrameLayout {
  std::optional<TcpHeader> tcp;  // Set for IPv4 packets that carry TCP and are no later fragment.
  size_t transport_begin = 0;    // Offset of TCP; this and the next only with tcp.
  size_t payload_begin = 0;
  int segments = 1;
  size_t segment_payload_bytes = 0;  // Payload of all segments but the last; 0 where segments is 1.
  size_t frame_bytes = 0;

  // Bytes of IP packet that segment i is on the wire.
  int64_t WireBytes(int segment) const;
};

// INVALID_ARGUMENT for a frame that no kernel makes.
absl::StatusOr<FrameLayout> ParseFrame(std::span<const uint8_t> frame);

// A frame of its own that stands for segments first .. first + count - 1, with the sequence number,
// lengths, flags and checksums that they have by themselves.
std::vector<uint8_t> CutSegments(const FrameLayout& layout, std::span<const uint8_t> frame,
                                 int first, int count);

// A frame that resets the connection at the sender of a packet with this header: it claims to come
// from the other end, and starts at what the sender has acknowledged.
std::vector<uint8_t> MakeReset(const TcpHeader& header);

}  // namespace causeway::wan
