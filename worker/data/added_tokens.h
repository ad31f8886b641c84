// Tokens that are found in text by their name, before anything else looks at it: <|endoftext|> and
// the like, and whatever else was added to a vocabulary after it was trained.
#ifndef CAUSEWAY_WORKER_DATA_ADDED_TOKENS_H_
#define CAUSEWAY_WORKER_DATA_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace causeway::worker {

struct AddedToken {
  int32_t token = 0;
  std::string text;          // Not empty.
  bool special = false;      // Belongs to the tokenizer, not to any language.
  bool normalized = false;   // Looked for in the normalized text.
  bool single_word = false;  // Only where no part of a word touches it.
  bool strip_left = false;   // Takes the white space before it along.
  bool strip_right = false;  // And after it.
};

// Finds the leftmost of a set of tokens, the longest of those that begin there. Immutable and
// thread-safe.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // A part of a text: either an added token or text without any.
  struct Part {
    absl::string_view text;
    int32_t token = -1;
  };
  // The parts of `text`, in order, none of them empty.
  void Split(absl::string_view text, std::vector<Part>& parts) const;

 private:
  // A trie of bytes: the child of a node, and the token that ends in it.
  static uint64_t Edge(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;  // Null: there is none.
  };
  Match Next(absl::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_ = {};
  char only_begin_ = 0;  // If all tokens begin with the same byte.
  bool has_only_begin_ = false;
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<int32_t> ends_here_;  // By node: an index in tokens_, or -1.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_ADDED_TOKENS_H_
