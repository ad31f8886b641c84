#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
// Values of a block: ranges are short where tensors are.
constexpr int64_t kTile = 4096;

// Conversions in integers: the bits of a CPU's on any device.

__device__ float WidenBf16(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

__device__ uint16_t RoundBf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

__device__ float WidenFp16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t rest = half & 0x7fffU;
  if (rest >= 0x7c00U) return __uint_as_float(sign | 0x7f800000U | (rest & 0x3ffU) << 13);
  if (rest >= 0x400U) return __uint_as_float(sign | ((rest << 13) + (112U << 23)));
  // Below the least normal one: a multiple of 2^-24, exactly.
  const float magnitude = static_cast<float>(rest) * __uint_as_float(103U << 23);
  return __uint_as_float(sign | __float_as_uint(magnitude));
}

__device__ uint16_t RoundFp16(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t rest = bits & 0x7fffffffU;
  if (rest > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (rest >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // From 65520 on.
  if (rest >= 0x38800000U) {  // 2^-14: the least normal one.
    const uint32_t rebased = rest - (112U << 23);
    return static_cast<uint16_t>(sign | (rebased + 0xfffU + (rebased >> 13 & 1U)) >> 13);
  }
  if (rest < 0x33000000U) return static_cast<uint16_t>(sign);  // Below 2^-25.
  // Multiples of 2^-24.
  const uint32_t shift = 126U - (rest >> 23);  // 14 .. 24
  const uint32_t mantissa = (rest & 0x7fffffU) | 0x800000U;
  const uint32_t kept = mantissa >> shift;
  const uint32_t cut = mantissa & ((1U << shift) - 1);
  const uint32_t half = 1U << (shift - 1);
  const uint32_t up = cut > half || (cut == half && (kept & 1U) != 0) ? 1U : 0U;
  return static_cast<uint16_t>(sign | (kept + up));
}

__device__ float Widen(uint16_t bits, ValueType type) {
  return type == ValueType::kBf16 ? WidenBf16(bits) : WidenFp16(bits);
}

__device__ uint16_t Round(float value, ValueType type) {
  return type == ValueType::kBf16 ? RoundBf16(value) : RoundFp16(value);
}

// The last range that begins at `place` or before; -1: none does.
__device__ int RangeAt(const ValueJob& job, int64_t place) {
  int low = -1;
  int high = job.range_count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (job.ranges[middle].first <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    GatherValues(const ValueJob job, float* local, const float* published) {
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  const int64_t end = begin + kTile < job.values ? begin + kTile : job.values;
  int range = RangeAt(job, begin);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    while (range + 1 < job.range_count && job.ranges[range + 1].first <= i) ++range;
    const ValueRange none;
    const ValueRange& from = range < 0 ? none : job.ranges[range];
    const int64_t place = i - from.first;
    if (place >= from.count) {
      local[i] = published[i];
    } else if (from.type == ValueType::kFp32 || from.type == ValueType::kOwn) {
      local[i] = static_cast<const float*>(from.data)[place];
    } else {
      const float value = Widen(static_cast<const uint16_t*>(from.data)[place], from.type);
      const float master = local[i];
      const float moved = value + (master - Widen(Round(master, from.type), from.type));
      local[i] = Widen(Round(moved, from.type), from.type) == value ? moved : value;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    ScatterValues(const ValueJob job, const float* values, bool own) {
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  const int64_t end = begin + kTile < job.values ? begin + kTile : job.values;
  int range = RangeAt(job, begin);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    while (range + 1 < job.range_count && job.ranges[range + 1].first <= i) ++range;
    if (range < 0) continue;
    const ValueRange& to = job.ranges[range];
    const int64_t place = i - to.first;
    if (place >= to.count || (to.type == ValueType::kOwn && !own)) continue;
    if (to.type == ValueType::kFp32 || to.type == ValueType::kOwn) {
      static_cast<float*>(to.data)[place] = values[i];
    } else {
      static_cast<uint16_t*>(to.data)[place] = Round(values[i], to.type);
    }
  }
}

__global__ void Probe() {}

dim3 Tiles(int64_t values) { return dim3(static_cast<unsigned>((values + kTile - 1) / kTile)); }

}  // namespace

cudaError_t ProbeMachineCode() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Probe);
}

void LaunchGather(const ValueJob& job, float* local, const float* published, cudaStream_t stream) {
  Launch(GatherValues, Tiles(job.values), dim3(kThreads), 0, stream, job, local, published);
}

void LaunchScatter(const ValueJob& job, const float* values, bool own, cudaStream_t stream) {
  Launch(ScatterValues, Tiles(job.values), dim3(kThreads), 0, stream, job, values, own);
}

}  // namespace causeway::worker::cuda
