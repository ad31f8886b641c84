// Small models with random weights and tokens, for the tests of the CPU backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {

// `changes` of a test to the small model, and `more` of them: text of a ModelConfig, where the last
// value of a field counts.
inline v1::ModelConfig MakeModel(const std::string& changes = "", const std::string& more = "") {
  return ParseRunConfig(
             "model { vocabulary_size: 37 layers: 2 width: 24 heads: 4 kv_heads: 4 head_dim: 6 "
             "mlp_width: 40 mlp: SWIGLU sequence_length: 11 rope_theta: 10000 norm_epsilon: 1e-5 " +
                 changes + " " + more + " }",
             "a test")
      ->model();
}

constexpr char kRopeScaling[] =
    "rope_scaling { factor: 4 low_frequency_factor: 1 high_frequency_factor: 4 "
    "original_positions: 16 }";

inline FragmentPlan MakePlan(const v1::ModelConfig& model) {
  v1::SyncConfig sync;
  sync.set_pattern(v1::SyncConfig::STRIDED);
  sync.set_fragments(1);
  return *FragmentPlan::Create(BuildTensorTable(model), sync);
}

// Two windows: documents of 3, 1 and the rest, and one document.
inline std::vector<int32_t> DocumentStarts(int64_t length) {
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < length; ++i) starts.push_back(i < 3 ? 0 : i < 4 ? 3 : 4);
  starts.resize(static_cast<size_t>(2 * length), 0);
  return starts;
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
Case<T> MakeCase(const std::string& changes, int sequences) {
  const v1::ModelConfig model = MakeModel(changes);
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
