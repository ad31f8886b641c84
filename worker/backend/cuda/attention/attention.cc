#include "worker/backend/cuda/attention/attention.h"

#include <algorithm>

namespace causeway::worker::cuda {
namespace {

constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;  // A grid's limit along x.
constexpr int64_t kMaxRowBlocks = 65535;                // Along y, of 128 rows each.
constexpr int64_t kMaxPasses = 65535;                   // Along z.
// Less than half of an A100's second-level cache, and a third of an H100's.
constexpr int64_t kCacheBytes = int64_t{16} << 20;

}  // namespace

const char* AttentionRefusal(const AttentionShape& shape) {
  if (shape.head_dim < 8 || shape.head_dim > 128 || shape.head_dim % 8 != 0) {
    return "attention on GPUs takes heads of 8 to 128 values, in multiples of 8: choose another "
           "model.head_dim, or train with --device=cpu";
  }
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    return "model.kv_heads must divide model.heads";
  }
  if (shape.length < 1 || shape.length > kMaxRowBlocks * 128) {
    return "attention on GPUs takes windows of 1 to 8388480 tokens: lower model.sequence_length";
  }
  if (shape.sequences < 1 || int64_t{shape.sequences} * shape.heads > kMaxBlocks) {
    return "too many windows at a time: lower train.micro_batch_sequences";
  }
  return nullptr;
}

int AttentionHeadsAtATime(const AttentionShape& shape, bool of_keys) {
  const int64_t sharing = shape.heads / shape.kv_heads;
  const int64_t columns = int64_t{shape.sequences} * (of_keys ? shape.kv_heads : shape.heads);
  int64_t at_a_time = shape.heads_at_a_time;
  if (at_a_time == 0) {
    // Two bf16 arrays: of one key head, or of all queries that share it.
    const int64_t bytes = 4 * int64_t{shape.length} * shape.head_dim * (of_keys ? sharing : 1);
    const int64_t together = of_keys ? 1 : sharing;  // Columns that read the same.
    const int64_t sets = columns / together;
    const int64_t fitting = std::max<int64_t>(1, kCacheBytes / bytes);
    const int64_t passes = (sets + fitting - 1) / fitting;
    at_a_time = together * ((sets + passes - 1) / passes);  // Passes of one size.
  }
  const int64_t least = (columns + kMaxPasses - 1) / kMaxPasses;
  return static_cast<int>(std::clamp(at_a_time, least, columns));
}

}  // namespace causeway::worker::cuda
