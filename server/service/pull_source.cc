#include "server/service/pull_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/checksum.h"
#include "common/codec/entropy_stage.h"
#include "common/transfer/chunk_set.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

size_t Chunks(const PullObject& object) {
  return static_cast<size_t>(ChunkSet(static_cast<int64_t>(object.bytes.size())).chunks());
}

}  // namespace

PullSource::PullSource(std::shared_ptr<const PullObject> object, bool pack, ByteBudget& cache)
    : object_(std::move(object)),
      pack_(pack),
      cache_(cache),
      checksums_(Chunks(*object_)),
      packed_(pack ? Chunks(*object_) : 0) {
  if (object_->leaves.size() != checksums_.size()) return;
  for (size_t i = 0; i < checksums_.size(); ++i) {
    checksums_[i].store(object_->leaves[i], std::memory_order_relaxed);
  }
}

PullSource::~PullSource() {
  absl::MutexLock lock(&mutex_);
  cache_.Return(cached_bytes_);
}

std::span<const uint8_t> PullSource::Plain(int64_t chunk) const {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return std::span(object_->bytes)
      .subspan(offset, std::min(kChunkBytes, object_->bytes.size() - offset));
}

std::shared_ptr<const PullSource::Packed> PullSource::Pack(int64_t chunk) {
  const auto index = static_cast<size_t>(chunk);
  {
    absl::MutexLock lock(&mutex_);
    if (packed_[index] != nullptr) return packed_[index];
  }
  // Two streams may pack the same chunk at once, which is rare and harmless.
  auto packed = std::make_shared<Packed>();
  if (EntropyPack(Plain(chunk), packed->bytes)) {
    packed->bytes.shrink_to_fit();
    packed->checksum = Checksum64(absl::string_view(packed->bytes));
  } else {
    packed->bytes = std::string();
  }
  const auto bytes = static_cast<int64_t>(packed->bytes.size());
  absl::MutexLock lock(&mutex_);
  if (packed_[index] == nullptr && cache_.Take(bytes)) {
    cached_bytes_ += bytes;
    packed_[index] = packed;
  }
  return packed;
}

OutgoingChunk PullSource::Chunk(int64_t chunk) {
  OutgoingChunk result;
  result.fields.offset = ChunkSet::Offset(chunk);
  const std::span<const uint8_t> plain = Plain(chunk);
  if (pack_) {
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
  result.owner = object_;
  return result;
}

}  // namespace causeway::server
