// Where the transformer's tensors lie in an arena.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "common/params/tensor_table.h"

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
  std::vector<ArenaGap> gaps;

  // `plan` must be made from `model`; ends the program otherwise.
  static ParameterLayout Create(const v1::ModelConfig& model, const FragmentPlan& plan);
};

// What follows from a model's configuration for every backend: the widths of its tensors, and the
// angles of its positions.

struct ModelShape {
  // `model` is complete.
  explicit ModelShape(const v1::ModelConfig& model)
      : length(model.sequence_length()),
        width(model.width()),
        mlp_width(model.mlp_width()),
        mlp_inputs(model.mlp() == v1::ModelConfig::SWIGLU ? 2 * mlp_width : mlp_width),
        heads(model.heads()),
        kv_heads(model.kv_heads()),
        head_dim(model.head_dim()),
        query_width(heads * head_dim),
        kv_width(kv_heads * head_dim),
        qkv_width(query_width + 2 * kv_width),
        vocabulary(model.vocabulary_size()),
        padded_vocabulary(PaddedVocabulary(model)),
        gated(model.mlp() == v1::ModelConfig::SWIGLU),
        qk_norm(model.qk_norm()),
        layer_norm(model.layer_norm()) {}

  int64_t length;      // Tokens per window, at most.
  int64_t width;       // Of the residual stream.
  int64_t mlp_width;   // Values behind the activation,
  int64_t mlp_inputs;  // and before it: gate and up.
  int64_t heads, kv_heads, head_dim;
  int64_t query_width, kv_width;  // Values of all heads of a token.
  int64_t qkv_width;
  int64_t vocabulary, padded_vocabulary;
  bool gated, qk_norm, layer_norm;
};

// Cosines and sines of the angles by which positions are turned: [positions, head_dim / 2],
// computed in double and rounded once.
template <typename Values>
void FillAngles(const v1::ModelConfig& model, int64_t positions, Values& cosine, Values& sine) {
  const std::vector<double> frequencies = RopeFrequencies(model);
  cosine.resize(static_cast<size_t>(positions) * frequencies.size());
  sine.resize(cosine.size());
  for (size_t i = 0; i < cosine.size(); ++i) {
    const auto position = static_cast<double>(i / frequencies.size());
    const double angle = position * frequencies[i % frequencies.size()];
    cosine[i] = static_cast<typename Values::value_type>(std::cos(angle));
    sine[i] = static_cast<typename Values::value_type>(std::sin(angle));
  }
}

}  // namespace causeway::worker
