#include "worker/data/text_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
// UTF-8's limit: whoever waits for more waits for bytes that are no character.
constexpr size_t kMaxCharacterBytes = 4;

// Bytes at the end of `text` that begin a character without ending it.
size_t Unfinished(absl::string_view text) {
  for (size_t back = 1; back < kMaxCharacterBytes && back <= text.size(); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xc0U) == 0x80U) continue;
    const size_t length = byte >= 0xf0U ? 4 : byte >= 0xe0U ? 3 : byte >= 0xc0U ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::string> DecodeAfter(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                        std::span<const int32_t> tokens) {
  ASSIGN_OR_RETURN(const std::string before, tokenizer.Decode(prompt));
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(all));
  // A character may have begun in the prompt and end in the text.
  if (!absl::StartsWith(text, before)) return tokenizer.Decode(tokens);
  return text.substr(before.size());
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt, Sink sink)
    : tokenizer_(tokenizer), sink_(std::move(sink)), context_(std::move(prompt)) {}

void TextStream::Add(int32_t token) {
  tokens_.push_back(token);
  ++waiting_;
  HandOut(/*whole=*/false);
}

void TextStream::Finish() { HandOut(/*whole=*/true); }

void TextStream::HandOut(bool whole) {
  const absl::StatusOr<std::string> text = DecodeAfter(tokenizer_, context_, tokens_);
  if (!text.ok()) return;
  size_t end = text->size();
  if (!whole && waiting_ < kMaxCharacterBytes) {
    // SentencePiece has U+FFFD for a character whose bytes are not all there yet.
    if (absl::EndsWith(*text, kReplacement)) return;
    end -= Unfinished(*text);
  }
  if (end > handed_out_) {
    sink_(absl::string_view(*text).substr(handed_out_, end - handed_out_));
    handed_out_ = end;
    waiting_ = 0;
  }
  if (end < text->size()) return;
  // The text that is decoded again for the next token stays short. These tokens are its context if
  // they have a text of their own; otherwise it would be taken for the beginning of one.
  const absl::StatusOr<std::string> alone = tokenizer_.Decode(tokens_);
  if (!alone.ok() || alone->empty()) return;
  context_ = std::exchange(tokens_, {});
  handed_out_ = 0;
}

}  // namespace causeway::worker
