// Unicode, as far as tokenizers need it: where characters end, which are letters, digits and white
// space, and the composed form of text. ICU knows; the tables here make it fast.
#ifndef CAUSEWAY_WORKER_DATA_CHARACTERS_H_
#define CAUSEWAY_WORKER_DATA_CHARACTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace causeway::worker {

enum class CharacterClass : uint8_t {
  kLetter,   // \p{L}
  kNumber,   // \p{N}
  kSpace,    // \s but for the next
  kNewline,  // \r and \n
  kOther,    // Everything else, and every byte that is not part of valid UTF-8.
};

// Whether it is \s.
inline bool IsWhiteSpace(CharacterClass c) {
  return c == CharacterClass::kSpace || c == CharacterClass::kNewline;
}

struct Character {
  CharacterClass character_class;
  uint8_t bytes;  // 1 to 4.
};

// The character class of every code point, as of Unicode 16. Immutable and thread-safe.
class CharacterTable {
 public:
  static const CharacterTable& Get();

  // The character that begins at `at` < `end`.
  Character At(const char* at, const char* end) const {
    const auto byte = static_cast<uint8_t>(*at);
    if (byte < 0x80) return {ascii_[byte], 1};
    return BeyondAscii(at, end);
  }
  // Classifies a code point up to 0x10FFFF.
  CharacterClass ClassOf(uint32_t code_point) const {
    return pages_[page_of_[code_point >> kPageBits]][code_point & (kPageSize - 1)];
  }

 private:
  static constexpr uint32_t kPageBits = 8;
  static constexpr uint32_t kPageSize = 1 << kPageBits;
  using Page = std::array<CharacterClass, kPageSize>;

  CharacterTable();
  Character BeyondAscii(const char* at, const char* end) const;

  std::array<CharacterClass, 128> ascii_;
  std::array<uint16_t, 0x110000 / kPageSize> page_of_;
  std::vector<Page> pages_;  // Equal ones once.
};

// A code point and the bytes of UTF-8 that it takes: 0 bytes for what is not valid UTF-8.
struct CodePoint {
  uint32_t value = 0;
  uint8_t bytes = 0;
};
CodePoint DecodeUtf8(const char* at, const char* end);
void AppendUtf8(uint32_t code_point, std::string& out);

// Whether the character before `at`, or the one at it, is part of a word in the sense of \w.
bool WordEndsAt(absl::string_view text, size_t at);
bool WordBeginsAt(absl::string_view text, size_t at);

// Normalization form C, as of Unicode 9. `storage` holds the result if it differs from `text`;
// bytes that are not valid UTF-8 stay as they are.
absl::string_view Composed(absl::string_view text, std::string& storage);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_CHARACTERS_H_
