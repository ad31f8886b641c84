#include "tests/wan/wire_packet.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace causeway::wan {
namespace {

// virtio_net_hdr of the virtio specification, in its legacy form and so in the machine's byte
// order. The kernel's own header is not C++.
struct OffloadHeader {
  uint8_t flags;
  uint8_t segmentation;  // How the payload is to be cut.
  uint16_t header_bytes;
  uint16_t segment_payload_bytes;
  uint16_t checksum_begin;
  uint16_t checksum_offset;
};
static_assert(sizeof(OffloadHeader) == 10);
constexpr uint8_t kNoSegmentation = 0;
constexpr uint8_t kTcpOverIpv4 = 1;

constexpr size_t kIpBegin = sizeof(OffloadHeader);
constexpr size_t kMinIpHeader = 20;
constexpr size_t kMinTcpHeader = 20;
// Offsets in an IPv4 header.
constexpr size_t kIpLength = 2;
constexpr size_t kIpId = 4;
constexpr size_t kIpFragment = 6;
constexpr size_t kIpTimeToLive = 8;
constexpr size_t kIpProtocol = 9;
constexpr size_t kIpChecksum = 10;
constexpr size_t kIpSource = 12;
constexpr size_t kIpDestination = 16;
// Offsets and flags in a TCP header.
constexpr size_t kTcpSequence = 4;
constexpr size_t kTcpAcknowledged = 8;
constexpr size_t kTcpDataOffset = 12;
constexpr size_t kTcpFlags = 13;
constexpr size_t kTcpChecksum = 16;
constexpr uint8_t kFin = 0x01;
constexpr uint8_t kSyn = 0x02;
constexpr uint8_t kRst = 0x04;
constexpr uint8_t kPush = 0x08;
constexpr uint8_t kAck = 0x10;
constexpr uint8_t kWindowReduced = 0x80;

uint16_t Load16(const uint8_t* from) { return static_cast<uint16_t>(from[0] << 8 | from[1]); }

uint32_t Load32(const uint8_t* from) {
  return static_cast<uint32_t>(Load16(from)) << 16 | Load16(from + 2);
}

void Store16(uint8_t* to, uint16_t value) {
  to[0] = static_cast<uint8_t>(value >> 8);
  to[1] = static_cast<uint8_t>(value);
}

void Store32(uint8_t* to, uint32_t value) {
  Store16(to, static_cast<uint16_t>(value >> 16));
  Store16(to + 2, static_cast<uint16_t>(value));
}

uint64_t AddWords(std::span<const uint8_t> bytes, uint64_t sum) {
  size_t i = 0;
  for (; i + 1 < bytes.size(); i += 2) sum += Load16(bytes.data() + i);
  if (i < bytes.size()) sum += static_cast<uint64_t>(bytes[i]) << 8;
  return sum;
}

uint16_t Fold(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

// Sums the addresses, the protocol and the length that TCP's checksum includes.
uint64_t PseudoHeaderSum(const uint8_t* ip, size_t tcp_bytes) {
  return AddWords({ip + kIpSource, 8}, IPPROTO_TCP + tcp_bytes);
}

void StoreIpChecksum(uint8_t* ip, size_t header_bytes) {
  Store16(ip + kIpChecksum, 0);
  Store16(ip + kIpChecksum, static_cast<uint16_t>(~Fold(AddWords({ip, header_bytes}, 0))));
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a frame of the TUN device has ", what));
}

}  // namespace

int64_t FrameLayout::WireBytes(int segment) const {
  if (segments == 1) return static_cast<int64_t>(frame_bytes - kIpBegin);
  const size_t offset = static_cast<size_t>(segment) * segment_payload_bytes;
  const size_t payload = std::min(segment_payload_bytes, frame_bytes - payload_begin - offset);
  return static_cast<int64_t>(payload_begin - kIpBegin + payload);
}

absl::StatusOr<FrameLayout> ParseFrame(std::span<const uint8_t> frame) {
  if (frame.size() <= kIpBegin) return Malformed(absl::StrCat(frame.size(), " bytes"));
  OffloadHeader offload;
  std::memcpy(&offload, frame.data(), sizeof(offload));
  FrameLayout layout;
  layout.frame_bytes = frame.size();
  const uint8_t* const ip = frame.data() + kIpBegin;
  const size_t ip_bytes = frame.size() - kIpBegin;
  const bool whole_tcp = ip_bytes >= kMinIpHeader && ip[0] >> 4 == 4 &&
                         ip[kIpProtocol] == IPPROTO_TCP && (Load16(ip + kIpFragment) & 0x1fff) == 0;
  if (whole_tcp) {
    const size_t ip_header = static_cast<size_t>(ip[0] & 0xf) * 4;
    if (ip_header < kMinIpHeader || ip_bytes < ip_header + kMinTcpHeader) {
      return Malformed(absl::StrCat("an IP header of ", ip_header, " bytes in ", ip_bytes));
    }
    const uint8_t* const tcp = ip + ip_header;
    const size_t tcp_header = static_cast<size_t>(tcp[kTcpDataOffset] >> 4) * 4;
    if (tcp_header < kMinTcpHeader || ip_bytes < ip_header + tcp_header) {
      return Malformed(absl::StrCat("a TCP header of ", tcp_header, " bytes in ", ip_bytes));
    }
    layout.transport_begin = kIpBegin + ip_header;
    layout.payload_begin = layout.transport_begin + tcp_header;
    const uint8_t flags = tcp[kTcpFlags];
    layout.tcp = TcpHeader{
        .endpoints = {.source_address = Load32(ip + kIpSource),
                      .destination_address = Load32(ip + kIpDestination),
                      .source_port = Load16(tcp),
                      .destination_port = Load16(tcp + 2)},
        .sequence = Load32(tcp + kTcpSequence),
        .acknowledged = Load32(tcp + kTcpAcknowledged),
        .syn = (flags & kSyn) != 0,
        .reset = (flags & kRst) != 0,
    };
  }
  if (offload.segmentation == kNoSegmentation) return layout;
  if (!whole_tcp || offload.segmentation != kTcpOverIpv4 || offload.segment_payload_bytes == 0) {
    return Malformed(absl::StrCat("segmentation of type ", offload.segmentation, " and size ",
                                  offload.segment_payload_bytes, ", which was not asked for"));
  }
  const size_t payload = frame.size() - layout.payload_begin;
  if (payload <= offload.segment_payload_bytes) return layout;
  layout.segment_payload_bytes = offload.segment_payload_bytes;
  layout.segments = static_cast<int>((payload + offload.segment_payload_bytes - 1) /
                                     offload.segment_payload_bytes);
  return layout;
}

std::vector<uint8_t> CutSegments(const FrameLayout& layout, std::span<const uint8_t> frame,
                                 int first, int count) {
  if (count == layout.segments) return {frame.begin(), frame.end()};
  const size_t offset = static_cast<size_t>(first) * layout.segment_payload_bytes;
  const std::span<const uint8_t> rest = frame.subspan(layout.payload_begin + offset);
  const size_t wanted = static_cast<size_t>(count) * layout.segment_payload_bytes;
  const std::span<const uint8_t> payload = rest.first(std::min(wanted, rest.size()));
  std::vector<uint8_t> cut;
  cut.reserve(layout.payload_begin + payload.size());
  cut.assign(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(layout.payload_begin));
  cut.insert(cut.end(), payload.begin(), payload.end());

  OffloadHeader offload;
  std::memcpy(&offload, cut.data(), sizeof(offload));
  if (count == 1) {
    offload.segmentation = kNoSegmentation;
    offload.segment_payload_bytes = 0;
  }
  offload.header_bytes = static_cast<uint16_t>(layout.payload_begin - kIpBegin);
  std::memcpy(cut.data(), &offload, sizeof(offload));

  uint8_t* const ip = cut.data() + kIpBegin;
  uint8_t* const tcp = cut.data() + layout.transport_begin;
  Store16(ip + kIpLength, static_cast<uint16_t>(cut.size() - kIpBegin));
  Store16(ip + kIpId, static_cast<uint16_t>(Load16(ip + kIpId) + first));
  StoreIpChecksum(ip, layout.transport_begin - kIpBegin);
  Store32(tcp + kTcpSequence, Load32(tcp + kTcpSequence) + static_cast<uint32_t>(offset));
  const bool last = first + count == layout.segments;
  if (!last) tcp[kTcpFlags] &= static_cast<uint8_t>(~(kFin | kPush));
  if (first > 0) tcp[kTcpFlags] &= static_cast<uint8_t>(~kWindowReduced);
  // Segmentation offload leaves it unfinished: the checksum of the pseudo header alone.
  const size_t tcp_bytes = cut.size() - layout.transport_begin;
  Store16(tcp + kTcpChecksum, Fold(PseudoHeaderSum(ip, tcp_bytes)));
  return cut;
}

std::vector<uint8_t> MakeReset(const TcpHeader& header) {
  std::vector<uint8_t> frame(kIpBegin + kMinIpHeader + kMinTcpHeader);
  uint8_t* const ip = frame.data() + kIpBegin;
  uint8_t* const tcp = ip + kMinIpHeader;
  const TcpEndpoints to = header.endpoints.Reversed();
  ip[0] = 0x45;
  Store16(ip + kIpLength, kMinIpHeader + kMinTcpHeader);
  ip[kIpTimeToLive] = 64;
  ip[kIpProtocol] = IPPROTO_TCP;
  Store32(ip + kIpSource, to.source_address);
  Store32(ip + kIpDestination, to.destination_address);
  StoreIpChecksum(ip, kMinIpHeader);
  Store16(tcp, to.source_port);
  Store16(tcp + 2, to.destination_port);
  Store32(tcp + kTcpSequence, header.acknowledged);
  Store32(tcp + kTcpAcknowledged, header.sequence + (header.syn ? 1 : 0));
  tcp[kTcpDataOffset] = (kMinTcpHeader / 4) << 4;
  tcp[kTcpFlags] = kRst | kAck;
  const uint64_t sum = AddWords({tcp, kMinTcpHeader}, PseudoHeaderSum(ip, kMinTcpHeader));
  Store16(tcp + kTcpChecksum, static_cast<uint16_t>(~Fold(sum)));
  return frame;
}

}  // namespace causeway::wan
