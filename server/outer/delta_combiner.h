// Combines the deltas of a round into one, g (algorithm.md, "The coordinator"):
//
//   clipping   s_m = min(1, c * median / n_m), where n_m is the norm of delta m over the whole
//              fragment, and the median that of the norms above 0 of contributions with a weight
//              (of an even number the lower one of the middle); without it s_m = 1
//   MEAN       g = sum_m (w_m * s_m) * delta_m     in double, in order of worker id
//   NORM_AND_DIRECTION
//              direction = sum_m (w_m / n_m) * delta_m      without those whose norm is 0
//              g = (sum_m w_m * min(n_m, c * median)) / |direction| * direction
//              or zero if there is no direction. A single contribution is taken as it is.
//   TRIMMED_MEAN
//              value by value: s_m * delta_m of those with a weight are sorted, equal ones by
//              worker id, and the first and last k are left out; g = sum w_m * (s_m * delta_m) over
//              the sum of w_m, both over the others in order of worker id. k is `trim`, at most
//              (n - 1) / 2 of n contributions; with fewer than five of them it is MEAN.
//
// The result has the same bits on any number of threads and for any order of the contributions.
// Clipping reads the contributions once more, NORM_AND_DIRECTION twice. Trimming takes 32 KiB per
// contribution and thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "causeway/v1/config.pb.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/codec/codec_layout.h"

namespace causeway::server {

// How the work on a fragment is cut: by position alone, so that results do not depend on the number
// of threads.

inline constexpr size_t kCacheLine = 64;  // Bytes.

// Values of a fragment.
struct Range {
  size_t begin = 0;
  size_t size = 0;
};

// Calls visit(chunk) for the codec chunks of `range`, until it returns an error.
template <typename Visit>
absl::Status ForEachChunk(Range range, const Visit& visit) {
  for (size_t done = 0; done < range.size; done += kCodecChunk) {
    const Range chunk{range.begin + done, std::min(kCodecChunk, range.size - done)};
    const absl::Status status = visit(chunk);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("in the chunk from value ", chunk.begin));
    }
  }
  return absl::OkStatus();
}

// Runs task(index, slice) on every slice of `slice_size` of `values` values, on `pool` or, without
// one, on this thread. Of several errors the first slice's is returned.
absl::Status ForEachSlice(size_t values, size_t slice_size, ThreadPool* pool,
                          const std::function<absl::Status(size_t, Range)>& task);

// TreeHash of an array that several threads fill, in any order: whoever completes a leaf hashes it
// at once, while it is still in a cache.
class LeafHasher {
 public:
  // `data` outlives the hasher and does not move.
  explicit LeafHasher(std::span<const uint8_t> data);

  // The bytes [begin, begin + size) have their final values. Every byte is reported once; any
  // threads may report at once.
  void Written(size_t begin, size_t size);

  // Once all of it is written: the checksums of the leaves, and the TreeHash that they make.
  const std::vector<uint64_t>& checksums() const { return checksums_; }
  uint64_t Root() const;

 private:
  std::span<const uint8_t> Leaf(size_t index) const;

  std::span<const uint8_t> data_;
  std::vector<std::atomic<size_t>> missing_;  // Bytes of each leaf that are not yet written.
  std::vector<uint64_t> checksums_;
};

struct Contribution {
  std::string worker_id;
  const Codec* codec = nullptr;
  std::span<const uint8_t> encoded;
  double weight = 0;  // All together 1 (ContributionWeights).
  // True: codec->Validate has accepted these bytes against published as it is now (GRADIENT:
  // against zeros). False: Prepare validates them first, and so reads them twice.
  bool validated = false;
};

struct MergeRule {
  v1::OuterConfig::Merge merge = v1::OuterConfig::MEAN;
  double clip_factor = 0;  // c, at least 1. 0 or infinity: none is shortened.
  int trim = 0;            // Values that TRIMMED_MEAN leaves out at each end.
};

// Takes a complete configuration.
MergeRule MergeRuleOf(const v1::OuterConfig& outer);

// Not thread-safe, but for Combine.
class DeltaCombiner {
 public:
  struct Input {
    std::vector<Contribution> contributions;  // In any order.
    // PARAMETER_DELTA: encoded against published. GRADIENT: against zeros.
    v1::SyncConfig::Contribution kind = v1::SyncConfig::PARAMETER_DELTA;
    MergeRule rule;
    // Outlives the combiner. A chunk may change once it is combined.
    std::span<const float> published;
  };
  // `pool`: null for this thread; outlives the combiner.
  DeltaCombiner(Input input, ThreadPool* pool);

  bool empty() const { return contributions_.empty(); }
  // Call it first, once. INVALID_ARGUMENT if a contribution is malformed (names the worker), two
  // have the same worker, weights do not sum to 1, or lengths differ; INTERNAL if one that was said
  // to be validated is malformed.
  absl::Status Prepare();
  // Returns |g|; reads the contributions once more. The errors are Combine's.
  absl::StatusOr<double> Norm() const;

  // Memory that a task on one thread keeps from chunk to chunk.
  using Scratch = std::vector<double>;
  // A chunk of g. `upcoming` as in Codec::WeightedSum. INTERNAL as above. Any threads at once, each
  // with a scratch of its own.
  absl::Status Combine(Range chunk, std::span<const float* const> upcoming, Scratch& scratch,
                       std::span<double> g) const;

 private:
  size_t size() const { return input_.published.size(); }
  absl::Status CheckContributions() const;
  absl::Status Validate() const;
  // Returns the values that the contributions of a chunk were encoded against.
  std::span<const float> Base(Range chunk) const;
  absl::Status Sum(Range chunk, std::span<const float* const> upcoming, std::span<double> g) const;
  absl::Status SumTrimmed(Range chunk, Scratch& scratch, std::span<double> g) const;
  // The norm of what `read(chunk, values)` makes of the fragment's chunks.
  absl::StatusOr<double> NormOf(
      const std::function<absl::Status(Range, std::span<double>)>& read) const;
  absl::StatusOr<double> NormOf(const Contribution& contribution) const;
  absl::Status WeighByNorms();
  // Replaces the weights by those with which the sum has the mean direction and this norm.
  absl::Status WeighByDirection(const std::vector<double>& norms, double mean_norm);

  const Input input_;
  ThreadPool* const pool_;
  std::vector<Contribution> contributions_;  // In order of worker id.
  std::vector<double> scales_;               // s_m of each.
  size_t trim_ = 0;                          // Left out at each end this round; 0: g is the sum.
  const Codec* one_codec_ = nullptr;         // If all contributions have the same.
};

}  // namespace causeway::server
