#include "common/params/rope.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace causeway {
namespace {

double Scale(double frequency, const v1::Llama3RopeScaling& scaling) {
  const double turns = scaling.original_positions() * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency_factor()) return frequency / scaling.factor();
  if (turns > scaling.high_frequency_factor()) return frequency;
  const double kept = (turns - scaling.low_frequency_factor()) /
                      (scaling.high_frequency_factor() - scaling.low_frequency_factor());
  return (1 - kept) * frequency / scaling.factor() + kept * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const v1::ModelConfig& model) {
  std::vector<double> frequencies(static_cast<size_t>(model.head_dim() / 2));
  if (model.learned_positions() > 0) return frequencies;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(model.rope_theta(), -2.0 * static_cast<double>(i) / model.head_dim());
    if (model.has_rope_scaling()) frequencies[i] = Scale(frequencies[i], model.rope_scaling());
  }
  return frequencies;
}

}  // namespace causeway
