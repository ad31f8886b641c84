// How many bytes of text tokens stand for.
#ifndef CAUSEWAY_WORKER_DATA_TEXT_BYTES_H_
#define CAUSEWAY_WORKER_DATA_TEXT_BYTES_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

// Bytes of the text of a window's targets (WindowSampler::Read), as they decode where they stand:
// after the token before them, since a tokenizer may drop a space at the beginning of a text. What
// stands between documents has no bytes (the tokenizer's begin and end of text, and `separators`),
// and neither have positions without a target. They are the bytes that were encoded if the
// tokenizer keeps_text(). Errors of Tokenizer::Decode.
absl::StatusOr<int64_t> TextBytes(const Tokenizer& tokenizer, std::span<const int32_t> inputs,
                                  std::span<const int32_t> targets,
                                  std::span<const int64_t> separators = {});

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TEXT_BYTES_H_
