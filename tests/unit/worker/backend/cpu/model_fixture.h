// Small models with random weights and tokens, for the tests of the CPU backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {

struct SmallModel {
  int vocabulary_size = 37;
  int layers = 2;
  int width = 24;
  int heads = 4;
  int kv_heads = 4;
  int head_dim = 6;
  int mlp_width = 40;
  bool swiglu = true;
  bool qk_norm = false;
  bool untied_head = false;
  double z_loss = 0;
  int sequence_length = 11;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool layer_norm = false;
  int learned_positions = 0;
  bool rope_scaling = false;
};

inline v1::ModelConfig MakeModel(const SmallModel& shape) {
  v1::ModelConfig model;
  model.set_vocabulary_size(shape.vocabulary_size);
  model.set_layers(shape.layers);
  model.set_width(shape.width);
  model.set_heads(shape.heads);
  model.set_kv_heads(shape.kv_heads);
  model.set_head_dim(shape.head_dim);
  model.set_mlp_width(shape.mlp_width);
  model.set_mlp(shape.swiglu ? v1::ModelConfig::SWIGLU : v1::ModelConfig::GELU);
  model.set_qk_norm(shape.qk_norm);
  model.set_untied_head(shape.untied_head);
  model.set_rope_theta(10000);
  model.set_norm_epsilon(1e-5);
  model.set_z_loss(shape.z_loss);
  model.set_sequence_length(shape.sequence_length);
  model.set_qkv_bias(shape.qkv_bias);
  model.set_output_bias(shape.output_bias);
  model.set_mlp_bias(shape.mlp_bias);
  model.set_layer_norm(shape.layer_norm);
  model.set_learned_positions(shape.learned_positions);
  if (shape.rope_scaling) {
    v1::Llama3RopeScaling& scaling = *model.mutable_rope_scaling();
    scaling.set_factor(4);
    scaling.set_low_frequency_factor(1);
    scaling.set_high_frequency_factor(4);
    scaling.set_original_positions(16);
  }
  return model;
}

inline FragmentPlan MakePlan(const v1::ModelConfig& model) {
  v1::SyncConfig sync;
  sync.set_pattern(v1::SyncConfig::STRIDED);
  sync.set_fragments(1);
  return *FragmentPlan::Create(BuildTensorTable(model), sync);
}

// Larger than a training run starts with, so that every term of a gradient is felt. Zero in gaps.
template <typename T>
std::vector<T> RandomParameters(const FragmentPlan& plan, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<T> arena(static_cast<size_t>(plan.arena_size()), T{0});
  for (const PlacedTensor& tensor : plan.tensors()) {
    const double stddev =
        tensor.info.is_matrix() ? 1.0 / std::sqrt(static_cast<double>(tensor.info.cols)) : 0.2;
    const bool norm =
        tensor.info.role == TensorRole::kNorm || tensor.info.role == TensorRole::kFinalNorm;
    const double mean = norm ? 1.0 : 0.0;
    for (int64_t i = 0; i < tensor.info.size(); ++i) {
      arena[static_cast<size_t>(tensor.offset + i)] =
          static_cast<T>(static_cast<float>(mean + stddev * normal(engine)));
    }
  }
  return arena;
}

inline std::vector<int32_t> RandomTokens(const v1::ModelConfig& model, int sequences,
                                         uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int32_t> token(0, model.vocabulary_size() - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(sequences * model.sequence_length()));
  for (int32_t& t : tokens) t = token(engine);
  return tokens;
}

// A model, and windows that it may train on.
template <typename T>
struct Case {
  v1::ModelConfig model;
  FragmentPlan plan;
  std::vector<T> parameters;
  std::vector<int32_t> inputs, targets;
};

template <typename T>
Case<T> MakeCase(const SmallModel& shape, int sequences) {
  const v1::ModelConfig model = MakeModel(shape);
  const FragmentPlan plan = MakePlan(model);
  return {model, plan, RandomParameters<T>(plan, 1), RandomTokens(model, sequences, 2),
          RandomTokens(model, sequences, 3)};
}

// |a - b| / |b|, over all values.
template <typename A, typename B>
double RelativeDistance(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference) / std::sqrt(norm);
}

// One micro-batch from a fresh model: loss and gradients.
template <typename T>
struct Pass {
  TokenLoss loss;
  std::vector<T> gradients;
};

template <typename T>
Pass<T> RunPass(const v1::ModelConfig& model, const std::vector<T>& parameters,
                const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets,
                int threads = 1) {
  const FragmentPlan plan = MakePlan(model);
  ThreadPool pool(threads);
  CpuTransformer<T> transformer(model, plan,
                                static_cast<int>(inputs.size()) / model.sequence_length(), &pool);
  // Anything left over from before must not matter.
  Pass<T> pass;
  pass.gradients.assign(parameters.size(), T{1e10});
  pass.loss = transformer.ForwardBackward(parameters, inputs, targets, T{1}, false, pass.gradients);
  return pass;
}

}  // namespace causeway::worker
