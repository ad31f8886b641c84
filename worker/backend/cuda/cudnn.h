// cuDNN, opened when attention is to be computed with it: the worker starts where it is not
// installed. Its frontend is compiled so that it finds every function in what is opened here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/attention_choice.h"

namespace causeway::worker::cuda {

// Names that a library may be opened by, in the order in which they are tried.
struct CudnnNames {
  std::vector<std::string> cudnn;
  std::vector<std::string> runtime;  // CUDA's, whose functions the frontend looks up by name.

  // The names of the major versions that this program was built with.
  static CudnnNames Default();
};

// Must have succeeded before any other use of cuDNN; more calls do nothing. Never unloaded.
// Thread-safe. FAILED_PRECONDITION with the names that were tried, why each failed, and what to
// install.
absl::Status OpenCudnn(const CudnnNames& names = CudnnNames::Default());

// "cuDNN 9.19.0", of the library that was opened; from 9.25 on with the limit of its workspace, in
// bytes, as the frontend reads it from the environment: 0 unless it was set.
std::string CudnnName();

// Attention by cuDNN: bf16, causal, grouped queries, forward and backward, of one shape. What it
// does not take is done by our own kernels: other shapes (evaluation's), and documents that must
// not see each other.

// On the calling thread's device. `deterministic`: only algorithms that give the same bits every
// time are taken; others are named as such. FAILED_PRECONDITION if cuDNN is not there, or has none
// for the shape.
absl::StatusOr<std::unique_ptr<AttentionProvider>> MakeCudnnAttention(const AttentionShape& shape,
                                                                      bool deterministic);

}  // namespace causeway::worker::cuda
