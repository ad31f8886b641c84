#include "worker/data/token_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "absl/strings/str_format.h"

namespace causeway::worker {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little endian and are read in place");

constexpr int32_t kMagic16 = 20240520;
constexpr int32_t kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801;
constexpr int32_t kVersion32 = 7;
constexpr int64_t kMaxVocabulary16 = 65536;

using Header = std::array<int32_t, kShardHeaderBytes / 4>;

template <typename Stored>
Stored Load(const uint8_t* body, int64_t index) {
  Stored token;
  std::memcpy(&token, body + index * static_cast<int64_t>(sizeof(Stored)), sizeof(Stored));
  return token;
}

// Calls visit(Stored()) with the type of tokens of that width.
template <typename Visit>
auto WithWidth(int bytes_per_token, Visit visit) {
  return bytes_per_token == 2 ? visit(uint16_t()) : visit(uint32_t());
}

bool IsMagic(int32_t word) { return word == kMagic16 || word == kMagic32; }

// Finds the width of the tokens of a file without a header: nullopt if either could be meant.
std::optional<ShardFormat> DetectWithoutHeader(std::span<const uint8_t> bytes) {
  constexpr size_t kProbeBytes = 1 << 20;
  // No vocabulary reaches beyond 2^24, and no text of tokens so long stays below 4096.
  constexpr int kLargestUpperHalf = 255;
  constexpr int kLargeLowerHalf = 4095;
  if (bytes.size() % 2 != 0) return std::nullopt;
  // Text has no zero bytes; a damaged header of llm.c's has almost nothing else.
  const std::span<const uint8_t> probe = bytes.first(std::min(bytes.size(), kProbeBytes));
  if (std::find(probe.begin(), probe.end(), uint8_t{0}) == probe.end()) return std::nullopt;
  if (bytes.size() >= static_cast<size_t>(kShardHeaderBytes)) {
    const std::span<const uint8_t> rest = bytes.first(kShardHeaderBytes).subspan(16);
    if (std::count(rest.begin(), rest.end(), uint8_t{0}) == std::ssize(rest)) return std::nullopt;
  }
  int largest_upper = 0;
  int largest_lower = 0;
  const auto pairs = static_cast<int64_t>(probe.size() / 4);
  for (int64_t i = 0; i < pairs; ++i) {
    largest_lower = std::max(largest_lower, int{Load<uint16_t>(bytes.data(), 2 * i)});
    largest_upper = std::max(largest_upper, int{Load<uint16_t>(bytes.data(), 2 * i + 1)});
  }
  if (largest_upper > kLargestUpperHalf || bytes.size() % 4 != 0) return ShardFormat::kUint16;
  if (largest_lower > kLargeLowerHalf) return ShardFormat::kUint32;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ShardFormat> ParseShardFormat(absl::string_view name) {
  for (const ShardFormat format :
       {ShardFormat::kDetect, ShardFormat::kLlmC, ShardFormat::kUint16, ShardFormat::kUint32}) {
    if (name == ShardFormatName(format)) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no shard format \"", name,
                   "\"; known: auto, llmc (with its header), uint16 and "
                   "uint32 (without a header)"));
}

const char* ShardFormatName(ShardFormat format) {
  switch (format) {
    case ShardFormat::kLlmC:
      return "llmc";
    case ShardFormat::kUint16:
      return "uint16";
    case ShardFormat::kUint32:
      return "uint32";
    case ShardFormat::kDetect:
      break;
  }
  return "auto";
}

absl::StatusOr<TokenShard> TokenShard::Open(FileSystem& file_system, const std::string& path,
                                            ShardFormat format) {
  TokenShard shard;
  shard.path_ = path;
  ASSIGN_OR_RETURN(shard.file_, file_system.Map(path));
  const std::span<const uint8_t> bytes = shard.file_->bytes();
  if (bytes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is empty; make shards with `causeway-worker tokenize`"));
  }
  const bool begins_with_magic = bytes.size() >= 4 && IsMagic(Load<int32_t>(bytes.data(), 0));
  if (format == ShardFormat::kLlmC || (format == ShardFormat::kDetect && begins_with_magic)) {
    RETURN_IF_ERROR(shard.ReadHeader());
    return shard;
  }
  if (format == ShardFormat::kDetect) {
    const std::optional<ShardFormat> detected = DetectWithoutHeader(bytes);
    if (!detected.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is no token shard of llm.c's format, which begins with ", kMagic16, " or ",
          kMagic32, ", and its ", bytes.size(),
          " bytes may be uint16 or uint32 tokens, or something else; if they are tokens, say which "
          "by --shard_format=uint16 or --shard_format=uint32"));
    }
    format = *detected;
  }
  RETURN_IF_ERROR(shard.TakeWholeFile(format));
  return shard;
}

