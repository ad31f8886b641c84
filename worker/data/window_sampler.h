// Draws the tokens that a worker trains on at each step.
//
// A sequence of n tokens holds N = floor((n - 1) / T) windows of T + 1 tokens; window w begins at
// token w * T. A window's first T tokens are the model's inputs, its last T the targets, so every
// token but the first (and a rest of less than T) is a target exactly once.
//
// The windows of a run are drawn without replacement, in an order that is a pure function of the
// seed: draw g belongs to epoch g / N and takes window perm(epoch, g mod N). Slot s of K takes the
// draws c * K + s for its cursor c = 0, 1, 2 and so on. So the slots of a run are disjoint, whoever
// joins or leaves. K workers of batch B draw at each step what one worker of batch K * B would. A
// worker has no state but its cursor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace causeway::worker {

// Windows of `sequence_length` + 1 tokens in a sequence of `tokens`.
int64_t CountWindows(int64_t tokens, int64_t sequence_length);

struct SamplingOptions {
  int64_t sequence_length = 0;  // T.
  int64_t vocabulary_size = 0;  // The model's.
  uint64_t seed = 0;
  int slot = 0;   // Part of this worker, in [0, slots).
  int slots = 1;  // Parts of the data: the run's max_workers.
  // Documents that share a window do not see each other: Read fills document_starts, and the first
  // token of a document is nobody's target.
  bool document_masking = false;
};

// Immutable and thread-safe.
class WindowSampler {
 public:
  // INVALID_ARGUMENT if there is not one window for every slot, or an option is out of range.
  // Checks nothing against the vocabulary: see Dataset::CheckVocabulary.
  static absl::StatusOr<WindowSampler> Create(const Dataset& dataset,
                                              const SamplingOptions& options);

  // Windows of an epoch, of all slots together.
  int64_t windows() const { return windows_; }
  // The window that the slot trains on at `cursor` >= 0.
  int64_t WindowAt(int64_t cursor) const;

  // Fills `inputs` and `targets`, both [windows, T] row by row, with the windows at cursor,
  // cursor + 1 and so on. DATA_LOSS for a token outside the vocabulary. With document_masking,
  // targets are -1 where there is none, and `document_starts`, of the same shape, tells for each
  // input where in its row its document begins.
  absl::Status Read(int64_t cursor, std::span<int32_t> inputs, std::span<int32_t> targets,
                    std::span<int32_t> document_starts = {}) const;

 private:
  WindowSampler(std::shared_ptr<const ShardSequence> tokens, const SamplingOptions& options);

  std::shared_ptr<const ShardSequence> tokens_;
  SamplingOptions options_;
  int64_t windows_;
};

// A fixed choice of held-out windows, spread evenly. Immutable and thread-safe.
class HeldOutWindows {
 public:
  // At most `count` >= 1 windows: all, if there are fewer. INVALID_ARGUMENT if there is none.
  static absl::StatusOr<HeldOutWindows> Create(const Dataset& dataset, int64_t sequence_length,
                                               int64_t vocabulary_size, int64_t count,
                                               bool document_masking = false);

  int64_t size() const { return static_cast<int64_t>(windows_.size()); }
  bool document_masking() const { return document_masking_; }
  // As WindowSampler::Read, from the `first` window of the choice on.
  absl::Status Read(int64_t first, std::span<int32_t> inputs, std::span<int32_t> targets,
                    std::span<int32_t> document_starts = {}) const;

 private:
  HeldOutWindows() = default;

  std::shared_ptr<const ShardSequence> tokens_;
  int64_t sequence_length_ = 0;
  int64_t vocabulary_size_ = 0;
  bool document_masking_ = false;
  std::vector<int64_t> windows_;
};

}  // namespace causeway::worker
