// Kernels between a trainer's tensors, of fp32, bf16 or fp16, and fp32 values of a fragment: one
// for all ranges of a fragment.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_VALUES_VALUE_RANGES_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_VALUES_VALUE_RANGES_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// kOwn: of fp32, and the library's: what lies between tensors in the arena.
enum class ValueType : int { kFp32, kBf16, kFp16, kOwn };

// A range of a tensor.
struct ValueRange {
  void* data = nullptr;  // Its first value.
  int64_t first = 0;     // The same in the fragment.
  int64_t count = 0;
  ValueType type = ValueType::kFp32;
};

// All pointers are to what the device can read.
struct ValueJob {
  const ValueRange* ranges = nullptr;  // By `first`, without overlaps.
  int range_count = 0;
  int64_t values = 0;  // Of the fragment.
};

// local = what the ranges have; `published` where none is. A value of two bytes was trained from a
// rounded copy of `local`: local becomes it and what that rounding left out, so that it still
// rounds to it.
void LaunchGather(const ValueJob& job, float* local, const float* published, cudaStream_t stream);

// The ranges = values, rounded to the nearest even; kOwn only where `own` is true.
void LaunchScatter(const ValueJob& job, const float* values, bool own, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_VALUES_VALUE_RANGES_H_
