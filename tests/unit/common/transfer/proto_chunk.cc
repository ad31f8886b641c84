#include "tests/unit/common/transfer/proto_chunk.h"

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/codec/codec.h"

namespace causeway {

void FillChunk(int64_t offset, std::span<const uint8_t> bytes, bool entropy, v1::Chunk& chunk) {
  chunk.set_offset(offset);
  chunk.clear_unpacked_bytes();
  if (entropy && EntropyPack(bytes, *chunk.mutable_data())) {
    chunk.set_unpacked_bytes(static_cast<int32_t>(bytes.size()));
  } else {
    chunk.set_data(bytes.data(), bytes.size());
  }
  chunk.set_checksum(Checksum64(absl::string_view(chunk.data())));
}

absl::Status AppendChunk(const v1::Chunk& chunk, std::vector<uint8_t>& object) {
  if (chunk.offset() != static_cast<int64_t>(object.size())) {
    return absl::OutOfRangeError(
        absl::StrCat("a chunk starts at byte ", chunk.offset(), ", expected ", object.size()));
  }
  const absl::string_view data = chunk.data();
  if (Checksum64(data) != chunk.checksum()) {
    return absl::DataLossError(absl::StrCat("the checksum of the chunk at ", chunk.offset()));
  }
  if (chunk.unpacked_bytes() == 0) {
    object.insert(object.end(), data.begin(), data.end());
    return absl::OkStatus();
  }
  const size_t before = object.size();
  object.resize(before + static_cast<size_t>(chunk.unpacked_bytes()));
  return EntropyUnpack(data, std::span(object).subspan(before));
}

}  // namespace causeway
