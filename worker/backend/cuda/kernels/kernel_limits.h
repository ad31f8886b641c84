// Rules of every kernel in this folder, and their demands on a model.
//
// - Launch functions take device pointers and enqueue on the stream that they are given. They
//   neither allocate nor wait, so that they may be captured in a graph; what a replay changes is
//   read from device memory. A launch that fails shows in cudaGetLastError().
// - Activations and the weights that compute are bf16; statistics, losses and gradients of weights
//   are fp32; sums over everything are double. Arithmetic is fp32, rounded to bf16 where a tensor
//   is written.
// - Results have the same bits every time: launch shapes follow from the problem's shape, sums have
//   one order, there are no atomics.
// - Pointers are aligned to 16 bytes, and so are rows: widths and strides of bf16 are multiples of
//   kVectorValues, those of fp32 are multiples of 4. Offending calls end the program.
// - Buffers of one call do not overlap except where it says "in place" or "may be".
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_KERNEL_LIMITS_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_KERNEL_LIMITS_H_

#include <cstdint>

namespace causeway::worker::cuda {

// bf16 values in 16 bytes: the model's width, MLP width and attention widths are multiples of it.
inline constexpr int64_t kVectorValues = 8;
// The widest row that the norms take.
inline constexpr int64_t kMaxNormWidth = 16384;
// The widest head that the rotary kernels take; even ones only.
inline constexpr int64_t kMaxRotaryHeadDim = 512;
// That of heads whose head_dim is no multiple of 16.
inline constexpr int64_t kMaxUnalignedRotaryHeadDim = 256;

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_KERNEL_LIMITS_H_
