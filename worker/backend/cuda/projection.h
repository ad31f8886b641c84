// The linear layers of the transformer on a GPU: which products a projection, whose matrices may
// lie apart in the arena, comes down to.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker::cuda {

// One projection of a block: out [tokens, outputs] = in [tokens, inputs] W^T + b.
class Projection {
 public:
  // With `split` > 0, outputs from that column on go to another array than those before it.
  Projection(const ProjectionLayout& layout, int64_t inputs, int64_t split = 0);

  // Where a column of the output lies: column c of a row at data[c - first], rows `stride` apart.
  struct Output {
    __nv_bfloat16* data = nullptr;
    int64_t stride = 0;
    int64_t first = 0;
  };

  // `rest` takes the columns from split on; without a split it is not used.
  absl::Status Forward(Gemm& gemm, int64_t tokens, const __nv_bfloat16* weights,
                       const __nv_bfloat16* in, const Output& out, const Output& rest,
                       cudaStream_t stream) const;
  // din [tokens, inputs] = dout W. dout has all columns in one array, rows `stride` apart.
  absl::Status BackwardInput(Gemm& gemm, int64_t tokens, const __nv_bfloat16* weights,
                             const __nv_bfloat16* dout, int64_t stride, __nv_bfloat16* din,
                             cudaStream_t stream) const;
  // dW = (or += with accumulate) dout^T in, in fp32.
  absl::Status BackwardWeight(Gemm& gemm, int64_t tokens, const __nv_bfloat16* dout, int64_t stride,
                              const __nv_bfloat16* in, bool accumulate,
                              const GradientPlaces& gradients, cudaStream_t stream) const;
  // db = (or +=) the sum over dout's rows. scratch: BiasScratch(tokens) values.
  void BackwardBias(int64_t tokens, const __nv_bfloat16* dout, int64_t stride, bool accumulate,
                    const GradientPlaces& gradients, float* scratch, cudaStream_t stream) const;
  int64_t BiasScratch(int64_t tokens) const;

 private:
  // A product of the forward pass.
  struct Part {
    ProjectionSlice slice;
    int64_t bias = -1;  // Where its biases begin in the arena, if the product adds them.
  };

  const ProjectionLayout layout_;
  const int64_t inputs_;
  const int64_t split_;
  std::vector<Part> parts_;
  std::vector<ProjectionSlice> added_biases_;  // That no product adds.
};

}  // namespace causeway::worker::cuda
