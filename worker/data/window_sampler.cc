#include "worker/data/window_sampler.h"

#include <algorithm>

#include "common/base/random.h"

namespace causeway::worker {
namespace {

absl::Status CheckSequenceLength(int64_t sequence_length) {
  if (sequence_length >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sequence_length must be at least 1, it is ", sequence_length));
}

absl::Status CheckMasking(const Dataset& dataset, const ShardSequence& tokens,
                          bool document_masking) {
  if (!document_masking || tokens.tokens() == 0 || tokens.documents().has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("train.document_masking needs to know where documents begin, and the data in ",
                   dataset.folder(),
                   " do not say: name the token that stands there by --document_begin=TOKEN or "
                   "--document_end=TOKEN, or make the data with `causeway-worker tokenize`"));
}

struct WindowReader {
  const ShardSequence& tokens;
  int64_t vocabulary_size;
  bool document_masking;

  // The spans have T values each; the window is shared by inputs and targets but for its first and
  // last token.
  absl::Status Read(int64_t window, std::span<int32_t> inputs, std::span<int32_t> targets,
                    std::span<int32_t> document_starts) const {
    const auto length = static_cast<int64_t>(inputs.size());
    RETURN_IF_ERROR(tokens.Read(window * length, vocabulary_size, inputs));
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    RETURN_IF_ERROR(tokens.Read((window + 1) * length, vocabulary_size, targets.last(1)));
    if (!document_masking) return absl::OkStatus();
    tokens.documents()->Fill(window * length, document_starts);
    for (size_t i = 0; i + 1 < inputs.size(); ++i) {
      if (document_starts[i + 1] == static_cast<int32_t>(i + 1)) targets[i] = -1;
    }
    const std::vector<int64_t>& starts = tokens.documents()->starts();
    if (std::binary_search(starts.begin(), starts.end(), (window + 1) * length)) {
      targets.back() = -1;
    }
    return absl::OkStatus();
  }
};

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
  RETURN_IF_ERROR(CheckMasking(dataset, *dataset.train(), options.document_masking));
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
                                 std::span<int32_t> targets,
                                 std::span<int32_t> document_starts) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  const WindowReader reader = {*tokens_, options_.vocabulary_size, options_.document_masking};
  for (size_t row = 0; row < inputs.size(); row += length, ++cursor) {
    const size_t starts = options_.document_masking ? length : 0;
    RETURN_IF_ERROR(reader.Read(WindowAt(cursor), inputs.subspan(row, length),
                                targets.subspan(row, length),
                                document_starts.subspan(starts > 0 ? row : 0, starts)));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeldOutWindows> HeldOutWindows::Create(const Dataset& dataset,
                                                      int64_t sequence_length,
                                                      int64_t vocabulary_size, int64_t count,
                                                      bool document_masking) {
  RETURN_IF_ERROR(CheckSequenceLength(sequence_length));
  RETURN_IF_ERROR(CheckMasking(dataset, *dataset.held_out(), document_masking));
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
  windows.document_masking_ = document_masking;
  const int64_t chosen = std::min(count, available);
  for (int64_t i = 0; i < chosen; ++i) {
    // floor(i * available / chosen), without overflow.
    windows.windows_.push_back(i * (available / chosen) + i * (available % chosen) / chosen);
  }
  return windows;
}

absl::Status HeldOutWindows::Read(int64_t first, std::span<int32_t> inputs,
                                  std::span<int32_t> targets,
                                  std::span<int32_t> document_starts) const {
  const auto length = static_cast<size_t>(sequence_length_);
  const WindowReader reader = {*tokens_, vocabulary_size_, document_masking_};
  for (size_t row = 0; row < inputs.size(); row += length, ++first) {
    const size_t starts = document_masking_ ? length : 0;
    RETURN_IF_ERROR(reader.Read(windows_[static_cast<size_t>(first)], inputs.subspan(row, length),
                                targets.subspan(row, length),
                                document_starts.subspan(starts > 0 ? row : 0, starts)));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
