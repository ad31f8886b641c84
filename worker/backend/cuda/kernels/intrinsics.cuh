// Instructions that C++ has no words for, each with its emulated twin; and the reductions of a warp
// and of a block, in one fixed order. All lanes of a warp call them together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef CAUSEWAY_EMULATED_DEVICE
#include <device_emulation.h>
#endif

namespace causeway::worker::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffU;
inline constexpr int kWarpSize = 32;

// The sum over the lanes, in every lane, always added in the same order (a butterfly).
template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, bits);
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T WarpMax(T value) {
#pragma unroll
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2) {
    const T other = __shfl_xor_sync(kFullWarp, value, bits);
    value = other > value ? other : value;
  }
  return value;
}

// The sum over a block of kThreads threads in x alone, in every thread. `scratch` is shared memory
// of kThreads / 32 values; it may be used again after the next __syncthreads.
template <int kThreads, typename T>
__device__ __forceinline__ T BlockSum(T value, T* scratch) {
  value = WarpSum(value);
  if constexpr (kThreads == kWarpSize) return value;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) scratch[warp] = value;
  __syncthreads();
  T sum = scratch[0];
#pragma unroll
  for (int i = 1; i < kThreads / kWarpSize; ++i) sum += scratch[i];
  return sum;
}

template <int kThreads, typename T>
__device__ __forceinline__ T BlockMax(T value, T* scratch) {
  value = WarpMax(value);
  if constexpr (kThreads == kWarpSize) return value;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) scratch[warp] = value;
  __syncthreads();
  T most = scratch[0];
#pragma unroll
  for (int i = 1; i < kThreads / kWarpSize; ++i) most = scratch[i] > most ? scratch[i] : most;
  return most;
}

// d += a b for matrices [16, 16] x [16, 8] of bf16, sums in fp32: mma.sync.m16n8k16, row-major a,
// column-major b. Lane l holds rows l / 4 and l / 4 + 8 of a and d, column l / 4 of b, in pairs
// of neighbouring values (PTX ISA, "Matrix Fragments for mma.m16n8k16").
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::MmaBf16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  MmaBf16(d, a, b);
}

#ifndef CAUSEWAY_EMULATED_DEVICE
__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

// Four 8 x 8 matrices of 16-bit values: lane 8 i + r gives the address, in shared memory and at a
// multiple of 16 bytes, of row r of matrix i; register i of lane l receives values 2 (l % 4) and
// the next of row l / 4 of matrix i.
__device__ __forceinline__ void LoadMatrixX4(uint32_t (&registers)[4], const void* row) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::LoadMatrixX4(registers, row, /*transposed=*/false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(SharedAddress(row)));
#endif
}

// The same of the transposed matrices.
__device__ __forceinline__ void LoadMatrixX4Transposed(uint32_t (&registers)[4], const void* row) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::LoadMatrixX4(registers, row, /*transposed=*/true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(SharedAddress(row)));
#endif
}

// Begins a copy of 16 bytes from global to shared memory, both at multiples of 16; with `valid`
// false the shared bytes become zeros and `global` is not read (it must be a valid address all the
// same). The bytes are there after WaitCopies and, for other threads, a barrier.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid = true) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::CopyAsync(shared, global, 16, valid ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// The same of 4 bytes, at multiples of 4.
__device__ __forceinline__ void CopyAsync4(void* shared, const void* global, bool valid = true) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::CopyAsync(shared, global, 4, valid ? 4 : 0);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(valid ? 4 : 0)
               : "memory");
#endif
}

// Closes this thread's present group of copies.
__device__ __forceinline__ void CommitCopies() {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::CommitCopies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::WaitCopies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// 2^x to 2^-22 of it; 0 far below, and for -infinity.
__device__ __forceinline__ float Exp2(float x) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Two values to bf16, to nearest even, `low` in the low half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

}  // namespace causeway::worker::cuda