absl::Status TokenShard::TakeWholeFile(ShardFormat format) {
  bytes_per_token_ = format == ShardFormat::kUint16 ? 2 : 4;
  body_offset_ = 0;
  const auto size = static_cast<int64_t>(file_->bytes().size());
  if (size % bytes_per_token_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " has ", size, " bytes, which is no whole number of ",
                     ShardFormatName(format), " tokens; copy or make it again"));
  }
  tokens_ = size / bytes_per_token_;
  vocabulary_size_ = 0;
  return absl::OkStatus();
}

absl::Status TokenShard::ReadHeader() {
  const std::span<const uint8_t> bytes = file_->bytes();
  if (bytes.size() < static_cast<size_t>(kShardHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " is no token shard: a shard begins with a header of ",
                     kShardHeaderBytes, " bytes, the file has ", bytes.size()));
  }
  Header header;
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  if (!IsMagic(header[0])) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is no token shard: it begins with ",
                                                   header[0], " instead of ", kMagic16,
                                                   " (uint16) or ", kMagic32, " (uint32)"));
  }
  const bool is_16 = header[0] == kMagic16;
  if (header[1] != (is_16 ? kVersion16 : kVersion32)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is a token shard of version ",
                                                   header[1], "; this program reads version ",
                                                   is_16 ? kVersion16 : kVersion32));
  }
  bytes_per_token_ = is_16 ? 2 : 4;
  tokens_ = header[2];
  vocabulary_size_ = header[3];
  if (tokens_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is a token shard without tokens"));
  }
  const int64_t expected = kShardHeaderBytes + tokens_ * bytes_per_token_;
  if (tokens_ < 0 || static_cast<int64_t>(bytes.size()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " is damaged: its header promises ", tokens_, " tokens (", expected,
                     " bytes), the file has ", bytes.size(), " bytes; copy or make it again"));
  }
  if (vocabulary_size_ < 0 || vocabulary_size_ > kMaxVocabulary ||
      (is_16 && vocabulary_size_ > kMaxVocabulary16)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " is damaged: its header gives a vocabulary of ", vocabulary_size_,
                     " tokens; copy or make it again"));
  }
  return absl::OkStatus();
}

absl::Status TokenShard::Read(int64_t begin, int64_t vocabulary_size,
                              std::span<int32_t> out) const {
  const uint8_t* const body = this->body();
  int64_t largest = 0;
  // The largest token of all is looked at once, so that the loop has no branch.
  RETURN_IF_ERROR(ReadMapped(path_, [&] {
    largest = WithWidth(bytes_per_token_, [&]<typename Stored>(Stored most) {
      for (size_t i = 0; i < out.size(); ++i) {
        const auto token = Load<Stored>(body, begin + static_cast<int64_t>(i));
        most = std::max(most, token);
        out[i] = static_cast<int32_t>(token);
      }
      return static_cast<int64_t>(most);
    });
  }));
  if (largest < vocabulary_size) return absl::OkStatus();
  int64_t position = begin;
  const auto token_at = [&](int64_t i) {
    return WithWidth(bytes_per_token_,
                     [&]<typename Stored>(Stored) { return int64_t{Load<Stored>(body, i)}; });
  };
  const int64_t end = begin + static_cast<int64_t>(out.size());
  while (position + 1 < end && token_at(position) != largest) ++position;
  return absl::DataLossError(absl::StrCat("token ", position, " of ", path_, " is ", largest,
                                          ", outside the vocabulary of ", vocabulary_size,
                                          " tokens; the file is damaged, or was made with another "
                                          "tokenizer than the run's"));
}

