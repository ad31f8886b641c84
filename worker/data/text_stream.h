// Tokens as text while they come.
#ifndef CAUSEWAY_WORKER_DATA_TEXT_STREAM_H_
#define CAUSEWAY_WORKER_DATA_TEXT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

// The text that `tokens` add to what `prompt` says. Tokenizers may drop a space at the beginning of
// what they decode (SentencePiece does), so the tokens cannot be decoded without the prompt.
absl::StatusOr<std::string> DecodeAfter(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                        std::span<const int32_t> tokens);

// Hands out a text while its tokens come, never half a character. A token takes the time of
// decoding a few, however many came before it. Not thread-safe.
class TextStream {
 public:
  using Sink = std::function<void(absl::string_view text)>;

  // `tokenizer` outlives the stream. The prompt is not handed out.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt, Sink sink);

  void Add(int32_t token);
  // Hands out what may have been half a character.
  void Finish();

 private:
  void HandOut(bool whole);

  const Tokenizer& tokenizer_;
  const Sink sink_;
  std::vector<int32_t> context_;  // Before `tokens_`: the prompt, or the last tokens handed out.
  std::vector<int32_t> tokens_;
  size_t handed_out_ = 0;  // Bytes of their text.
  size_t waiting_ = 0;     // Tokens since the last byte was handed out.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TEXT_STREAM_H_
