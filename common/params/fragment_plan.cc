#include "common/params/fragment_plan.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"

namespace causeway {
namespace {

int64_t AlignUp(int64_t value) {
  return (value + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// The fragment of a block under the patterns that keep blocks whole.
int FragmentOfBlock(int block, int layers, int fragments, v1::SyncConfig::Pattern pattern) {
  if (pattern == v1::SyncConfig::STRIDED) return block % fragments;
  // Runs of consecutive blocks: the first `longer` of them have one block more.
  const int shorter_run = layers / fragments;
  const int longer = layers % fragments;
  const int in_longer = longer * (shorter_run + 1);
  if (block < in_longer) return block / (shorter_run + 1);
  return longer + (block - in_longer) / shorter_run;
}

// Places where a balanced cut may fall: aligned starts of tensors and of matrix rows. Returns the
// one nearest to `target` strictly inside (low, high), the lower one of two, or -1. `target` lies
// in the arena. Takes the logarithm of the number of tensors, for the sake of models with many.
int64_t NearestCut(const std::vector<PlacedTensor>& tensors, int64_t target, int64_t low,
                   int64_t high) {
  int64_t best = -1;
  const auto offer = [&](int64_t cut) {
    if (cut <= low || cut >= high) return;
    if (best < 0 || std::abs(cut - target) < std::abs(best - target)) best = cut;
  };
  // The tensor that starts last among those that start at or before `place`.
  const auto tensor_at = [&](int64_t place) {
    return std::prev(std::ranges::upper_bound(tensors, place, {}, &PlacedTensor::offset));
  };
  // In ascending order, so that the first of two equally near ones wins. Nearest from below: the
  // tensor around the target, or, where that starts too high, the last one that does not.
  const auto around = tensor_at(target);
  offer(tensor_at(std::min(target, high - 1))->offset);
  const int64_t within = target - around->offset;
  if (within > 0 && within < around->info.size() && around->info.is_matrix()) {
    // The aligned row starts on both sides of the target; at most kArenaAlignment rows away.
    const int64_t cols = around->info.cols;
    const int64_t row = within / cols;
    for (int64_t r = row; r > 0 && row - r < kArenaAlignment; --r) {
      if (r * cols % kArenaAlignment == 0) {
        offer(around->offset + r * cols);
        break;
      }
    }
    for (int64_t r = row + 1; r < around->info.rows && r - row <= kArenaAlignment; ++r) {
      if (r * cols % kArenaAlignment == 0) {
        offer(around->offset + r * cols);
        break;
      }
    }
  }
  // Nearest from above.
  const auto next = std::next(tensor_at(std::max(target, low)));
  if (next != tensors.end()) offer(next->offset);
  return best;
}

// Appends the tensors, in that order, and the range that they fill.
void PlaceFragment(const std::vector<TensorInfo>& fragment, std::vector<PlacedTensor>& tensors,
                   std::vector<FragmentRange>& ranges, int64_t& end) {
  const int64_t begin = end;
  for (const TensorInfo& tensor : fragment) {
    tensors.push_back({tensor, end});
    end = AlignUp(end + tensor.size());
  }
  ranges.push_back({begin, end});
}

uint64_t HashPlan(const std::vector<PlacedTensor>& tensors,
                  const std::vector<FragmentRange>& ranges) {
  std::string text;
  for (const PlacedTensor& tensor : tensors) {
    absl::StrAppend(&text, tensor.info.name, " ",
                    tensor.info.shape.size() > 2
                        ? absl::StrJoin(tensor.info.shape, "x")
                        : absl::StrCat(tensor.info.rows, "x", tensor.info.cols),
                    " @", tensor.offset, "\n");
  }
  for (const FragmentRange& range : ranges) {
    absl::StrAppend(&text, "fragment ", range.begin, " ", range.end, "\n");
  }
  return Checksum64(text);
}

}  // namespace

absl::StatusOr<FragmentPlan> FragmentPlan::Create(const v1::RunConfig& config) {
  return Create(RunTensors(config), config.sync());
}

absl::StatusOr<FragmentPlan> FragmentPlan::Create(const std::vector<TensorInfo>& table,
                                                  const v1::SyncConfig& sync) {
  const int count = sync.fragments();
  FragmentPlan plan;
  plan.parameters_ = CountParameters(table);

  if (count == 1 || sync.pattern() == v1::SyncConfig::BALANCED) {
    PlaceFragment(table, plan.tensors_, plan.ranges_, plan.arena_size_);
    if (count > 1) {
      plan.ranges_.clear();
      int64_t begin = 0;
      for (int k = 1; k <= count; ++k) {
        int64_t end = plan.arena_size_;
        if (k < count) {
          // arena_size * k / count, without the overflow.
          const int64_t target =
              plan.arena_size_ / count * k + plan.arena_size_ % count * k / count;
          end = NearestCut(plan.tensors_, target, begin, plan.arena_size_);
          if (end < 0) {
            return absl::InvalidArgumentError(absl::StrCat(
                "sync.fragments: the model's ", plan.parameters_, " parameters cannot be cut into ",
                count, " balanced fragments between rows; use fewer"));
          }
        }
        plan.ranges_.push_back({begin, end});
        begin = end;
      }
    }
  } else {
    // The last one holds what belongs to no block.
    const int blocks = CountBlocks(table);
    if (count > blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("sync.fragments: ", count,
                       " fragments of whole blocks need as many blocks, and the "
                       "tensors' names number ",
                       blocks, "; use fewer, or pattern BALANCED"));
    }
    std::vector<std::vector<TensorInfo>> tables(static_cast<size_t>(count) + 1);
    for (const TensorInfo& tensor : table) {
      const int fragment =
          tensor.block < 0 ? count : FragmentOfBlock(tensor.block, blocks, count, sync.pattern());
      tables[static_cast<size_t>(fragment)].push_back(tensor);
    }
    for (const std::vector<TensorInfo>& fragment : tables) {
      PlaceFragment(fragment, plan.tensors_, plan.ranges_, plan.arena_size_);
    }
  }
  for (size_t i = 0; i < plan.ranges_.size(); ++i) {
    if (plan.ranges_[i].size() <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sync.fragments: fragment ", i, " of ", plan.ranges_.size(),
                       " would be empty; use fewer fragments, or pattern BALANCED"));
    }
  }
  for (const PlacedTensor& tensor : plan.tensors_) {
    const int64_t end = tensor.offset + tensor.info.size();
    if (end == AlignUp(end)) continue;
    plan.gaps_.push_back({end, AlignUp(end), AlignUp(end) - kArenaAlignment});
  }
  plan.hash_ = HashPlan(plan.tensors_, plan.ranges_);
  return plan;
}

const PlacedTensor* FragmentPlan::Find(const std::string& name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(),
                   [&](const PlacedTensor& tensor) { return tensor.info.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace causeway
