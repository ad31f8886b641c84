// Shared by tests of the merge: a fragment, optimizers and contributions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/outer/merge.h"
#include "server/outer/outer_optimizer.h"
#include "tests/unit/common/base/from_text.h"
#include "tests/unit/common/codec/codec_test_util.h"

namespace causeway::server {

inline const Codec* GetCodec(v1::Codec id) { return *FindCodec(id); }

// `base` with noise on it, as a site has trained it.
inline std::vector<float> Moved(std::vector<float> base, uint64_t seed, double stddev) {
  const std::vector<float> change = GaussianValues(base.size(), seed, stddev);
  for (size_t i = 0; i < base.size(); ++i) base[i] += change[i];
  return base;
}

inline std::unique_ptr<OuterOptimizer> Optimizer(v1::OuterConfig::Optimizer kind,
                                                 double learning_rate, double momentum,
                                                 const v1::TrainConfig& train = {},
                                                 std::span<const PlacedTensor> tensors = {}) {
  auto outer = FromText<v1::OuterConfig>("beta1: 0.9 beta2: 0.99 epsilon: 1e-6");
  outer.set_optimizer(kind);
  outer.set_learning_rate(learning_rate);
  outer.set_momentum(momentum);
  return *CreateOuterOptimizer(outer, train, tensors);
}

inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

// One fragment as the coordinator holds it, and a worker's encoded contributions.
struct Fragment {
  Fragment(const std::vector<float>& initial, const OuterOptimizer& optimizer)
      : theta(initial),
        published(initial),
        state(optimizer.state_names().size(), std::vector<float>(initial.size(), 0.0F)) {}

  FragmentState view() {
    return {.theta = theta, .published = published, .optimizer = {state.begin(), state.end()}};
  }
  bool operator==(const Fragment& other) const = default;

  std::vector<float> theta;
  std::vector<float> published;
  std::vector<std::vector<float>> state;
};

inline std::vector<uint8_t> Encode(const Codec& codec, const std::vector<float>& base,
                                   const std::vector<float>& target) {
  std::vector<uint8_t> bytes(codec.EncodedBytes(base.size()));
  EXPECT_EQ(codec.Encode(base, target, {}, bytes), absl::OkStatus());
  return bytes;
}

inline v1::TrainConfig AdamWTrain(double clip_norm) {
  auto train = FromText<v1::TrainConfig>(R"(
      steps: 50 learning_rate: 0.01 warmup_steps: 5 final_learning_rate_fraction: 0.1
      beta1: 0.9 beta2: 0.99 epsilon: 1e-8 weight_decay: 0.1)");
  train.set_clip_norm(clip_norm);
  return train;
}

}  // namespace causeway::server
