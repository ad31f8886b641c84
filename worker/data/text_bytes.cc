#include "worker/data/text_bytes.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/status_macros.h"
#include "worker/data/text_stream.h"

namespace causeway::worker {

absl::StatusOr<int64_t> TextBytes(const Tokenizer& tokenizer, std::span<const int32_t> inputs,
                                  std::span<const int32_t> targets,
                                  std::span<const int64_t> separators) {
  const std::optional<int32_t> begin_of_text = tokenizer.begin_of_text();
  const std::optional<int32_t> end_of_text = tokenizer.end_of_text();
  const auto separates = [&](int32_t token) {
    return token == begin_of_text || token == end_of_text ||
           std::ranges::find(separators, int64_t{token}) != separators.end();
  };
  const auto ends_text = [&](size_t i) { return targets[i] < 0 || separates(targets[i]); };
  int64_t bytes = 0;
  for (size_t begin = 0; begin < targets.size();) {
    size_t stop = begin;
    while (stop < targets.size() && !ends_text(stop)) ++stop;
    // inputs[begin] is the token before: of the same document, or what stands between two.
    const bool goes_on = !separates(inputs[begin]);
    ASSIGN_OR_RETURN(const std::string text,
                     DecodeAfter(tokenizer, inputs.subspan(begin, goes_on ? 1 : 0),
                                 targets.subspan(begin, stop - begin)));
    bytes += std::ssize(text);
    begin = stop + 1;
  }
  return bytes;
}

}  // namespace causeway::worker
