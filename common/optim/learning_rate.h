// The inner learning rate over the steps of a run: linear warm-up, then a cosine, or
// a constant and a line.
#ifndef CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_
#define CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace causeway {

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

#endif  // CAUSEWAY_COMMON_OPTIM_LEARNING_RATE_H_
