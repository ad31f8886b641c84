// Text to tokens and back.
#ifndef CAUSEWAY_WORKER_DATA_TOKENIZER_H_
#define CAUSEWAY_WORKER_DATA_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"

namespace causeway::worker {

// Beside a tokenizer.json; it may name the token that ends a text.
inline constexpr char kTokenizerConfigName[] = "tokenizer_config.json";

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The name by which LoadTokenizer makes this tokenizer again: "bytes", or the path of its file.
  virtual std::string name() const = 0;
  // XXH3-64 of that file, as HashToHex writes it. Empty for "bytes", which has no file.
  virtual std::string hash() const { return ""; }
  // Every token is in [0, vocabulary_size()). Numbers below it that the file leaves out are tokens
  // without text.
  virtual int64_t vocabulary_size() const = 0;

  // The token that begins a text, and the one that ends it and stands between documents; nullopt
  // where there is none. Encode adds neither.
  virtual std::optional<int32_t> begin_of_text() const { return std::nullopt; }
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }
  // The number of a token by its name in the tokenizer's file, such as "<|endoftext|>".
  virtual std::optional<int32_t> FindToken(absl::string_view) const { return std::nullopt; }

  // Appends the tokens of `text` to `tokens`. Names of special tokens in the text become those
  // tokens, as in Hugging Face's tokenizers. INVALID_ARGUMENT, with nothing appended, if this
  // tokenizer cannot encode the text.
  virtual absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const = 0;
  // INVALID_ARGUMENT for a token outside the vocabulary. The text of single tokens need not be
  // valid UTF-8; that of Encode's tokens is the text that was encoded, after the tokenizer's
  // normalization.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const = 0;

  // Whether the tokens of every text decode to the same bytes; else to its normalized form, more or
  // less.
  virtual bool keeps_text() const { return false; }

  // The first position >= `from` at which `text` can be cut so that the tokens of the two parts
  // are together those of the whole; text.size() if none is found.
  virtual size_t NextCut(absl::string_view text, size_t /*from*/) const { return text.size(); }
};

// Each byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocabulary_size() const override { return 256; }
  bool keeps_text() const override { return true; }
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const override;
  size_t NextCut(absl::string_view text, size_t from) const override;
};

// "bytes", or the path of a Hugging Face tokenizer.json (*.json: byte-level BPE, see
// tokenizer_json.h), of a SentencePiece model (*.model), or of a folder that holds a tokenizer.json
// or a tokenizer.model. NOT_FOUND, or INVALID_ARGUMENT with what is wrong in the file and what is
// supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(FileSystem& file_system,
                                                         const std::string& name);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZER_H_
