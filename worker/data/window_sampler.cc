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

// Fills rows of T values with the windows that `window_of` names for row 0, 1 and so on. A window
// is shared by inputs and targets but for its first and last token.
absl::Status ReadWindows(const ShardSequence& tokens, int64_t vocabulary_size, int64_t length,
                         bool document_masking, absl::FunctionRef<int64_t(int64_t row)> window_of,
                         std::span<int32_t> all_inputs, std::span<int32_t> all_targets,
                         std::span<int32_t> all_starts) {
  const auto values = static_cast<size_t>(length);
  for (size_t at = 0; at < all_inputs.size(); at += values) {
    const int64_t begin = window_of(static_cast<int64_t>(at / values)) * length;
    const std::span<int32_t> inputs = all_inputs.subspan(at, values);
    const std::span<int32_t> targets = all_targets.subspan(at, values);
    RETURN_IF_ERROR(tokens.Read(begin, vocabulary_size, inputs));
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    RETURN_IF_ERROR(tokens.Read(begin + length, vocabulary_size, targets.last(1)));
    if (!document_masking) continue;
    const std::span<int32_t> starts = all_starts.subspan(at, values);
    tokens.documents()->Fill(begin, starts);
    for (size_t i = 0; i + 1 < values; ++i) {
      if (starts[i + 1] == static_cast<int32_t>(i + 1)) targets[i] = -1;
    }
    const std::vector<int64_t>& documents = tokens.documents()->starts();
    if (std::binary_search(documents.begin(), documents.end(), begin + length)) targets.back() = -1;
  }
  return absl::OkStatus();
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
  return ReadWindows(
      *tokens_, options_.vocabulary_size, options_.sequence_length, options_.document_masking,
      [&](int64_t row) { return WindowAt(cursor + row); }, inputs, targets, document_starts);
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
  return ReadWindows(
      *tokens_, vocabulary_size_, sequence_length_, document_masking_,
      [&](int64_t row) { return windows_[static_cast<size_t>(first + row)]; }, inputs, targets,
      document_starts);
}

}  // namespace causeway::worker
