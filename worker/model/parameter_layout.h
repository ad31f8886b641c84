// Where the transformer's tensors lie in an arena.
#ifndef CAUSEWAY_WORKER_MODEL_PARAMETER_LAYOUT_H_
#define CAUSEWAY_WORKER_MODEL_PARAMETER_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker {

// A run of rows of one arena-contiguous matrix, [outputs, width], that a projection reads in one
// product: the whole projection where its matrices lie side by side, else one of its matrices.
struct ProjectionSlice {
  int64_t offset = 0;        // In the arena.
  int64_t outputs = 0;       // Rows.
  int64_t first_output = 0;  // Column of the projection's output where it starts.
};

// A matrix product with what is added to it.
struct ProjectionLayout {
  std::vector<ProjectionSlice> matrices;
  std::vector<ProjectionSlice> biases;  // Empty if there are none.
};

// Offsets in values; -1 for tensors that the model does not have.
struct NormLayout {
  int64_t weight = -1;
  int64_t bias = -1;  // Only a LayerNorm has one.
};

struct BlockLayout {
  NormLayout attention_norm;
  ProjectionLayout qkv;  // Queries, keys, values: one slice or three.
  int64_t q_norm = -1, k_norm = -1;
  ProjectionLayout o;
  NormLayout mlp_norm;
  ProjectionLayout mlp_in;  // Gate and up: one slice or two; or up alone.
  ProjectionLayout down;
};

struct ParameterLayout {
  std::vector<BlockLayout> blocks;
  int64_t embedding = -1;
  int64_t positions = -1;  // [learned_positions, width]; -1 with RoPE.
  int64_t learned_positions = 0;
  NormLayout final_norm;
  int64_t head = -1;  // The embedding when tied.
  bool tied = true;
  int64_t arena_size = 0;
  std::vector<FragmentRange> gaps;  // Between tensors; not aligned.

  // `plan` must be made from `model`; ends the program otherwise.
  static ParameterLayout Create(const v1::ModelConfig& model, const FragmentPlan& plan);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_MODEL_PARAMETER_LAYOUT_H_