void TokenShard::Find(int64_t token, int64_t first, std::vector<int64_t>& positions) const {
  WithWidth(bytes_per_token_, [&, body = body()]<typename Stored>(Stored) {
    for (int64_t i = 0; i < tokens_; ++i) {
      if (int64_t{Load<Stored>(body, i)} == token) positions.push_back(first + i);
    }
  });
}

int64_t TokenShard::LargestToken() const {
  return WithWidth(bytes_per_token_, [&, body = body()]<typename Stored>(Stored largest) {
    for (int64_t i = 0; i < tokens_; ++i) largest = std::max(largest, Load<Stored>(body, i));
    return static_cast<int64_t>(largest);
  });
}

TokenShardWriter::TokenShardWriter(FileSystem& file_system, std::string folder, std::string prefix,
                                   int64_t vocabulary_size, int64_t shard_tokens)
    : file_system_(file_system),
      folder_(std::move(folder)),
      prefix_(std::move(prefix)),
      vocabulary_size_(vocabulary_size),
      shard_tokens_(shard_tokens),
      bytes_per_token_(vocabulary_size <= kMaxVocabulary16 ? 2 : 4) {}

int64_t TokenShardWriter::buffered_tokens() const {
  return static_cast<int64_t>(body_.size()) / bytes_per_token_;
}

absl::Status TokenShardWriter::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary_size_) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " does not belong to a ",
                                                     "vocabulary of ", vocabulary_size_));
    }
  }
  while (!tokens.empty()) {
    const auto room = static_cast<size_t>(shard_tokens_ - buffered_tokens());
    const std::span<const int32_t> part = tokens.first(std::min(room, tokens.size()));
    tokens = tokens.subspan(part.size());
    WithWidth(bytes_per_token_, [&]<typename Stored>(Stored token) {
      uint8_t* out = &*body_.insert(body_.end(), part.size() * sizeof(Stored), 0);
      for (size_t i = 0; i < part.size(); ++i, out += sizeof(Stored)) {
        token = static_cast<Stored>(part[i]);
        std::memcpy(out, &token, sizeof(Stored));
      }
    });
    tokens_ += static_cast<int64_t>(part.size());
    if (buffered_tokens() == shard_tokens_) RETURN_IF_ERROR(WriteShard());
  }
  return absl::OkStatus();
}

absl::Status TokenShardWriter::Finish() {
  if (body_.empty()) return absl::OkStatus();
  return WriteShard();
}

absl::Status TokenShardWriter::WriteShard() {
  Header header = {};
  header[0] = bytes_per_token_ == 2 ? kMagic16 : kMagic32;
  header[1] = bytes_per_token_ == 2 ? kVersion16 : kVersion32;
  header[2] = static_cast<int32_t>(buffered_tokens());
  header[3] = static_cast<int32_t>(vocabulary_size_);
  std::array<uint8_t, kShardHeaderBytes> header_bytes;
  std::memcpy(header_bytes.data(), header.data(), header_bytes.size());

  const std::string name = absl::StrFormat("%s_%06d.bin", prefix_, names_.size());
  const auto write = [&](WritableFile& file) -> absl::Status {
    RETURN_IF_ERROR(file.Append(header_bytes));
    return file.Append(body_);
  };
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, JoinPath(folder_, name), write));
  names_.push_back(name);
  body_.clear();
  return absl::OkStatus();
}

}  // namespace causeway::worker
