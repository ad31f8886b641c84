// The linear layers of the transformer on a GPU: which products a projection, whose matrices may
// lie apart in the arena, comes down to.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/step_probe.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker::cuda {

// Holds what the projections of a pass have in common. All of it outlives the pass.
struct ProjectionPass {
  Gemm* gemm = nullptr;
  StepProbe* probe = nullptr;              // Null: none.
  const __nv_bfloat16* weights = nullptr;  // The arena.
  int64_t tokens = 0;
  cudaStream_t stream = nullptr;
  // The backward pass has these:
  const GradientPlaces* gradients = nullptr;
  bool accumulate = false;   // Gradients of weights and biases += instead of =.
  float* scratch = nullptr;  // BiasScratch(tokens) values.
};

// One projection of a block: out [tokens, outputs] = in [tokens, inputs] W^T + b.
class Projection {
 public:
  // With `split` > 0, outputs from that column on go to another array than those before it. Probes
  // are told of "name" and so on.
  Projection(std::string name, const ProjectionLayout& layout, int64_t inputs, int64_t split = 0);

  // Where a column of the output lies: column c of a row at data[c - first], rows `stride` apart.
  struct Output {
    __nv_bfloat16* data = nullptr;
    int64_t stride = 0;
    int64_t first = 0;
  };

  // `rest` takes the columns from split on; without a split it is not used.
  absl::Status Forward(const ProjectionPass& pass, const __nv_bfloat16* in, const Output& out,
                       const Output& rest) const;
  // The same into [tokens, outputs].
  absl::Status Forward(const ProjectionPass& pass, const __nv_bfloat16* in,
                       __nv_bfloat16* out) const {
    return Forward(pass, in, {.data = out, .stride = outputs_}, {});
  }
  // din [tokens, inputs] = dout W, for dout [tokens, outputs].
  absl::Status BackwardInput(const ProjectionPass& pass, const __nv_bfloat16* dout,
                             __nv_bfloat16* din) const;
  // dW = (or +=) dout^T in, in fp32.
  absl::Status BackwardWeight(const ProjectionPass& pass, const __nv_bfloat16* dout,
                              const __nv_bfloat16* in) const;
  // db = (or +=) the sum over dout's rows.
  absl::Status BackwardBias(const ProjectionPass& pass, const __nv_bfloat16* dout) const;
  int64_t BiasScratch(int64_t tokens) const;

 private:
  // A product of the forward pass.
  struct Part {
    ProjectionSlice slice;
    int64_t bias = -1;  // Where its biases begin in the arena, if the product adds them.
  };

  // A kernel of all products, as the probe counts them.
  StepKernel Kernel(const std::string& name, int64_t tokens) const {
    return ProductKernel(name, tokens, inputs_, outputs_);
  }

  const std::string name_, input_name_, weight_name_, bias_name_;
  const ProjectionLayout layout_;
  const int64_t inputs_;
  const int64_t split_;
  int64_t outputs_ = 0;
  std::vector<Part> parts_;
  std::vector<ProjectionSlice> added_biases_;  // That no product adds.
};

}  // namespace causeway::worker::cuda
