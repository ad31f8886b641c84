#include "common/rpc/chunk.h"

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/entropy_stage.h"
#include "common/rpc/wire.h"

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

absl::Status AppendChunk(const v1::Chunk& chunk, int64_t total_bytes,
                         std::vector<uint8_t>& object) {
  const auto received = static_cast<int64_t>(object.size());
  if (chunk.offset() != received) {
    return absl::OutOfRangeError(
        absl::StrCat("a chunk starts at byte ", chunk.offset(), ", expected byte ", received));
  }
  const std::string& data = chunk.data();
  const bool packed = chunk.unpacked_bytes() != 0;
  const int64_t bytes = packed ? chunk.unpacked_bytes() : static_cast<int64_t>(data.size());
  if (data.empty() || data.size() > kChunkBytes || bytes < 0 ||
      bytes > static_cast<int64_t>(kChunkBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk has 1 .. ", kChunkBytes,
                                                   " bytes, this one has ", data.size(),
                                                   packed ? absl::StrCat(" for ", bytes) : ""));
  }
  if (bytes > total_bytes - received) {
    return absl::InvalidArgumentError(absl::StrCat("the chunk at byte ", received, " goes beyond ",
                                                   "the object's ", total_bytes, " bytes"));
  }
  if (Checksum64(absl::string_view(data)) != chunk.checksum()) {
    return absl::DataLossError(
        absl::StrCat("the checksum of the chunk at byte ", received, " differs: send it again"));
  }
  if (!packed) {
    object.insert(object.end(), data.begin(), data.end());
    return absl::OkStatus();
  }
  object.resize(static_cast<size_t>(received + bytes));
  const absl::Status status =
      EntropyUnpack(data, std::span(object).subspan(static_cast<size_t>(received)));
  if (!status.ok()) object.resize(static_cast<size_t>(received));
  return Annotate(status, absl::StrCat("the chunk at byte ", received));
}

}  // namespace causeway
