// The inner learning rate over the steps of a run: linear warm-up, then a cosine.
#ifndef CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_
#define CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace causeway {

// The factor by which the peak is multiplied at `step` (1 .. steps). Rises to 1 at warmup_steps,
// then follows a half cosine down to final_fraction at the last step, and stays there.
inline double LearningRateFactor(int64_t step, int64_t steps, int64_t warmup_steps,
                                 double final_fraction) {
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<int64_t>(1, steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return final_fraction +
         (1.0 - final_fraction) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_
