// How kernels are started, and what they share: the two things that are written differently for a
// GPU and for the tests' emulation of one (tests/emulation/emulator.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#ifdef CAUSEWAY_EMULATED_DEVICE
#include <device_emulation.h>
#endif

namespace causeway::worker::cuda {

// A block has this much shared memory unless its kernel asks for more.
inline constexpr size_t kDefaultSharedBytes = size_t{48} << 10;

// Starts `kernel` on `stream`. Blocks are whole warps. A launch that fails is reported by
// CheckLaunches (device.h), not here. An empty grid launches nothing.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::LaunchKernel(grid, block, shared_bytes, stream,
                          [=] { kernel(static_cast<Parameters>(arguments)...); });
#else
  if (shared_bytes > kDefaultSharedBytes) {
    // An error stays where CheckLaunches finds it.
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes));
  }
  // It takes ">>>" apart.
  // clang-format off
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  // clang-format on
#endif
}

// The block's dynamic shared memory, as an array of `type` called `name`, at a multiple of 128
// bytes.
#ifdef CAUSEWAY_EMULATED_DEVICE
#define CAUSEWAY_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::causeway::emulation::DynamicShared())
#else
#define CAUSEWAY_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char causeway_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(causeway_dynamic_shared)
#endif

// Sums over rows that many blocks have a part of.

// Blocks that share the rows of a pass with sums over all of them: two or four for each of an
// H200's 132 multiprocessors. A constant, since the sums' bits depend on it.
inline constexpr int64_t kPartialBlocks = 528;

// out[c] = (or += with accumulate) the sum of column c of partials [count, stride], c < width.
void SumPartials(int64_t count, int64_t stride, int64_t width, const float* partials,
                 bool accumulate, float* out, cudaStream_t stream);

}  // namespace causeway::worker::cuda
