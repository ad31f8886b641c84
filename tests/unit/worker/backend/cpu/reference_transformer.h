// The model written down as its definition reads: one token, one head, one value at a time, in
// double. Shares nothing with the backend but the names of the tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker {

// Logits [length][vocabulary_size] of one sequence.
std::vector<std::vector<double>> ReferenceLogits(const v1::ModelConfig& model,
                                                 const FragmentPlan& plan,
                                                 std::span<const double> parameters,
                                                 std::span<const int32_t> tokens);

struct ReferenceLoss {
  double total = 0;
  double cross_entropy = 0;
};

// Means over the targets that are not negative. inputs is [sequences, sequence_length].
ReferenceLoss ComputeReferenceLoss(const v1::ModelConfig& model, const FragmentPlan& plan,
                                   std::span<const double> parameters,
                                   std::span<const int32_t> inputs,
                                   std::span<const int32_t> targets);

}  // namespace causeway::worker
