// The emulator's functions for CUDA sources, where a GPU has syntax or instructions of its own
// (worker/backend/cuda/kernels/launch.cuh and intrinsics.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime.h>

namespace causeway::emulation {

// Runs on the stream, in order with what it was given before: the emulated twin of a library's
// call.
void Enqueue(cudaStream_t stream, std::function<void()> operation);
void LaunchKernel(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  std::function<void()> thread);
void* DynamicShared();
// d = a b + d for one warp: mma.sync.m16n8k16, row-major a, column-major b, bf16 with fp32 sums.
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
// ldmatrix.x4: lane 8 i + r points to row r (16 bytes) of matrix i.
void LoadMatrixX4(uint32_t (&registers)[4], const void* row, bool transposed);
// cp.async: the bytes arrive when they are waited for, and are garbage until then.
void CopyAsync(void* shared, const void* global, size_t bytes, size_t valid);
void CommitCopies();
void WaitCopies(int pending_groups);

}  // namespace causeway::emulation
