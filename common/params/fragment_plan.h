// The cut of a model's parameters into fragments, and the arena that follows from it.
//
// The arena is one array of values that holds every tensor, ordered by fragment, each tensor
// starting at a multiple of kArenaAlignment values with zeros between: **a fragment is one
// contiguous range of the arena**, a codec block never straddles two tensors, and a snapshot, an
// encoding, a merge and a copy touch one range. Weights, gradients and moments all use this layout
// on every device, and the coordinator keeps its state in it. On the wire a fragment is its range.
//
// Patterns (arXiv 2501.18512, section 2.3; `balanced` after 2604.21428):
//   P = 1        the whole model is fragment 0.
//   strided      block l belongs to fragment l mod P; the tensors outside the blocks form
//   sequential   fragment P. sequential: runs of consecutive blocks, the first ones longer.
//   balanced     P fragments of nearly equal size in model order, cut between tensors or rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/tensor_table.h"

namespace causeway {

inline constexpr int64_t kArenaAlignment = 64;  // Values: 256 bytes of fp32.

struct PlacedTensor {
  TensorInfo info;
  int64_t offset = 0;  // In the arena, in values.
};

struct FragmentRange {
  int64_t begin = 0;  // In the arena, in values; multiples of kArenaAlignment.
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Values between tensors, in the last block of one: its own values there are source .. begin.
struct ArenaGap {
  int64_t begin = 0;  // In the arena, in values.
  int64_t end = 0;
  int64_t source = 0;
};

// Immutable and thread-safe.
class FragmentPlan {
 public:
  // Cuts these tensors, whose order the arena keeps within a fragment. `sync` must be complete
  // (run_config.h). INVALID_ARGUMENT if they cannot be cut into so many fragments.
  static absl::StatusOr<FragmentPlan> Create(const std::vector<TensorInfo>& tensors,
                                             const v1::SyncConfig& sync);
  // The plan of a run: RunTensors of its complete configuration, cut as it says.
  static absl::StatusOr<FragmentPlan> Create(const v1::RunConfig& config);

  int fragments() const { return static_cast<int>(ranges_.size()); }
  const FragmentRange& range(int fragment) const { return ranges_[static_cast<size_t>(fragment)]; }
  // In arena order.
  const std::vector<PlacedTensor>& tensors() const { return tensors_; }
  const PlacedTensor* Find(const std::string& name) const;
  // In arena order.
  const std::vector<ArenaGap>& gaps() const { return gaps_; }
  // Values in the arena, alignment included.
  int64_t arena_size() const { return arena_size_; }
  // Values in tensors: what people call the number of parameters.
  int64_t parameters() const { return parameters_; }
  // Over names, shapes, offsets and ranges: equal plans mean the same bytes on the wire.
  uint64_t hash() const { return hash_; }

 private:
  std::vector<PlacedTensor> tensors_;
  std::vector<ArenaGap> gaps_;
  std::vector<FragmentRange> ranges_;
  int64_t arena_size_ = 0;
  int64_t parameters_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace causeway
