// Hugging Face's tokenizer.json, as far as it describes byte-level BPE.
//
// Supported, and refused by name otherwise:
//
//   model           BPE; merges as "a b" or ["a", "b"]; ignore_merges; all 256 bytes in the
//                   vocabulary, so that every text can be encoded; no dropout, no subword prefix
//                   or suffix
//   normalizer      none, or NFC
//   pre_tokenizer   ByteLevel with or without use_regex, or a Sequence of a Split by one of the
//                   expressions of pre_tokens.h (Isolated, not inverted) and ByteLevel
//   added_tokens    all fields; numbers as Hugging Face's library would give them
//   post_processor  any; it only tells which token begins a text
//   decoder         ByteLevel
#ifndef CAUSEWAY_WORKER_DATA_TOKENIZER_JSON_H_
#define CAUSEWAY_WORKER_DATA_TOKENIZER_JSON_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/added_tokens.h"
#include "worker/data/bpe_merges.h"
#include "worker/data/pre_tokens.h"

namespace causeway::worker {

struct ByteLevelBpe {
  // The bytes that each token stands for, by number; empty for numbers that the file leaves out.
  std::vector<std::string> texts;
  std::array<int32_t, 256> byte_tokens = {};
  std::vector<Merge> merges;  // By rank.
  // Tokens of the model (not added ones) that text can become; a word that is one of them becomes
  // it at once if ignore_merges.
  std::vector<int32_t> word_tokens;
  bool ignore_merges = false;
  SplitPattern pattern = SplitPattern::kGpt2;
  bool add_prefix_space = false;
  bool compose = false;  // NFC.
  std::vector<AddedToken> added_tokens;
  // As the post-processor adds them.
  std::optional<int32_t> begin_of_text;
  std::optional<int32_t> end_of_text;
};

// INVALID_ARGUMENT, naming the part of the file and what is supported.
absl::StatusOr<ByteLevelBpe> ParseTokenizerJson(absl::string_view text);

// The character that stands for a byte in a byte-level vocabulary, as UTF-8: printable bytes of
// Latin-1 stand for themselves, the others for U+0100 and following.
std::string ByteCharacter(uint8_t byte);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZER_JSON_H_
