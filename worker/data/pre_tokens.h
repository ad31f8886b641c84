// The words that byte-level BPE merges within: text is first cut by a regular expression.
//
// A tokenizer.json brings its expression along. The few that exist in the world are known here by
// their exact text and matched by hand-written code, which is many times faster than a regular
// expression engine: what the code does is proven against Hugging Face's tokenizers for every code
// point (tests/compat/tokenizers_compat.py).
#ifndef CAUSEWAY_WORKER_DATA_PRE_TOKENS_H_
#define CAUSEWAY_WORKER_DATA_PRE_TOKENS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace causeway::worker {

enum class SplitPattern {
  kNone,    // The whole text is one word.
  kGpt2,    // Contractions, words with the space before them, numbers, signs, white space.
  kLlama3,  // Contractions in any case, words with any sign before them, up to three digits.
  kQwen,    // The same with single digits.
};

// nullopt for an expression that is not known.
std::optional<SplitPattern> FindSplitPattern(absl::string_view regular_expression);
// The known expressions, one per line, for messages.
std::string KnownSplitPatterns();

// The end of the word that begins at `begin` < `end`, where `end` is the end of the text. Every
// byte belongs to exactly one word.
using WordEnd = const char* (*)(const char* begin, const char* end);
WordEnd WordEndOf(SplitPattern pattern);

// A position >= `from` at which a word begins whatever comes before and after it: a space between
// two ASCII letters. text.size() if there is none, and always for kNone.
size_t NextWordBorder(SplitPattern pattern, absl::string_view text, size_t from);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_PRE_TOKENS_H_
