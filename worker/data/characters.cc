#include "worker/data/characters.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <map>
#include <memory>

namespace causeway::worker {
namespace {

struct ClassRange {
  uint32_t first;
  uint32_t last;
  CharacterClass character_class;
};

// Letters and numbers of Unicode 15.1 and 16.0, which Debian's ICU (15.0) does not know yet and
// current tokenizers do. Where ICU knows a code point, ICU's word counts.
constexpr CharacterClass kL = CharacterClass::kLetter;
constexpr CharacterClass kN = CharacterClass::kNumber;
constexpr ClassRange kNewerThanIcu[] = {
    {0x1C89, 0x1C8A, kL},   {0xA7CB, 0xA7CD, kL},   {0xA7DA, 0xA7DC, kL},   {0x105C0, 0x105F3, kL},
    {0x10D40, 0x10D49, kN}, {0x10D4A, 0x10D65, kL}, {0x10D6F, 0x10D85, kL}, {0x10EC2, 0x10EC4, kL},
    {0x11380, 0x11389, kL}, {0x1138B, 0x1138B, kL}, {0x1138E, 0x1138E, kL}, {0x11390, 0x113B5, kL},
    {0x113B7, 0x113B7, kL}, {0x113D1, 0x113D1, kL}, {0x113D3, 0x113D3, kL}, {0x116D0, 0x116E3, kN},
    {0x11BC0, 0x11BE0, kL}, {0x11BF0, 0x11BF9, kN}, {0x13460, 0x143FA, kL}, {0x16100, 0x1611D, kL},
    {0x16130, 0x16139, kN}, {0x16D40, 0x16D6C, kL}, {0x16D70, 0x16D79, kN}, {0x18CFF, 0x18CFF, kL},
    {0x1CCF0, 0x1CCF9, kN}, {0x1E5D0, 0x1E5ED, kL}, {0x1E5F0, 0x1E5F0, kL}, {0x1E5F1, 0x1E5FA, kN},
    {0x2EBF0, 0x2EE5D, kL},
};

CharacterClass Classify(uint32_t code_point) {
  if (code_point == '\r' || code_point == '\n') return CharacterClass::kNewline;
  const auto icu_code_point = static_cast<UChar32>(code_point);
  const int8_t type = u_charType(icu_code_point);
  if ((U_MASK(type) & U_GC_L_MASK) != 0) return CharacterClass::kLetter;
  if ((U_MASK(type) & U_GC_N_MASK) != 0) return CharacterClass::kNumber;
  if (u_isUWhiteSpace(icu_code_point)) return CharacterClass::kSpace;
  if (type == U_UNASSIGNED) {
    for (const ClassRange& range : kNewerThanIcu) {
      if (code_point >= range.first && code_point <= range.last) return range.character_class;
    }
  }
  return CharacterClass::kOther;
}

bool IsWordCharacter(CodePoint code_point) {
  if (code_point.bytes == 0) return false;
  const auto c = static_cast<UChar32>(code_point.value);
  constexpr uint32_t kMask = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  const CharacterClass character_class = CharacterTable::Get().ClassOf(code_point.value);
  return character_class == CharacterClass::kLetter || (U_MASK(u_charType(c)) & kMask) != 0 ||
         u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

// Appends to a string, as ICU wants to.
class StringSink final : public icu::ByteSink {
 public:
  explicit StringSink(std::string& out) : out_(out) {}
  void Append(const char* bytes, int32_t size) override {
    out_.append(bytes, static_cast<size_t>(size));
  }

 private:
  std::string& out_;
};

// The first byte of U+0300: no character before it changes, or changes another, in form C.
constexpr uint8_t kFirstChangingByte = 0xCC;
// ICU counts in int32, and calls for memory of a multiple of the input's.
constexpr size_t kMaxIcuBytes = size_t{1} << 28;

bool IsComposed(const icu::Normalizer2& form_c, absl::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const bool composed = form_c.isNormalizedUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), error);
  return U_SUCCESS(error) && composed;
}

// Form C as of Unicode 9: what the normalizer of Hugging Face's tokenizers knows, and so what
// models were trained on. Characters that came later stand where they stood. Null: ICU has no data.
const icu::Normalizer2* FormCOfUnicode9(const icu::Normalizer2& form_c) {
  static const icu::Normalizer2* const filtered = [&]() -> const icu::Normalizer2* {
    UErrorCode error = U_ZERO_ERROR;
    auto known = std::make_unique<icu::UnicodeSet>(u"[:age=9.0:]", error);
    if (U_FAILURE(error)) return nullptr;
    known->freeze();
    // Both live as long as the process.
    return std::make_unique<icu::FilteredNormalizer2>(form_c, *known.release()).release();
  }();
  return filtered;
}

// `text` is valid UTF-8.
void AppendComposed(const icu::Normalizer2& form_c, absl::string_view text, std::string& out) {
  UErrorCode error = U_ZERO_ERROR;
  const size_t begin = out.size();
  StringSink sink(out);
  form_c.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                       nullptr, error);
  if (U_FAILURE(error)) out.replace(begin, std::string::npos, text.data(), text.size());
}

}  // namespace

