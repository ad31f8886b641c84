#include "common/transfer/chunk_assembly.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr auto kBytes = static_cast<int64_t>(kChunkBytes);
constexpr int64_t kWordBits = 64;

uint64_t Bit(int64_t chunk) { return uint64_t{1} << (chunk % kWordBits); }
size_t Word(int64_t chunk) { return static_cast<size_t>(chunk / kWordBits); }

}  // namespace

ChunkSet::ChunkSet(int64_t object_bytes)
    : object_bytes_(object_bytes),
      chunks_((object_bytes + kBytes - 1) / kBytes),
      words_(static_cast<size_t>((chunks_ + kWordBits - 1) / kWordBits)) {}

absl::StatusOr<ChunkSet> ChunkSet::FromWire(int64_t object_bytes, absl::string_view bits) {
  if (object_bytes < 0 || object_bytes > kMaxObjectBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an object has 0 .. ", kMaxObjectBytes, " bytes, not ", object_bytes));
  }
  ChunkSet set(object_bytes);
  // In this order: the number of bits is small before it is looked at one by one.
  if (bits.size() > static_cast<size_t>((set.chunks_ + 7) / 8)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "held_chunks has ", bits.size(), " bytes for an object of ", set.chunks_, " chunks"));
  }
  for (size_t i = 0; i < bits.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bits[i]);
    for (int bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) == 0) continue;
      const int64_t chunk = static_cast<int64_t>(i) * 8 + bit;
      if (chunk >= set.chunks_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "held_chunks speaks of chunk ", chunk, " of an object of ", set.chunks_, " chunks"));
      }
      set.Add(chunk);
    }
  }
  return set;
}

std::string ChunkSet::ToWire() const {
  std::string bits;
  for (const uint64_t word : words_) {
    for (int byte = 0; byte < 8; ++byte) bits.push_back(static_cast<char>(word >> (8 * byte)));
  }
  bits.resize(bits.find_last_not_of('\0') + 1);  // npos + 1 is 0.
  return bits;
}

int64_t ChunkSet::Offset(int64_t chunk) { return chunk * kBytes; }

int64_t ChunkSet::Size(int64_t chunk) const {
  return std::min(kBytes, object_bytes_ - Offset(chunk));
}

bool ChunkSet::Holds(int64_t chunk) const { return (words_[Word(chunk)] & Bit(chunk)) != 0; }

bool ChunkSet::Add(int64_t chunk) {
  if (Holds(chunk)) return false;
  words_[Word(chunk)] |= Bit(chunk);
  ++held_chunks_;
  held_bytes_ += Size(chunk);
  return true;
}

bool ChunkSet::Remove(int64_t chunk) {
  if (!Holds(chunk)) return false;
  words_[Word(chunk)] &= ~Bit(chunk);
  --held_chunks_;
  held_bytes_ -= Size(chunk);
  return true;
}

int64_t ChunkSet::FirstMissing(int64_t chunk) const {
  while (chunk < chunks_) {
    const uint64_t missing = ~words_[Word(chunk)] >> (chunk % kWordBits);
    if (missing != 0) return std::min(chunks_, chunk + std::countr_zero(missing));
    chunk = (chunk / kWordBits + 1) * kWordBits;
  }
  return chunks_;
}

ChunkAssembly::ChunkAssembly(int64_t object_bytes, Look look)
    : object_bytes_(object_bytes),
      look_(std::move(look)),
      bytes_(std::make_shared<ByteBuffer>(static_cast<size_t>(object_bytes))),
      held_(object_bytes),
      arriving_(object_bytes),
      leaves_(static_cast<size_t>(held_.chunks())) {}

std::span<uint8_t> ChunkAssembly::Place(int64_t chunk) const {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return std::span(*bytes_).subspan(offset, std::min(kChunkBytes, bytes_->size() - offset));
}

std::optional<std::span<uint8_t>> ChunkAssembly::PlaceOf(int64_t chunk) {
  absl::MutexLock lock(&mutex_);
  if (held_.Holds(chunk)) return std::span<uint8_t>();
  if (!arriving_.Add(chunk)) return std::nullopt;
  return Place(chunk);
}

bool ChunkAssembly::Placed(int64_t chunk, const absl::StatusOr<uint64_t>& checksum) {
  if (checksum.ok() && look_ != nullptr) look_(chunk, Place(chunk));
  absl::MutexLock lock(&mutex_);
  arriving_.Remove(chunk);
  if (!checksum.ok()) return false;
  held_.Add(chunk);
  leaves_[static_cast<size_t>(chunk)] = *checksum;
  return held_.complete();
}

ChunkSet ChunkAssembly::held() const {
  absl::MutexLock lock(&mutex_);
  return held_;
}

uint64_t ChunkAssembly::tree_hash() const {
  absl::MutexLock lock(&mutex_);
  return TreeRoot(leaves_);
}

}  // namespace causeway
