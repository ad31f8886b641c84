// How a shape of attention becomes a launch.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_ATTENTION_LAUNCH_CUH_
#define CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_ATTENTION_LAUNCH_CUH_

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "worker/backend/cuda/attention/attention_tiles.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {

inline AttentionAddress MakeAttentionAddress(const AttentionShape& shape) {
  return {shape, static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))};
}

// Calls launch.operator()<D>() with the kernels' head_dim D: the shape's, or the next larger one,
// whose further columns are zeros. A shape that AttentionRefusal refuses ends the program.
template <typename LaunchFunction>
void DispatchHeadDim(const AttentionShape& shape, const LaunchFunction& launch) {
  if (const char* const refusal = AttentionRefusal(shape); refusal != nullptr) {
    std::fprintf(stderr, "attention: %s\n", refusal);
    std::abort();
  }
  if (shape.head_dim <= 32) {
    launch.template operator()<32>();
  } else if (shape.head_dim <= 64) {
    launch.template operator()<64>();
  } else if (shape.head_dim <= 96) {
    launch.template operator()<96>();
  } else {
    launch.template operator()<128>();
  }
}

// The pair of a sequence and a head that a block of LaunchAttention is for. The last pass may have
// blocks for pairs that do not exist.
__device__ __forceinline__ int BlockColumn() {
  return static_cast<int>(blockIdx.z * gridDim.x + blockIdx.x);
}

// One block per 128 rows of each of `columns` pairs of a sequence and a head; all rows of
// `at_a_time` pairs, then those of the next ones.
template <typename Kernel, typename Call>
void LaunchAttention(Kernel* kernel, int columns, int at_a_time, int length, int threads,
                     int shared_bytes, cudaStream_t stream, const Call& call) {
  const dim3 grid(static_cast<unsigned>(at_a_time),
                  static_cast<unsigned>((length + kAttentionBlockRows - 1) / kAttentionBlockRows),
                  static_cast<unsigned>((columns + at_a_time - 1) / at_a_time));
  Launch(kernel, grid, dim3(static_cast<unsigned>(threads)), static_cast<size_t>(shared_bytes),
         stream, call);
}

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_ATTENTION_LAUNCH_CUH_
