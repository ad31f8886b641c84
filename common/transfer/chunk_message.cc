#include "common/transfer/chunk_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::ConcatenatingInputStream;
using google::protobuf::io::ZeroCopyInputStream;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}

constexpr uint32_t kControlTag =
    Tag(v1::LaneMessage::kControlFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kChunkTag =
    Tag(v1::LaneMessage::kChunkFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kOffsetTag = Tag(v1::Chunk::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kChecksumTag =
    Tag(v1::Chunk::kChecksumFieldNumber, WireFormatLite::WIRETYPE_FIXED64);
constexpr uint32_t kDataTag =
    Tag(v1::Chunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kUnpackedTag =
    Tag(v1::Chunk::kUnpackedBytesFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kTransferTag =
    Tag(v1::Chunk::kTransferFieldNumber, WireFormatLite::WIRETYPE_VARINT);

// Protobuf's generated parsers refuse a tag of more than five bytes; CodedInputStream cuts it off.
constexpr int kMaxTagBytes = 5;

// Reads the next tag; 0 at the end, or where there is none.
bool ReadTag(CodedInputStream& stream, uint32_t& tag) {
  const int before = stream.CurrentPosition();
  tag = stream.ReadTag();
  return stream.CurrentPosition() - before <= kMaxTagBytes;
}

// Skips a field of a later version.
bool SkipUnknown(CodedInputStream& stream, uint32_t tag) {
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  if (field == 0 || WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_START_GROUP) {
    return WireFormatLite::SkipField(&stream, tag);
  }
  if (!stream.IncrementRecursionDepth()) return false;
  for (;;) {
    uint32_t inner = 0;
    if (!ReadTag(stream, inner) || inner == 0) return false;
    if (inner == WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_END_GROUP)) {
      stream.DecrementRecursionDepth();
      return true;
    }
    if (!SkipUnknown(stream, inner)) return false;
  }
}

// Calls `read` with the stream limited to the length-delimited field that comes now.
template <typename Function>
bool ReadField(CodedInputStream& stream, const Function& read) {
  int length = 0;
  if (!stream.ReadVarintSizeAsInt(&length) || length > stream.BytesUntilLimit()) return false;
  const auto [limit, depth] = stream.IncrementRecursionDepthAndPushLimit(length);
  // A field that is cut off ends early, but not at its limit.
  return depth >= 0 && read() && stream.BytesUntilLimit() == 0 &&
         stream.DecrementRecursionDepthAndPopLimit(limit);
}

// From a stream, protobuf makes room for a string of the length that is said, up to 50 MB; from
// memory it knows where the bytes end.
bool ReadHeader(CodedInputStream& stream, google::protobuf::MessageLite& header) {
  int length = 0;
  std::string bytes;
  return stream.ReadVarintSizeAsInt(&length) && length <= stream.BytesUntilLimit() &&
         stream.ReadString(&bytes, length) && header.MergeFromString(bytes);
}

bool SkipData(CodedInputStream& stream, ChunkFields& chunk) {
  int length = 0;
  if (!stream.ReadVarintSizeAsInt(&length)) return false;
  chunk.data_bytes = static_cast<size_t>(length);
  chunk.data_position = static_cast<size_t>(stream.CurrentPosition());
  return stream.Skip(length);
}

bool ReadChunkFields(CodedInputStream& stream, ChunkFields& chunk) {
  for (;;) {
    uint32_t tag = 0;
    if (!ReadTag(stream, tag)) return false;
    bool read = false;
    uint64_t value = 0;
    switch (tag) {
      case 0:
        return stream.ConsumedEntireMessage();
      case kOffsetTag:
        read = stream.ReadVarint64(&value);
        chunk.offset = static_cast<int64_t>(value);
        break;
      case kChecksumTag:
        read = stream.ReadLittleEndian64(&chunk.checksum);
        break;
      case kDataTag:
        read = SkipData(stream, chunk);
        break;
      case kUnpackedTag:
        read = stream.ReadVarint64(&value);
        chunk.unpacked_bytes = static_cast<int32_t>(value);
        break;
      case kTransferTag:
        read = stream.ReadVarint64(&chunk.transfer);
        break;
      default:
        read = SkipUnknown(stream, tag);
    }
    if (!read) return false;
  }
}

// The last field of a oneof counts; repeated ones are merged.
bool ReadMessage(CodedInputStream& stream, google::protobuf::MessageLite& header,
                 ChunkFields& chunk, MessageKind& kind) {
  for (;;) {
    uint32_t tag = 0;
    if (!ReadTag(stream, tag)) return false;
    bool read = false;
    switch (tag) {
      case 0:
        return stream.ConsumedEntireMessage();
      case kControlTag:
        if (kind != MessageKind::kHeader) header.Clear();
        kind = MessageKind::kHeader;
        read = ReadHeader(stream, header);
        break;
      case kChunkTag:
        if (kind != MessageKind::kChunk) chunk = {};
        kind = MessageKind::kChunk;
        read = ReadField(stream, [&] { return ReadChunkFields(stream, chunk); });
        break;
      default:
        read = SkipUnknown(stream, tag);
    }
    if (!read) return false;
  }
}

// Copies the chunk's data into memory of just its size.
void CopyData(const MessageBytes& bytes, const ChunkFields& chunk, uint8_t* target) {
  size_t skip = chunk.data_position;
  size_t left = chunk.data_bytes;
  for (const std::span<const uint8_t> piece : bytes.pieces) {
    const size_t skipped = std::min(skip, piece.size());
    const std::span<const uint8_t> part =
        piece.subspan(skipped, std::min(left, piece.size() - skipped));
    if (!part.empty()) std::memcpy(target, part.data(), part.size());
    target += part.size();
    skip -= skipped;
    left -= part.size();
  }
}

// Begins a field of so many bytes.
std::string FieldHead(uint32_t tag, size_t bytes) {
  std::array<uint8_t, 16> head;
  uint8_t* end = CodedOutputStream::WriteTagToArray(tag, head.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(bytes), end);
  return {head.data(), end};
}

absl::Status Differs(const ChunkFields& chunk) {
  return absl::DataLossError(
      absl::StrCat("the checksum of the chunk at byte ", chunk.offset, " differs: send it again"));
}

absl::StatusOr<uint64_t> Unpack(const MessageBytes& bytes, const ChunkFields& chunk,
                                std::span<uint8_t> leaf) {
  std::string packed(chunk.data_bytes, '\0');
  CopyData(bytes, chunk, reinterpret_cast<uint8_t*>(packed.data()));
  if (Checksum64(absl::string_view(packed)) != chunk.checksum) return Differs(chunk);
  RETURN_IF_ERROR(
      Annotate(EntropyUnpack(packed, leaf), absl::StrCat("the chunk at byte ", chunk.offset)));
  return Checksum64(leaf);
}

}  // namespace

absl::StatusOr<MessageKind> ParseMessage(const MessageBytes& bytes,
                                         google::protobuf::MessageLite& header,
                                         ChunkFields& chunk) {
  std::deque<ArrayInputStream> arrays;
  std::vector<ZeroCopyInputStream*> streams;
  size_t size = 0;
  for (const std::span<const uint8_t> piece : bytes.pieces) {
    streams.push_back(&arrays.emplace_back(piece.data(), static_cast<int>(piece.size())));
    size += piece.size();
  }
  ConcatenatingInputStream pieces(streams.data(), static_cast<int>(streams.size()));
  CodedInputStream stream(&pieces);
  stream.PushLimit(static_cast<int>(size));
  MessageKind kind = MessageKind::kNeither;
  if (!ReadMessage(stream, header, chunk, kind)) {
    return absl::InvalidArgumentError("a message of the transfer is malformed");
  }
  return kind;
}

absl::StatusOr<int64_t> CheckChunk(const ChunkFields& chunk, int64_t total_bytes) {
  const auto chunk_bytes = static_cast<int64_t>(kChunkBytes);
  if (chunk.offset < 0 || chunk.offset >= total_bytes || chunk.offset % chunk_bytes != 0) {
    return absl::OutOfRangeError(absl::StrCat("a chunk starts at byte ", chunk.offset,
                                              "; expected a multiple of ", chunk_bytes,
                                              " within the object's ", total_bytes, " bytes"));
  }
  const int64_t expected = std::min(chunk_bytes, total_bytes - chunk.offset);
  const bool packed = chunk.unpacked_bytes != 0;
  const auto data_bytes = static_cast<int64_t>(chunk.data_bytes);
  if (data_bytes < 1 || data_bytes > chunk_bytes ||
      (packed ? chunk.unpacked_bytes : data_bytes) != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chunk at byte ", chunk.offset, " has ", expected, " bytes, this one has ",
                     data_bytes, packed ? absl::StrCat(" for ", chunk.unpacked_bytes) : ""));
  }
  return chunk.offset / chunk_bytes;
}

absl::StatusOr<uint64_t> ReadChunk(const MessageBytes& bytes, const ChunkFields& chunk,
                                   std::span<uint8_t> leaf) {
  if (chunk.unpacked_bytes != 0) return Unpack(bytes, chunk, leaf);
  if (chunk.data_bytes != leaf.size()) {
    return absl::InternalError("the chunk was not checked against its place");
  }
  CopyData(bytes, chunk, leaf.data());
  const uint64_t checksum = Checksum64(leaf);
  if (checksum != chunk.checksum) return Differs(chunk);
  return checksum;
}

ChunkFrame FrameChunk(const ChunkFields& chunk) {
  v1::Chunk before;
  before.set_offset(chunk.offset);
  before.set_checksum(chunk.checksum);
  v1::Chunk after;
  after.set_unpacked_bytes(chunk.unpacked_bytes);
  after.set_transfer(chunk.transfer);
  ChunkFrame frame;
  frame.tail = after.SerializeAsString();
  const std::string fields = before.SerializeAsString() + FieldHead(kDataTag, chunk.data_bytes);
  frame.head = FieldHead(kChunkTag, fields.size() + chunk.data_bytes + frame.tail.size()) + fields;
  return frame;
}

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
