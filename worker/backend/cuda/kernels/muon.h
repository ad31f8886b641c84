// Muon (worker/backend/cpu/muon.h) around its matrix products, for batches of equally shaped
// matrices:
//
//   MuonMomentum   M = momentum * M + G; update = bf16(G + momentum * M)
//   MuonNormalize  every matrix of the update is scaled to Frobenius norm 1
//   (the caller)   five times A = X X^T, P = b A + c A A, X = a X + P X: products with an addend
//   MuonUpdate     W -= lr * decay * W; W -= lr * shape * X
//
// The first and the last work on slices, so that a matrix may lie on several GPUs and be gathered
// in between. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_MUON_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_MUON_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "worker/backend/cuda/kernels/gradient_norm.h"

namespace causeway::worker::cuda {

// A run of values of one matrix that one block works on. Offsets and size are multiples of 8.
struct MuonSlice {
  int64_t state = 0;     // Where it begins in the master weights and moments.
  int64_t gradient = 0;  // In the gradients.
  int64_t weight = 0;    // In the bf16 weights.
  int64_t update = 0;    // In the updates.
  double shape = 1;      // sqrt(max(1, rows / cols)) of the matrix.
  int32_t size = 0;
};
inline constexpr int64_t kMuonSliceValues = 8192;

// Appends `size` values from those places on in slices of at most kMuonSliceValues.
void AppendMuonSlices(const MuonSlice& first, int64_t size, std::vector<MuonSlice>* slices);

// The constants of one step, on the device.
struct MuonConstants {
  float momentum = 0;
  float learning_rate = 0;
  float weight_decay = 0;
};

struct MuonArguments {
  int64_t count = 0;                         // Number of slices; they do not overlap.
  const MuonSlice* slices = nullptr;         // On the device, as all that follows.
  const MuonConstants* constants = nullptr;  // Constants of this step.
  const GradientNorm* norm = nullptr;        // Nothing but updates changes unless it is finite.
};
void MuonMomentum(const MuonArguments& arguments, const float* gradient, float* moment,
                  __nv_bfloat16* updates, cudaStream_t stream);
void MuonUpdate(const MuonArguments& arguments, const __nv_bfloat16* updates, float* master,
                __nv_bfloat16* weight, cudaStream_t stream);

// matrices [count, size] in place: each is multiplied by 1 / (its Frobenius norm + 1e-7). scratch:
// MuonNormalizeScratch(count, size) doubles.
int64_t MuonNormalizeScratch(int64_t count, int64_t size);
void MuonNormalize(int64_t count, int64_t size, __nv_bfloat16* matrices, double* scratch,
                   cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_MUON_H_
