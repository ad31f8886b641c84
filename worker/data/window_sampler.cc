#include "worker/data/window_sampler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

absl::Status CheckSequenceLength(int64_t sequence_length) {
  if (sequence_length >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sequence_length must be at least 1, it is ", sequence_length));
}

// `row` has T values each; the window is shared by both but for its first and last token.
absl::Status ReadWindow(const ShardSequence& tokens, int64_t window, int64_t vocabulary_size,
                        std::span<int32_t> inputs, std::span<int32_t> targets) {
  const auto length = static_cast<int64_t>(inputs.size());
  RETURN_IF_ERROR(tokens.Read(window * length, vocabulary_size, inputs));
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  return tokens.Read((window + 1) * length, vocabulary_size, targets.last(1));
}

}  // namespace

int64_t CountWindows(int64_t tokens, int64_t sequence_length) {
  return tokens > 0 ? (tokens - 1) / sequence_length : 0;
}

WindowSampler::WindowSampler(std::shared_ptr<const ShardSequence> tokens,
                             const SamplingOptions& options)
    : tokens_(std::move(tokens)),
      options_(options),
      windows_(CountWindows(tokens_->tokens(), options.sequence_length)) {}

absl::StatusOr<WindowSampler> WindowSampler::Create(const Dataset& dataset,
                                                    const SamplingOptions& options) {
  RETURN_IF_ERROR(CheckSequenceLength(options.sequence_length));
  if (options.slots < 1 || options.slot < 0 || options.slot >= options.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", options.slot, " of ", options.slots, " does not exist"));
  }
  WindowSampler sampler(dataset.train(), options);
  if (sampler.windows() < options.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", dataset.train()->tokens(), " training tokens in ", dataset.folder(),
                     " make ", sampler.windows(), " windows of ", options.sequence_length,
                     " tokens; the run needs ", options.slots,
                     ", one for each of membership.max_workers; take more text, or a shorter "
                     "model.sequence_length"));
  }
  return sampler;
}

int64_t WindowSampler::WindowAt(int64_t cursor) const {
  const auto draw = static_cast<uint64_t>(cursor * options_.slots + options_.slot);
  const auto windows = static_cast<uint64_t>(windows_);
  return static_cast<int64_t>(
      RandomPermutation(options_.seed, /*stream=*/draw / windows, windows, draw % windows));
}

absl::Status WindowSampler::Read(int64_t cursor, std::span<int32_t> inputs,
                                 std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  for (size_t row = 0; row < inputs.size(); row += length, ++cursor) {
    RETURN_IF_ERROR(ReadWindow(*tokens_, WindowAt(cursor), options_.vocabulary_size,
                               inputs.subspan(row, length), targets.subspan(row, length)));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeldOutWindows> HeldOutWindows::Create(const Dataset& dataset,
                                                      int64_t sequence_length,
                                                      int64_t vocabulary_size, int64_t count) {
  RETURN_IF_ERROR(CheckSequenceLength(sequence_length));
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of held-out windows must be at least 1, it is ", count));
  }
  const int64_t available = CountWindows(dataset.held_out()->tokens(), sequence_length);
  if (available < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", dataset.held_out()->tokens(), " held-out tokens in ", dataset.folder(),
        " do not make one window of ", sequence_length + 1,
        " tokens; take more text, a larger held-out part, or a shorter model.sequence_length"));
  }
  HeldOutWindows windows;
  windows.tokens_ = dataset.held_out();
  windows.sequence_length_ = sequence_length;
  windows.vocabulary_size_ = vocabulary_size;
  const int64_t chosen = std::min(count, available);
  for (int64_t i = 0; i < chosen; ++i) {
    // floor(i * available / chosen), without overflow.
    windows.windows_.push_back(i * (available / chosen) + i * (available % chosen) / chosen);
  }
  return windows;
}

absl::Status HeldOutWindows::Read(int64_t first, std::span<int32_t> inputs,
                                  std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(sequence_length_);
  for (size_t row = 0; row < inputs.size(); row += length, ++first) {
    RETURN_IF_ERROR(ReadWindow(*tokens_, windows_[static_cast<size_t>(first)], vocabulary_size_,
                               inputs.subspan(row, length), targets.subspan(row, length)));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
