// The cost of bf16: CpuTransformer's passes in double precision, rounded to bf16 wherever the CUDA
// backend writes a bf16 tensor. Its distance to the exact gradients is the bound for the backend's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker::cuda {

struct ReferencePass {
  double cross_entropy = 0;
  std::vector<double> gradients;
};

// One micro-batch of windows of the model's length. `parameters` are rounded already.
ReferencePass RunBf16Reference(const v1::ModelConfig& model, const FragmentPlan& plan,
                               const std::vector<double>& parameters,
                               std::span<const int32_t> inputs, std::span<const int32_t> targets,
                               std::span<const int32_t> document_starts);

}  // namespace causeway::worker::cuda
