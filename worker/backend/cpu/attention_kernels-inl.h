// The row kernels of attention (kernels.h), compiled once per instruction set.
#if defined(CAUSEWAY_WORKER_BACKEND_CPU_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_WORKER_BACKEND_CPU_ATTENTION_KERNELS_INL_H_
#undef CAUSEWAY_WORKER_BACKEND_CPU_ATTENTION_KERNELS_INL_H_
#else
#define CAUSEWAY_WORKER_BACKEND_CPU_ATTENTION_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "worker/backend/cpu/vector_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::worker::HWY_NAMESPACE {

// Rows end at any column, so the last vector is masked instead of split into single values: the
// buffer's stride leaves room to load and store it whole.
template <typename T>
void CausalSoftmax(T* scores, int64_t rows, int64_t columns, int64_t stride, int64_t first_valid,
                   T scale, T* inverse_sum, T* log_sum_exp) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  for (int64_t r = 0; r < rows; ++r) {
    T* row = scores + r * stride;
    const int64_t valid = std::min(columns, first_valid + r + 1);
    const int64_t whole = valid / lanes * lanes;
    const auto mask = hn::FirstN(d, static_cast<size_t>(valid - whole));

    auto max_lanes = hn::Set(d, row[0]);
    for (int64_t i = 0; i < whole; i += lanes)
      max_lanes = hn::Max(max_lanes, hn::LoadU(d, row + i));
    if (whole < valid) {
      max_lanes = hn::Max(max_lanes, hn::IfThenElse(mask, hn::LoadU(d, row + whole), max_lanes));
    }
    const T max = hn::GetLane(hn::MaxOfLanes(d, max_lanes));

    const auto factor = hn::Set(d, scale);
    const auto shift = hn::Set(d, max);
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto e = hn::Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, row + i), shift), factor));
      hn::StoreU(e, d, row + i);
      sum = hn::Add(sum, e);
    }
    int64_t done = whole;
    if (whole < valid) {
      const auto s = hn::IfThenElse(mask, hn::LoadU(d, row + whole), shift);
      const auto e = hn::IfThenElseZero(mask, hn::Exp(d, hn::Mul(hn::Sub(s, shift), factor)));
      hn::StoreU(e, d, row + whole);
      sum = hn::Add(sum, e);
      done += lanes;
    }
    if (done < columns) std::fill(row + done, row + columns, T{0});
    const T total = hn::GetLane(hn::SumOfLanes(d, sum));
    inverse_sum[r] = T{1} / total;
    log_sum_exp[r] = max * scale + std::log(total);
  }
}

template <typename T>
void CausalSoftmaxBackward(T* scores, T* dprobabilities, int64_t rows, int64_t columns,
                           int64_t stride, int64_t first_valid, T scale, const T* log_sum_exp,
                           const T* delta) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  for (int64_t r = 0; r < rows; ++r) {
    T* row = scores + r * stride;
    T* drow = dprobabilities + r * stride;
    const int64_t valid = std::min(columns, first_valid + r + 1);
    const int64_t whole = valid / lanes * lanes;
    const auto factor = hn::Set(d, scale);
    const auto shift = hn::Set(d, log_sum_exp[r]);
    const auto mean = hn::Set(d, delta[r]);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto p = hn::Exp(d, hn::MulSub(hn::LoadU(d, row + i), factor, shift));
      const auto dp = hn::Sub(hn::LoadU(d, drow + i), mean);
      hn::StoreU(p, d, row + i);
      hn::StoreU(hn::Mul(hn::Mul(p, factor), dp), d, drow + i);
    }
    int64_t done = whole;
    if (whole < valid) {
      const auto mask = hn::FirstN(d, static_cast<size_t>(valid - whole));
      const auto exponent = hn::MulSub(hn::LoadU(d, row + whole), factor, shift);
      const auto p = hn::IfThenElseZero(mask, hn::Exp(d, hn::IfThenElseZero(mask, exponent)));
      const auto dp = hn::IfThenElseZero(mask, hn::Sub(hn::LoadU(d, drow + whole), mean));
      hn::StoreU(p, d, row + whole);
      hn::StoreU(hn::Mul(hn::Mul(p, factor), dp), d, drow + whole);
      done += lanes;
    }
    if (done < columns) {
      std::fill(row + done, row + columns, T{0});
      std::fill(drow + done, drow + columns, T{0});
    }
  }
}

template <typename T>
void ScaleRows(T* values, int64_t rows, int64_t width, int64_t stride, const T* factors) {
  for (int64_t r = 0; r < rows; ++r) {
    T* row = values + r * stride;
    const T factor = factors[r];
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
    });
  }
}

template <typename T>
void DotRows(const T* a, const T* b, int64_t rows, int64_t width, int64_t stride, T* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* left = a + r * stride;
    const T* right = b + r * stride;
    out[r] = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, left + i), hn::LoadU(d, right + i));
    });
  }
}

}  // namespace causeway::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
