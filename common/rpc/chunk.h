// The pieces in which objects cross the wire, both ways.
#ifndef CAUSEWAY_COMMON_RPC_CHUNK_H_
#define CAUSEWAY_COMMON_RPC_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"

namespace causeway {

// Makes `chunk` the bytes at `offset` of an object, 1 .. kChunkBytes of them; packed
// (entropy_stage.h) if `entropy` is true and that makes them smaller.
void FillChunk(int64_t offset, std::span<const uint8_t> bytes, bool entropy, v1::Chunk& chunk);

// Appends the chunk's bytes to `object`, of which `total_bytes` are expected. OUT_OF_RANGE if it
// does not start where `object` ends; INVALID_ARGUMENT if it is empty, too large, goes beyond the
// end or does not unpack; DATA_LOSS if its checksum differs. `object` is then as it was.
absl::Status AppendChunk(const v1::Chunk& chunk, int64_t total_bytes, std::vector<uint8_t>& object);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_CHUNK_H_
