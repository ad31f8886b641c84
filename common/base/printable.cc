#include "common/base/printable.h"

namespace causeway {

std::string Printable(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte < 0x20 || byte == 0x7F) {
      result += '?';
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 .. U+009F in UTF-8.
      result += '?';
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace causeway