const CharacterTable& CharacterTable::Get() {
  static const CharacterTable* const table = new CharacterTable();
  return *table;
}

CharacterTable::CharacterTable() {
  std::map<Page, uint16_t> known;
  for (uint32_t page_number = 0; page_number < page_of_.size(); ++page_number) {
    Page page;
    for (uint32_t i = 0; i < kPageSize; ++i) page[i] = Classify((page_number << kPageBits) + i);
    const auto [found, is_new] = known.emplace(page, static_cast<uint16_t>(pages_.size()));
    if (is_new) pages_.push_back(page);
    page_of_[page_number] = found->second;
  }
  for (uint32_t i = 0; i < ascii_.size(); ++i) ascii_[i] = ClassOf(i);
}

Character CharacterTable::BeyondAscii(const char* at, const char* end) const {
  const CodePoint code_point = DecodeUtf8(at, end);
  if (code_point.bytes == 0) return {CharacterClass::kOther, 1};
  return {ClassOf(code_point.value), code_point.bytes};
}

CodePoint DecodeUtf8(const char* at, const char* end) {
  const auto byte = [&](ptrdiff_t i) { return static_cast<uint8_t>(at[i]); };
  const auto continues = [&](ptrdiff_t i) { return (byte(i) & 0xC0) == 0x80; };
  const ptrdiff_t available = end - at;
  if (available < 1) return {};
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first >= 0xC2 && first < 0xE0) {
    if (available < 2 || !continues(1)) return {};
    return {(first & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  }
  if (first >= 0xE0 && first < 0xF0) {
    if (available < 3 || !continues(1) || !continues(2)) return {};
    const uint32_t value = (first & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (value < 0x800 || (value >= 0xD800 && value < 0xE000)) return {};
    return {value, 3};
  }
  if (first >= 0xF0 && first < 0xF5) {
    if (available < 4 || !continues(1) || !continues(2) || !continues(3)) return {};
    const uint32_t value =
        (first & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
    if (value < 0x10000 || value > 0x10FFFF) return {};
    return {value, 4};
  }
  return {};
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

bool WordEndsAt(absl::string_view text, size_t at) {
  if (at == 0) return false;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  const CodePoint code_point = DecodeUtf8(text.data() + begin, text.data() + at);
  return begin + code_point.bytes == at && IsWordCharacter(code_point);
}

bool WordBeginsAt(absl::string_view text, size_t at) {
  return at < text.size() &&
         IsWordCharacter(DecodeUtf8(text.data() + at, text.data() + text.size()));
}

absl::string_view Composed(absl::string_view text, std::string& storage) {
  uint8_t largest = 0;  // In a loop without an exit, which the compiler makes fast.
  for (const char c : text) largest = std::max(largest, static_cast<uint8_t>(c));
  if (largest < kFirstChangingByte) return text;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const form_c = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) return text;
  if (text.size() <= kMaxIcuBytes && IsComposed(*form_c, text)) return text;
  // A part of composed text is composed, whatever is left out: only now the older form matters.
  const icu::Normalizer2* const older_form_c = FormCOfUnicode9(*form_c);
  if (older_form_c == nullptr) return text;
  storage.clear();
  const char* const end = text.data() + text.size();
  const char* at = text.data();
  while (at < end) {
    // A stretch of valid UTF-8, then what is none.
    const char* valid_end = at;
    while (valid_end < end && static_cast<size_t>(valid_end - at) < kMaxIcuBytes) {
      const uint8_t bytes = DecodeUtf8(valid_end, end).bytes;
      if (bytes == 0) break;
      valid_end += bytes;
    }
    AppendComposed(*older_form_c, {at, static_cast<size_t>(valid_end - at)}, storage);
    at = valid_end;
    while (at < end && DecodeUtf8(at, end).bytes == 0) storage.push_back(*at++);
  }
  return storage;
}

}  // namespace causeway::worker
