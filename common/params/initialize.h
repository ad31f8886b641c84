// The parameters that a run starts from.
#ifndef CAUSEWAY_COMMON_PARAMS_INITIALIZE_H_
#define CAUSEWAY_COMMON_PARAMS_INITIALIZE_H_

#include <cstdint>
#include <span>

#include "common/params/fragment_plan.h"

namespace causeway {

// Fills `arena` (plan.arena_size() values): matrices with N(0, initial_stddev^2), norms with ones,
// biases and alignment gaps with zeros. A value depends on the seed, its tensor's name and its
// index, not on the plan. The coordinator calls this once; workers fetch the result, because the
// mathematical functions beneath may differ in the last bit from machine to machine.
void InitializeParameters(const FragmentPlan& plan, uint64_t seed, std::span<float> arena);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_INITIALIZE_H_
