#include "common/transfer/chunk_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/checksum.h"
#include "common/codec/entropy_stage.h"
#include "common/transfer/chunk_assembly.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

size_t Chunks(std::span<const uint8_t> bytes) {
  return static_cast<size_t>(ChunkSet(static_cast<int64_t>(bytes.size())).chunks());
}

}  // namespace

ChunkSource::ChunkSource(Options options)
    : options_(std::move(options)),
      checksums_(Chunks(options_.bytes)),
      packed_(options_.pack && options_.cache != nullptr ? Chunks(options_.bytes) : 0) {
  if (options_.leaves.size() != checksums_.size()) return;
  for (size_t i = 0; i < checksums_.size(); ++i) {
    checksums_[i].store(options_.leaves[i], std::memory_order_relaxed);
  }
}

ChunkSource::~ChunkSource() {
  absl::MutexLock lock(&mutex_);
  if (options_.cache != nullptr) options_.cache->Return(cached_bytes_);
}

std::span<const uint8_t> ChunkSource::Plain(int64_t chunk) const {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return options_.bytes.subspan(offset, std::min(kChunkBytes, options_.bytes.size() - offset));
}

std::shared_ptr<const ChunkSource::Packed> ChunkSource::Pack(int64_t chunk) {
  const auto index = static_cast<size_t>(chunk);
  {
    absl::MutexLock lock(&mutex_);
    if (!packed_.empty() && packed_[index] != nullptr) return packed_[index];
  }
  // Two lanes may pack the same chunk at once, which is rare and harmless.
  auto packed = std::make_shared<Packed>();
  if (EntropyPack(Plain(chunk), packed->bytes)) {
    packed->bytes.shrink_to_fit();
    packed->checksum = Checksum64(absl::string_view(packed->bytes));
  } else {
    packed->bytes = std::string();
  }
  const auto bytes = static_cast<int64_t>(packed->bytes.size());
  absl::MutexLock lock(&mutex_);
  if (!packed_.empty() && packed_[index] == nullptr && options_.cache->Take(bytes)) {
    cached_bytes_ += bytes;
    packed_[index] = packed;
  }
  return packed;
}

OutgoingChunk ChunkSource::Chunk(int64_t chunk) {
  OutgoingChunk result;
  result.fields.offset = ChunkSet::Offset(chunk);
  const std::span<const uint8_t> plain = Plain(chunk);
  if (options_.pack) {
    std::shared_ptr<const Packed> packed = Pack(chunk);
    if (!packed->bytes.empty()) {
      result.fields.checksum = packed->checksum;
      result.fields.unpacked_bytes = static_cast<int32_t>(plain.size());
      result.fields.data_bytes = packed->bytes.size();
      result.data = {reinterpret_cast<const uint8_t*>(packed->bytes.data()), packed->bytes.size()};
      result.owner = std::move(packed);
      return result;
    }
  }
  std::atomic<uint64_t>& checksum = checksums_[static_cast<size_t>(chunk)];
  result.fields.checksum = checksum.load(std::memory_order_relaxed);
  if (result.fields.checksum == 0) {
    result.fields.checksum = Checksum64(plain);
    checksum.store(result.fields.checksum, std::memory_order_relaxed);
  }
  result.fields.data_bytes = plain.size();
  result.data = plain;
  result.owner = options_.owner;
  return result;
}

}  // namespace causeway
