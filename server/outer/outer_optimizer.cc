#include "server/outer/outer_optimizer.h"

#include "common/params/adamw.h"
#include "server/outer/step_kernels.h"

namespace causeway::server {
namespace {

// NESTEROV, SGD and ADAM: by their kernels.
class ByFormula final : public OuterOptimizer {
 public:
  ByFormula(const v1::OuterConfig& outer, std::vector<std::string> state_names)
      : OuterOptimizer(std::move(state_names)), outer_(outer) {}

  void Step(const OuterSlice& slice) const override {
    const double learning_rate = outer_.learning_rate();
    if (outer_.optimizer() == v1::OuterConfig::NESTEROV) {
      NesterovStep(learning_rate, outer_.momentum(), slice.g, slice.theta, slice.state[0]);
    } else if (outer_.optimizer() == v1::OuterConfig::SGD) {
      SgdStep(learning_rate, slice.g, slice.theta);
    } else {
      const auto round = static_cast<double>(slice.round);
      AdamStep({.learning_rate = learning_rate,
                .beta1 = outer_.beta1(),
                .beta2 = outer_.beta2(),
                .epsilon = outer_.epsilon(),
                .correction1 = 1 - std::pow(outer_.beta1(), round),
                .correction2 = 1 - std::pow(outer_.beta2(), round)},
               slice.g, slice.theta, slice.state[0], slice.state[1]);
    }
  }

 private:
  const v1::OuterConfig outer_;
};

class OuterAdamW final : public OuterOptimizer {
 public:
  OuterAdamW(double peak_learning_rate, const v1::TrainConfig& train,
             std::span<const PlacedTensor> tensors)
      : OuterOptimizer({"m", "v"}), peak_learning_rate_(peak_learning_rate), train_(train) {
    for (const PlacedTensor& tensor : tensors) {
      if (tensor.info.decays()) {
        decaying_.push_back({tensor.offset, tensor.offset + tensor.info.size()});
      }
    }
    std::sort(decaying_.begin(), decaying_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
  }

  bool needs_gradient_norm() const override { return train_.clip_norm() > 0; }

  void Step(const OuterSlice& slice) const override {
    const double learning_rate =
        peak_learning_rate_ * LearningRateFactor(slice.round, train_.steps(), train_.warmup_steps(),
                                                 train_.final_learning_rate_fraction(),
                                                 train_.constant_fraction());
    const AdamWStep<float> step(learning_rate, train_.beta1(), train_.beta2(), train_.epsilon(),
                                slice.round);
    const bool clips = needs_gradient_norm() && slice.gradient_norm > train_.clip_norm();
    const float clip = clips ? static_cast<float>(train_.clip_norm() / slice.gradient_norm) : 1.0F;
    // The range that ends after the value at hand, if any.
    auto range = std::upper_bound(
        decaying_.begin(), decaying_.end(), slice.arena_begin,
        [](int64_t position, const Range& candidate) { return position < candidate.end; });
    for (size_t i = 0; i < slice.g.size(); ++i) {
      const int64_t position = slice.arena_begin + static_cast<int64_t>(i);
      while (range != decaying_.end() && position >= range->end) ++range;
      const bool decays = range != decaying_.end() && position >= range->begin;
      step.Apply(static_cast<float>(slice.g[i]) * clip,
                 decays ? static_cast<float>(train_.weight_decay()) : 0.0F, slice.theta[i],
                 slice.state[0][i], slice.state[1][i]);
    }
  }

 private:
  struct Range {
    int64_t begin;  // In the arena.
    int64_t end;
  };

  double peak_learning_rate_;
  v1::TrainConfig train_;
  std::vector<Range> decaying_;  // Sorted, disjoint.
};

}  // namespace

absl::StatusOr<std::unique_ptr<OuterOptimizer>> CreateOuterOptimizer(
    const v1::OuterConfig& outer, const v1::TrainConfig& train,
    std::span<const PlacedTensor> tensors) {
  switch (outer.optimizer()) {
    case v1::OuterConfig::NESTEROV:
      return std::make_unique<ByFormula>(outer, std::vector<std::string>{"momentum"});
    case v1::OuterConfig::SGD:
      return std::make_unique<ByFormula>(outer, std::vector<std::string>());
    case v1::OuterConfig::ADAMW:
      return std::make_unique<OuterAdamW>(outer.learning_rate(), train, tensors);
    case v1::OuterConfig::ADAM:
      return std::make_unique<ByFormula>(outer, std::vector<std::string>{"m", "v"});
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("outer.optimizer must be NESTEROV, SGD, ADAM or ADAMW, not ",
                       v1::OuterConfig::Optimizer_Name(outer.optimizer()), " (",
                       static_cast<int>(outer.optimizer()), ")"));
  }
}

}  // namespace causeway::server
