// Token shards: files of token numbers that are read where they lie, through a mapping.
//
// The format is llm.c's, so that its data sets can be used as they are. A header of 256
// little-endian int32, then the tokens:
//
//   word 0   magic     20240520: tokens are uint16   20240801: tokens are uint32
//   word 1   version   1                             7
//   word 2   tokens in the file, 1 .. 2^31 - 1
//   word 3   vocabulary size, or 0 if unknown (Causeway's; llm.c leaves the word 0)
//   others   0
//
// Example: 1,000 tokens of a vocabulary of 256 make a file of 1024 + 2 * 1000 bytes.
//
// Files without a header, nothing but little-endian uint16 or uint32 (as nanoGPT and others write
// them), are read and written too.
//
// Tokens are checked when they are read, against the vocabulary that the reader has in mind. The
// check costs nothing beside the copy, and no bytes on the disk can make a model look up a row
// that it does not have.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::worker {

inline constexpr int64_t kShardHeaderBytes = 1024;
inline constexpr int64_t kMaxShardTokens = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

enum class ShardFormat {
  // By a header, or else by the first million bytes: uint32 if the upper half of every four bytes
  // is small and the lower is not, uint16 if the upper half is too large for any vocabulary;
  // what may be text, or a header that is damaged, is refused.
  kDetect,
  kLlmC,    // With the header.
  kUint16,  // Without.
  kUint32,
};

// "auto", "llmc", "uint16" or "uint32". INVALID_ARGUMENT, with these, for other names.
absl::StatusOr<ShardFormat> ParseShardFormat(absl::string_view name);
const char* ShardFormatName(ShardFormat format);

// Immutable and thread-safe. Copies share the mapping.
class TokenShard {
 public:
  // INVALID_ARGUMENT, naming the file, if it is no shard of that format, is empty, has another
  // length than its header promises, or does not tell its format by itself.
  static absl::StatusOr<TokenShard> Open(FileSystem& file_system, const std::string& path,
                                         ShardFormat format = ShardFormat::kDetect);

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  // 0 if the file does not say.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  bool has_header() const { return body_offset_ > 0; }
  int bytes_per_token() const { return bytes_per_token_; }

  // Copies the tokens from `begin` on into all of `out`; begin + out.size() <= tokens(). DATA_LOSS,
  // naming file and position, for a token that is not below `vocabulary_size`; naming the file, if
  // it has become shorter (ReadMapped).
  absl::Status Read(int64_t begin, int64_t vocabulary_size, std::span<int32_t> out) const;

  // Appends the positions of a token, counted from `first` on, by reading all.
  void Find(int64_t token, int64_t first, std::vector<int64_t>& positions) const;

  // The largest token, by reading all of them: at the speed of the disk.
  int64_t LargestToken() const;

 private:
  TokenShard() = default;

  absl::Status ReadHeader();
  absl::Status TakeWholeFile(ShardFormat format);
  const uint8_t* body() const { return file_->bytes().data() + body_offset_; }

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  int64_t body_offset_ = kShardHeaderBytes;
  int64_t tokens_ = 0;
  int64_t vocabulary_size_ = 0;
  int bytes_per_token_ = 2;
};

// Collects tokens and writes them as shards FOLDER/PREFIX_000000.bin, PREFIX_000001.bin and so on,
// each of `shard_tokens` tokens but the last: in llm.c's format uint16 if the vocabulary fits, else
// uint32. Keeps one shard in memory. A shard appears under its name only when it is complete and
// synced. Not thread-safe.
class TokenShardWriter {
 public:
  // 1 <= vocabulary_size <= kMaxVocabulary, 1 <= shard_tokens <= kMaxShardTokens.
  TokenShardWriter(FileSystem& file_system, std::string folder, std::string prefix,
                   int64_t vocabulary_size, int64_t shard_tokens);

  // INVALID_ARGUMENT for a token outside the vocabulary; errors of the file system.
  absl::Status Append(std::span<const int32_t> tokens);
  // Writes what is left. The writer is not to be used again.
  absl::Status Finish();

  int64_t tokens() const { return tokens_; }
  // The names of the shards written so far, in order.
  const std::vector<std::string>& names() const { return names_; }

 private:
  int64_t buffered_tokens() const;
  absl::Status WriteShard();

  FileSystem& file_system_;
  const std::string folder_;
  const std::string prefix_;
  const int64_t vocabulary_size_;
  const int64_t shard_tokens_;
  const int bytes_per_token_;
  std::vector<uint8_t> body_;
  int64_t tokens_ = 0;
  std::vector<std::string> names_;
};

}  // namespace causeway::worker
