// The same parameters in another order.
#ifndef CAUSEWAY_COMMON_PARAMS_COPY_PARAMETERS_H_
#define CAUSEWAY_COMMON_PARAMS_COPY_PARAMETERS_H_

#include <span>

#include "absl/status/status.h"
#include "common/params/fragment_plan.h"

namespace causeway {

// Copies every tensor of `from` (in the plan `from_plan`) to its place in `to` (in `to_plan`),
// which gets zeros elsewhere. Both spans have their plan's arena_size() values. INVALID_ARGUMENT,
// naming the tensor and both shapes, unless the plans have the same tensors; `to` is undefined
// then.
absl::Status CopyParameters(const FragmentPlan& from_plan, std::span<const float> from,
                            const FragmentPlan& to_plan, std::span<float> to);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_COPY_PARAMETERS_H_
