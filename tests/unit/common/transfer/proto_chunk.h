// Chunks as messages of protobuf, for tests: what common/transfer/chunk_message.h writes and reads,
// put together and taken apart by the generated classes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"

namespace causeway {

// Makes `chunk` the bytes at `offset` of an object, 1 .. kChunkBytes of them; packed
// (EntropyPack) if `entropy` is true and that makes them smaller.
void FillChunk(int64_t offset, std::span<const uint8_t> bytes, bool entropy, v1::Chunk& chunk);

// Appends the chunk's bytes to `object`. OUT_OF_RANGE if it does not start where `object` ends,
// DATA_LOSS if its checksum differs, INVALID_ARGUMENT if it does not unpack.
absl::Status AppendChunk(const v1::Chunk& chunk, std::vector<uint8_t>& object);

}  // namespace causeway
