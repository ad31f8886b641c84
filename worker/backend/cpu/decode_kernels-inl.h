// Kernels of generation beyond those of training (kernels.h), compiled once per instruction set.
#if defined(CAUSEWAY_WORKER_BACKEND_CPU_DECODE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_WORKER_BACKEND_CPU_DECODE_KERNELS_INL_H_
#undef CAUSEWAY_WORKER_BACKEND_CPU_DECODE_KERNELS_INL_H_
#else
#define CAUSEWAY_WORKER_BACKEND_CPU_DECODE_KERNELS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "worker/backend/cpu/vector_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::worker::HWY_NAMESPACE {

// kBatch rows of x at a time: a row of weights is loaded once for all of them. Each value has two
// accumulators whatever kBatch is, so that its bits do not depend on its neighbours.
template <int kBatch, typename T>
HWY_INLINE void DotRow(const T* weights, int64_t width, const T* x, T* out, int64_t out_stride) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  static_assert(kBatch == 1 || kBatch == 2 || kBatch == 4);
  auto even0 = hn::Zero(d);
  auto odd0 = hn::Zero(d);
  auto even1 = hn::Zero(d);
  auto odd1 = hn::Zero(d);
  auto even2 = hn::Zero(d);
  auto odd2 = hn::Zero(d);
  auto even3 = hn::Zero(d);
  auto odd3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= width; i += 2 * lanes) {
    const auto first = hn::LoadU(d, weights + i);
    const auto second = hn::LoadU(d, weights + i + lanes);
    even0 = hn::MulAdd(first, hn::LoadU(d, x + i), even0);
    odd0 = hn::MulAdd(second, hn::LoadU(d, x + i + lanes), odd0);
    if constexpr (kBatch >= 2) {
      even1 = hn::MulAdd(first, hn::LoadU(d, x + width + i), even1);
      odd1 = hn::MulAdd(second, hn::LoadU(d, x + width + i + lanes), odd1);
    }
    if constexpr (kBatch >= 4) {
      even2 = hn::MulAdd(first, hn::LoadU(d, x + 2 * width + i), even2);
      odd2 = hn::MulAdd(second, hn::LoadU(d, x + 2 * width + i + lanes), odd2);
      even3 = hn::MulAdd(first, hn::LoadU(d, x + 3 * width + i), even3);
      odd3 = hn::MulAdd(second, hn::LoadU(d, x + 3 * width + i + lanes), odd3);
    }
  }
  const auto finish = [=](auto even, auto odd, const T* row) HWY_ATTR {
    T sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
    for (int64_t rest = i; rest < width; ++rest) sum += weights[rest] * row[rest];
    return sum;
  };
  out[0] = finish(even0, odd0, x);
  if constexpr (kBatch >= 2) out[out_stride] = finish(even1, odd1, x + width);
  if constexpr (kBatch >= 4) {
    out[2 * out_stride] = finish(even2, odd2, x + 2 * width);
    out[3 * out_stride] = finish(even3, odd3, x + 3 * width);
  }
}

template <typename T>
void DotProducts(const T* weights, int64_t rows, int64_t width, const T* x, int64_t batch, T* out,
                 int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = weights + r * width;
    int64_t b = 0;
    for (; b + 4 <= batch; b += 4) {
      DotRow<4>(row, width, x + b * width, out + b * out_stride + r, out_stride);
    }
    if (b + 2 <= batch) {
      DotRow<2>(row, width, x + b * width, out + b * out_stride + r, out_stride);
      b += 2;
    }
    if (b < batch) DotRow<1>(row, width, x + b * width, out + b * out_stride + r, out_stride);
  }
}

template <typename T>
void WeightedRows(const T* values, int64_t rows, int64_t width, const T* factors, T* out) {
  ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
    auto even = hn::Zero(d);
    auto odd = hn::Zero(d);
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      even = hn::MulAdd(hn::Set(d, factors[r]), hn::LoadU(d, values + r * width + i), even);
      odd = hn::MulAdd(hn::Set(d, factors[r + 1]), hn::LoadU(d, values + (r + 1) * width + i), odd);
    }
    if (r < rows) {
      even = hn::MulAdd(hn::Set(d, factors[r]), hn::LoadU(d, values + r * width + i), even);
    }
    hn::StoreU(hn::Add(even, odd), d, out + i);
  });
}

}  // namespace causeway::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
