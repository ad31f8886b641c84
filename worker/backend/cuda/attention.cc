#include "worker/backend/cuda/attention.h"

namespace causeway::worker::cuda {
namespace {

constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;  // Of a grid, along x.
constexpr int64_t kMaxRowBlocks = 65535;                // Along y, of 128 rows each.

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

}  // namespace causeway::worker::cuda
