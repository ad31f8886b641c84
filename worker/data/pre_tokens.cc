#include "worker/data/pre_tokens.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/data/characters.h"

namespace causeway::worker {
namespace {

constexpr std::pair<SplitPattern, const char*> kExpressions[] = {
    {SplitPattern::kGpt2,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kLlama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kQwen,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

constexpr Character kNoCharacter = {CharacterClass::kOther, 0};

// The text from a position on, character by character.
class Scanner {
 public:
  explicit Scanner(const char* end) : table_(CharacterTable::Get()), end_(end) {}

  // At the end of the text: 0 bytes.
  Character At(const char* at) const { return at < end_ ? table_.At(at, end_) : kNoCharacter; }

  // Past the characters of `wanted` from `at` on, at most `limit` of them.
  const char* Skip(const char* at, CharacterClass wanted, int limit = -1) const {
    while (at < end_ && limit != 0) {
      const Character c = table_.At(at, end_);
      if (c.character_class != wanted) break;
      at += c.bytes;
      --limit;
    }
    return at;
  }

 private:
  const CharacterTable& table_;
  const char* const end_;
};

// The end of 's, 't, 're, 've, 'm, 'll or 'd from the apostrophe `at` on; null if there is none.
template <bool kAnyCase>
const char* ContractionEnd(const char* at, const char* end) {
  const auto letter = [&](ptrdiff_t i) {
    if (end - at <= i) return '\0';
    return kAnyCase ? absl::ascii_tolower(static_cast<unsigned char>(at[i])) : at[i];
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? at + 3 : nullptr;
    case 'l':
      return letter(2) == 'l' ? at + 3 : nullptr;
    default:
      break;
  }
  // U+017F, the long s, is an s in any case.
  if (kAnyCase && end - at >= 3 && at[1] == '\xC5' && at[2] == '\xBF') return at + 3;
  return nullptr;
}

// \s*[\r\n]+ if kLines, then \s+(?!\S) and \s+, at a character of white space.
template <bool kLines>
const char* WhiteSpaceEnd(const Scanner& scanner, const char* at) {
  const char* last = at;           // The run's last character.
  const char* line_end = nullptr;  // Past the last \r or \n.
  const char* run_end = at;
  Character c = scanner.At(at);
  while (c.bytes > 0 && IsWhiteSpace(c.character_class)) {
    last = run_end;
    run_end += c.bytes;
    if (c.character_class == CharacterClass::kNewline) line_end = run_end;
    c = scanner.At(run_end);
  }
  if (kLines && line_end != nullptr) return line_end;
  // All of it at the end of the text. Else the last character is left to the word that follows, if
  // there is another before it.
  if (c.bytes == 0 || last == at) return run_end;
  return last;
}

const char* WholeText(const char*, const char* end) { return end; }

const char* Gpt2WordEnd(const char* begin, const char* end) {
  const Scanner scanner(end);
  if (*begin == '\'') {
    const char* const contraction = ContractionEnd<false>(begin, end);
    if (contraction != nullptr) return contraction;
  }
  Character c = scanner.At(begin);
  const char* word = begin;
  if (*begin == ' ') {
    const Character next = scanner.At(begin + 1);
    if (next.bytes == 0 || IsWhiteSpace(next.character_class)) {
      return WhiteSpaceEnd<false>(scanner, begin);
    }
    c = next;
    word = begin + 1;
  }
  if (IsWhiteSpace(c.character_class)) return WhiteSpaceEnd<false>(scanner, begin);
  return scanner.Skip(word + c.bytes, c.character_class);
}

template <int kDigits>
const char* LinesWordEnd(const char* begin, const char* end) {
  const Scanner scanner(end);
  if (*begin == '\'') {
    const char* const contraction = ContractionEnd<true>(begin, end);
    if (contraction != nullptr) return contraction;
  }
  const Character first = scanner.At(begin);
  const char* const second_at = begin + first.bytes;
  switch (first.character_class) {
    case CharacterClass::kLetter:
      return scanner.Skip(second_at, CharacterClass::kLetter);
    case CharacterClass::kNumber:
      return scanner.Skip(second_at, CharacterClass::kNumber, kDigits - 1);
    case CharacterClass::kNewline:
      return WhiteSpaceEnd<true>(scanner, begin);
    case CharacterClass::kSpace:
    case CharacterClass::kOther:
      break;
  }
  const Character second = scanner.At(second_at);
  if (second.bytes > 0 && second.character_class == CharacterClass::kLetter) {
    return scanner.Skip(second_at + second.bytes, CharacterClass::kLetter);
  }
  const char* signs = second_at;
  if (first.character_class == CharacterClass::kSpace) {
    const bool before_signs =
        *begin == ' ' && second.bytes > 0 && second.character_class == CharacterClass::kOther;
    if (!before_signs) return WhiteSpaceEnd<true>(scanner, begin);
    signs = second_at + second.bytes;
  }
  return scanner.Skip(scanner.Skip(signs, CharacterClass::kOther), CharacterClass::kNewline);
}

}  // namespace

std::optional<SplitPattern> FindSplitPattern(absl::string_view regular_expression) {
  for (const auto& [pattern, expression] : kExpressions) {
    if (regular_expression == expression) return pattern;
  }
  return std::nullopt;
}

std::string KnownSplitPatterns() {
  std::string known;
  for (const auto& [pattern, expression] : kExpressions) {
    absl::StrAppend(&known, known.empty() ? "" : "\n", expression);
  }
  return known;
}

WordEnd WordEndOf(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return Gpt2WordEnd;
    case SplitPattern::kLlama3:
      return LinesWordEnd<3>;
    case SplitPattern::kQwen:
      return LinesWordEnd<1>;
    case SplitPattern::kNone:
      break;
  }
  return WholeText;
}

size_t NextWordBorder(SplitPattern pattern, absl::string_view text, size_t from) {
  if (pattern == SplitPattern::kNone) return text.size();
  for (size_t at = std::max(from, size_t{1}); at + 1 < text.size(); ++at) {
    at = text.find(' ', at);
    if (at == absl::string_view::npos || at + 1 >= text.size()) break;
    if (absl::ascii_isalpha(static_cast<unsigned char>(text[at - 1])) &&
        absl::ascii_isalpha(static_cast<unsigned char>(text[at + 1]))) {
      return at;
    }
  }
  return text.size();
}

}  // namespace causeway::worker
