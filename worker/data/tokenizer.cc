#include "worker/data/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

absl::Status ByteTokenizer::Encode(absl::string_view text, std::vector<int32_t>& tokens) const {
  const size_t begin = tokens.size();
  tokens.resize(begin + text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[begin + i] = static_cast<uint8_t>(text[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteTokenizer::Decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is no byte; tokens of the byte tokenizer are 0 to 255"));
    }
    text.push_back(static_cast<char>(static_cast<uint8_t>(token)));
  }
  return text;
}

size_t ByteTokenizer::NextCut(absl::string_view text, size_t from) const {
  return std::min(from, text.size());
}

}  // namespace causeway::worker
