// Says which device of a site keeps which part of every fragment (ZeRO-1 and 2), and which parts of
// the gradient are summed over the devices at once.
//
// Every device has all bf16 weights, in arena order. Master weights, moments, published copy and
// residuals are divided, gradients where that is asked for: a device, here a rank, has one
// **piece** of every bucket. A **bucket** is a range of a fragment whose gradient becomes ready
// together, as backward goes from the head to the embedding: the reduce-scatter of one bucket runs
// beside the backward pass of the next, and the all-gather of its weights beside the forward pass.
//
// Everything is cut between whole codec chunks, counted from the fragment's beginning. So each rank
// encodes and decodes its own pieces. Its bytes are a run of those that one device alone would
// make, at EncodedBytes(piece.begin - range.begin).
//
// *Example.* A fragment of 5 chunks, of which the last is short, on 2 ranks, in one bucket: rank 0
// has chunks 0 and 1, rank 1 has 2, 3 and the short one. Sizes of buckets are multiples of the
// ranks where that can be (the collectives are faster then), but for the last of a fragment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/params/fragment_plan.h"

namespace causeway::worker {

// The ranks of a process among those of its site.
struct RankRange {
  int first = 0;
  int count = 1;
};

// A range of the arena that one rank owns.
struct ShardPiece {
  int64_t begin = 0;  // In the arena, in values.
  int64_t end = 0;
  int fragment = 0;
  int bucket = 0;
  int64_t offset = 0;  // Place of its first value in the rank's own arrays, which have no gaps.
  int64_t size() const { return end - begin; }
};

// A range of the arena that a rank is to own, up to whole chunks.
struct OwnedRange {
  int64_t begin = 0;
  int64_t end = 0;
  int rank = 0;
};

struct ShardBucket {
  int fragment = 0;
  // Its gradient is complete when backward has done this stage: 0 is head and final norm, then the
  // blocks from the last one down, then embedding and positions.
  int stage = 0;
  // ranks + 1 ascending places in the arena: rank r owns bounds[r] .. bounds[r + 1], which may be
  // empty.
  std::vector<int64_t> bounds;
  int64_t begin() const { return bounds.front(); }
  int64_t end() const { return bounds.back(); }
};

// Immutable and thread-safe.
class ShardPlan {
 public:
  // `ranks` >= 1. Buckets of fewer values than `least_bucket` are joined with a neighbour of their
  // fragment; what is joined is ready with the later of both.
  ShardPlan(const FragmentPlan& plan, int ranks, int64_t least_bucket = int64_t{1} << 20);
  // Without buckets: a chunk is its rank's who owns the first value of it, or the last one before
  // that in the fragment, or the fragment's first. `owned` are in arena order and do not overlap.
  ShardPlan(const FragmentPlan& plan, int ranks, std::span<const OwnedRange> owned);

  // One rank has everything, a piece of each fragment.
  static ShardPlan Whole(const FragmentPlan& plan);

  int ranks() const { return static_cast<int>(pieces_.size()); }
  // The last stage is stages() - 1.
  int stages() const { return stages_; }
  // In the order in which they become ready; of equal ones in arena order.
  const std::vector<ShardBucket>& buckets() const { return buckets_; }
  // In arena order; empty ones are left out.
  std::span<const ShardPiece> pieces(int rank) const { return pieces_[static_cast<size_t>(rank)]; }
  std::span<const ShardPiece> pieces(int rank, int fragment) const;
  // Values of the rank's own arrays.
  int64_t shard_size(int rank) const;
  // How many of the values are in pieces of that fragment.
  int64_t shard_size(int rank, int fragment) const;

 private:
  // Gives pieces their places in their ranks' arrays.
  void PlacePieces();

  int stages_ = 0;
  std::vector<ShardBucket> buckets_;
  std::vector<std::vector<ShardPiece>> pieces_;  // By rank.
};

// A part of the values between tensors that a rank owns.
struct GapPiece {
  int64_t begin = 0;  // In the arena, in values.
  int64_t size = 0;
  int64_t place = 0;  // Of its first value among all gaps of the fragment, one after the other.
};
// In arena order.
std::vector<GapPiece> GapPieces(const FragmentPlan& plan, const ShardPlan& shards, int rank,
                                int fragment);
// How many values are in all gaps of the fragment.
int64_t GapSize(const FragmentPlan& plan, int fragment);

// The stage of backward after which a tensor's gradient is complete. `layers` of the model.
int ReadyStage(const TensorInfo& tensor, int layers);

}  // namespace causeway::worker
