// One value's AdamW update, shared by the worker's inner optimizer and by the coordinator's outer
// one in data-parallel mode, so that the two train alike (Loshchilov and Hutter, 1711.05101; the
// order of operations is PyTorch's).
#ifndef CAUSEWAY_COMMON_OPTIM_ADAMW_H_
#define CAUSEWAY_COMMON_OPTIM_ADAMW_H_

#include <cmath>
#include <cstdint>

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_OPTIM_ADAMW_H_
