// Loops over vectors, compiled once per instruction set (Highway's idiom: the guard below is
// toggled for each).
//
// A body is a generic lambda f(d, i) on the vector of tag d at index i; the last values of a range
// that fill no vector get a tag of one lane.
#if defined(CAUSEWAY_WORKER_BACKEND_CPU_VECTOR_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_WORKER_BACKEND_CPU_VECTOR_LOOPS_INL_H_
#undef CAUSEWAY_WORKER_BACKEND_CPU_VECTOR_LOOPS_INL_H_
#else
#define CAUSEWAY_WORKER_BACKEND_CPU_VECTOR_LOOPS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::worker::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;
template <typename T>
using OneLane = hn::CappedTag<T, 1>;

template <typename T>
HWY_INLINE int64_t LaneCount() {
  return static_cast<int64_t>(hn::Lanes(Tag<T>()));
}

template <typename T, typename Body>
HWY_INLINE void ForEach(int64_t size, const Body& body) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) body(d, i);
  for (; i < size; ++i) body(OneLane<T>(), i);
}

// The sum of body's vectors. Four accumulators hide the latency of the additions.
template <typename T, typename Body>
HWY_INLINE T SumOver(int64_t size, const Body& body) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    sum0 = hn::Add(sum0, body(d, i));
    sum1 = hn::Add(sum1, body(d, i + lanes));
    sum2 = hn::Add(sum2, body(d, i + 2 * lanes));
    sum3 = hn::Add(sum3, body(d, i + 3 * lanes));
  }
  for (; i + lanes <= size; i += lanes) sum0 = hn::Add(sum0, body(d, i));
  const auto total = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  T sum = hn::GetLane(hn::SumOfLanes(d, total));
  for (; i < size; ++i) sum += hn::GetLane(body(OneLane<T>(), i));
  return sum;
}

template <typename T>
HWY_INLINE T MaxOver(const T* values, int64_t size) {
  const Tag<T> d;
  const int64_t lanes = LaneCount<T>();
  int64_t i = 0;
  T max = values[0];
  if (size >= lanes) {
    auto max0 = hn::LoadU(d, values);
    auto max1 = max0;
    for (i = lanes; i + 2 * lanes <= size; i += 2 * lanes) {
      max0 = hn::Max(max0, hn::LoadU(d, values + i));
      max1 = hn::Max(max1, hn::LoadU(d, values + i + lanes));
    }
    for (; i + lanes <= size; i += lanes) max0 = hn::Max(max0, hn::LoadU(d, values + i));
    max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  }
  for (; i < size; ++i) max = values[i] > max ? values[i] : max;
  return max;
}

// 1 / (1 + exp(-x)). exp is defined up to 104 (float) and 706 (double); far below that the result
// is already 0 to the last bit that matters.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  const auto one = hn::Set(d, 1);
  const auto exponent = hn::Min(hn::Neg(x), hn::Set(d, 80));
  return hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
}

}  // namespace causeway::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
