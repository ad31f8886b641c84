// Constants of the wire that both sides must agree on, and the software's name for itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/checksum.h"

namespace causeway {

// Raised by every change that an older peer would misunderstand. Compared at every join.
inline constexpr uint32_t kWireVersion = 5;

inline constexpr char kSoftwareVersion[] = "0.1.0";

// Initial metadata of Session.BringModel (session.proto).
inline constexpr char kHeldBytesKey[] = "causeway-held-bytes";

// Data bytes of a full chunk: one leaf of the tree hash. 512 KiB to 1 MiB is the plateau of
// throughput; 64 KiB costs 2.7 times the CPU.
inline constexpr size_t kChunkBytes = kTreeLeafBytes;

// Most bytes of a message beside a chunk's data. Bounds what gRPC buffers for a hostile peer.
inline constexpr size_t kMessageOverheadBytes = 64 << 10;

// No encoded fragment is larger: 4 bytes each for 2^36 values.
inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 38;

}  // namespace causeway
