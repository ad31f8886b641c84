// The parameters that a run starts from.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"

namespace causeway {

// Fills `arena` (plan.arena_size() values): matrices with N(0, initial_stddev^2), norms with ones,
// biases and alignment gaps with zeros. A value depends on the seed, its tensor's name and its
// index, not on the plan. The coordinator calls this once; workers fetch the result, because the
// mathematical functions beneath may differ in the last bit from machine to machine.
//
// The same bits with any `threads`; null: those of the caller alone.
void InitializeParameters(const FragmentPlan& plan, uint64_t seed, std::span<float> arena,
                          ThreadPool* threads = nullptr);

// The same for a part of the arena, from `begin` on.
void InitializeRange(const FragmentPlan& plan, uint64_t seed, int64_t begin,
                     std::span<float> values, ThreadPool* threads = nullptr);

// Copies every tensor of `from` (in the plan `from_plan`) to its place in `to` (in `to_plan`),
// which gets zeros elsewhere. Both spans have their plan's arena_size() values. INVALID_ARGUMENT,
// naming the tensor and both shapes, unless the plans have the same tensors; `to` is undefined
// then.
absl::Status CopyParameters(const FragmentPlan& from_plan, std::span<const float> from,
                            const FragmentPlan& to_plan, std::span<float> to);

}  // namespace causeway
