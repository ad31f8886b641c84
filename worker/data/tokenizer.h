// Text to tokens and back.
#ifndef CAUSEWAY_WORKER_DATA_TOKENIZER_H_
#define CAUSEWAY_WORKER_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::worker {

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // What MakeTokenizer takes to make this tokenizer again.
  virtual std::string name() const = 0;
  // Every token is in [0, vocabulary_size()).
  virtual int64_t vocabulary_size() const = 0;
  // Appends the tokens of `text` to `tokens`.
  virtual absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const = 0;
  // INVALID_ARGUMENT for a token outside the vocabulary. The text of single tokens need not be
  // valid UTF-8; that of Encode's tokens is the text that was encoded.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const = 0;
};

// Each byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocabulary_size() const override { return 256; }
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const override;
};

// "bytes". INVALID_ARGUMENT for any other name lists the known ones.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(absl::string_view name);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZER_H_
