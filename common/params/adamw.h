// One value's AdamW update, shared by the worker's inner optimizer and by the coordinator's outer
// one in data-parallel mode, so that the two train alike (Loshchilov and Hutter, 1711.05101; the
// order of operations is PyTorch's).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace causeway {

// The constants of one step.
template <typename T>
struct AdamWStep {
  // `step` counts the updates of this optimizer from 1 (bias correction).
  AdamWStep(double rate, double decay1, double decay2, double epsilon_value, int64_t step)
      : beta1(static_cast<T>(decay1)),
        one_minus_beta1(static_cast<T>(1.0 - decay1)),
        beta2(static_cast<T>(decay2)),
        one_minus_beta2(static_cast<T>(1.0 - decay2)),
        epsilon(static_cast<T>(epsilon_value)),
        learning_rate(static_cast<T>(rate)),
        step_size(static_cast<T>(rate / (1.0 - std::pow(decay1, static_cast<double>(step))))),
        inverse_sqrt_correction2(
            static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(decay2, static_cast<double>(step))))) {}

  // weight_decay is 0 for values that do not decay.
  void Apply(T gradient, T weight_decay, T& weight, T& m, T& v) const {
    weight -= learning_rate * weight_decay * weight;
    m = beta1 * m + one_minus_beta1 * gradient;
    v = beta2 * v + one_minus_beta2 * gradient * gradient;
    weight -= step_size * m / (std::sqrt(v) * inverse_sqrt_correction2 + epsilon);
  }

  T beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  T learning_rate, step_size, inverse_sqrt_correction2;
};

// The inner learning rate over the steps of a run: linear warm-up, then a cosine, or
// a constant and a line.

// The factor by which the peak is multiplied at `step` (1 .. steps). Rises to 1 at warmup_steps,
// then follows a half cosine down to final_fraction at the last step, and stays there. With a
// constant_fraction it stays at 1 for that part of the steps, and falls in a line after it.
inline double LearningRateFactor(int64_t step, int64_t steps, int64_t warmup_steps,
                                 double final_fraction, double constant_fraction = 0) {
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(warmup_steps);
  const double begin =
      std::max(static_cast<double>(warmup_steps), constant_fraction * static_cast<double>(steps));
  const double span = std::max(1.0, static_cast<double>(steps) - begin);
  const double progress = std::clamp((static_cast<double>(step) - begin) / span, 0.0, 1.0);
  if (constant_fraction > 0) return 1.0 - (1.0 - final_fraction) * progress;
  return final_fraction +
         (1.0 - final_fraction) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace causeway
