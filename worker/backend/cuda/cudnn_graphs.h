// Causal attention as graphs of cuDNN's, planned for one GPU or, without one, for its description.
#pragma once

#include <cudnn_frontend.h>

#include <cstdint>
#include <exception>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/kernels/attention.h"

namespace causeway::worker::cuda {

// The graphs' names of their tensors, which lie as attention.h says.
enum CudnnTensor : int64_t {
  kCudnnQuery = 1,
  kCudnnKey,
  kCudnnValue,
  kCudnnOut,
  kCudnnLogSumExp,
  kCudnnQueryGradient,
  kCudnnKeyGradient,
  kCudnnValueGradient,
  kCudnnOutGradient,
};

struct CudnnGraphs {
  std::shared_ptr<cudnn_frontend::graph::Graph> forward, backward;
  int64_t workspace_bytes = 0;  // Workspace of the larger graph.
};

struct CudnnTarget {
  cudnnHandle_t handle = nullptr;  // Handle of the GPU.
  // Without a handle: cuDNN then says whether it has plans, and none is made.
  std::shared_ptr<cudnn_frontend::DeviceProperties> properties;
  int compute_capability = 0;  // 90 for 9.0; with `properties` alone.
  bool deterministic = true;
};

// OpenCudnn has succeeded. If `target` is deterministic, both passes give the same bits every time.
// FAILED_PRECONDITION, with cuDNN's word for it, if it has no such plan for the shape.
absl::StatusOr<CudnnGraphs> PlanCudnnAttention(const AttentionShape& shape,
                                               const CudnnTarget& target);

// OK, or the error of one of the frontend's calls. `what` was being done.
absl::Status CheckCudnn(cudnn_frontend::error_t error, absl::string_view what);
// The status that `call` returns, or of what the frontend throws where a function is missing.
template <typename Call>
absl::Status CatchCudnn(absl::string_view what, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return CheckCudnn({cudnn_frontend::error_code_t::CUDNN_BACKEND_API_FAILED, error.what()}, what);
  }
}

}  // namespace causeway::worker::cuda
