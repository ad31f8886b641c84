#include "server/outer/step_kernels.h"

#include <cstdint>
#include <limits>

// Highway compiles the part between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE once per
// instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/outer/step_kernels.cc"
#include "hwy/foreach_target.h"

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::server::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls body(d, i) with the tag of the widest vector of T for whole vectors, then with that of a
// single value for the rest.
template <typename T, typename Body>
HWY_INLINE void ForEach(size_t size, const Body& body) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) body(d, i);
  for (; i < size; ++i) body(hn::CappedTag<T, 1>(), i);
}

// The stored arrays are far larger than the caches, and a step too long a chain for loads to be
// under way early enough. Asks for what is needed some steps later, whether it exists or not.
HWY_INLINE void PrefetchAhead(const float* values) {
  constexpr size_t kAheadBytes = 2048;
  hwy::Prefetch(reinterpret_cast<const uint8_t*>(values) + kAheadBytes);
}

void Nesterov(double lr, double mu, const double* g, size_t size, float* theta, float* b) {
  ForEach<double>(size, [=](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> df;
    PrefetchAhead(theta + i);
    PrefetchAhead(b + i);
    const auto factor = hn::Set(d, mu);
    const auto gradient = hn::LoadU(d, g + i);
    const auto momentum = hn::DemoteTo(
        df, hn::Add(hn::Mul(factor, hn::PromoteTo(d, hn::LoadU(df, b + i))), gradient));
    hn::StoreU(momentum, df, b + i);
    const auto direction = hn::Add(gradient, hn::Mul(factor, hn::PromoteTo(d, momentum)));
    const auto stepped =
        hn::Sub(hn::PromoteTo(d, hn::LoadU(df, theta + i)), hn::Mul(hn::Set(d, lr), direction));
    hn::StoreU(hn::DemoteTo(df, stepped), df, theta + i);
  });
}

void Sgd(double lr, const double* g, size_t size, float* theta) {
  ForEach<double>(size, [=](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> df;
    PrefetchAhead(theta + i);
    const auto stepped = hn::Sub(hn::PromoteTo(d, hn::LoadU(df, theta + i)),
                                 hn::Mul(hn::Set(d, lr), hn::LoadU(d, g + i)));
    hn::StoreU(hn::DemoteTo(df, stepped), df, theta + i);
  });
}

void Adam(const AdamRates& rates, const double* g, size_t size, float* theta, float* m, float* v) {
  ForEach<double>(size, [=, &rates](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> df;
    PrefetchAhead(theta + i);
    PrefetchAhead(m + i);
    PrefetchAhead(v + i);
    const auto gradient = hn::LoadU(d, g + i);
    const auto moment = [&](double beta, const float* stored, auto now) HWY_ATTR {
      const auto kept = hn::Mul(hn::Set(d, beta), hn::PromoteTo(d, hn::LoadU(df, stored)));
      return hn::DemoteTo(df, hn::Add(kept, hn::Mul(hn::Set(d, 1 - beta), now)));
    };
    const auto first = moment(rates.beta1, m + i, gradient);
    const auto second = moment(rates.beta2, v + i, hn::Mul(gradient, gradient));
    hn::StoreU(first, df, m + i);
    hn::StoreU(second, df, v + i);
    const auto mean = hn::Div(hn::PromoteTo(d, first), hn::Set(d, rates.correction1));
    const auto square = hn::Div(hn::PromoteTo(d, second), hn::Set(d, rates.correction2));
    const auto direction = hn::Div(mean, hn::Add(hn::Sqrt(square), hn::Set(d, rates.epsilon)));
    const auto stepped = hn::Sub(hn::PromoteTo(d, hn::LoadU(df, theta + i)),
                                 hn::Mul(hn::Set(d, rates.learning_rate), direction));
    hn::StoreU(hn::DemoteTo(df, stepped), df, theta + i);
  });
}

template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const double* values) {
  return hn::LoadU(d, values);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const float* values) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), values));
}

template <typename T>
HWY_INLINE double SquaresOf(const T* values, size_t size) {
  constexpr size_t kSums = 8;
  const hn::CappedTag<double, kSums> d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = size / kSums * kSums;
  double s[kSums] = {};
  for (size_t lane = 0; lane < kSums; lane += lanes) {
    auto sum = hn::Zero(d);
    for (size_t i = lane; i < whole; i += kSums) {
      const auto x = LoadDoubles(d, values + i);
      sum = hn::Add(sum, hn::Mul(x, x));
    }
    hn::StoreU(sum, d, s + lane);
  }
  for (size_t i = whole; i < size; ++i) s[i % kSums] += double{values[i]} * double{values[i]};
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

double Squares(const double* values, size_t size) { return SquaresOf(values, size); }
double SquaresOfFloats(const float* values, size_t size) { return SquaresOf(values, size); }

bool Finite(const float* values, size_t size) {
  constexpr int32_t kInfinityBits = 0x7f800000;
  const hn::ScalableTag<float> widest;
  auto largest = hn::Zero(hn::RebindToSigned<decltype(widest)>());
  int32_t largest_of_rest = 0;
  // The bits of |x| order magnitudes; infinity and then the NaNs come last.
  ForEach<float>(size, [&](auto d, size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto bits = hn::BitCast(di, hn::Abs(hn::LoadU(d, values + i)));
    if constexpr (hn::MaxLanes(d) == 1) {
      largest_of_rest = HWY_MAX(largest_of_rest, hn::GetLane(bits));
    } else {
      largest = hn::Max(largest, bits);
    }
  });
  const hn::RebindToSigned<decltype(widest)> di;
  return largest_of_rest < kInfinityBits &&
         hn::AllTrue(di, hn::Lt(largest, hn::Set(di, kInfinityBits)));
}

// The values at i, and the rows that they stand in: what they are sorted by.
template <typename D>
struct Place {
  hn::Vec<D> value;
  hn::Vec<D> row;
};

template <typename D>
HWY_INLINE hn::Mask<D> Before(const Place<D>& a, const Place<D>& b) {
  return hn::Or(hn::Lt(a.value, b.value), hn::And(hn::Eq(a.value, b.value), hn::Lt(a.row, b.row)));
}

template <typename D>
HWY_INLINE void TrimmedAt(D d, const double* weights, size_t rows, size_t trim,
                          const double* values, size_t stride, double* mean) {
  const auto none = hn::Set(d, std::numeric_limits<double>::infinity());
  const auto row_of = [&](size_t m) HWY_ATTR { return hn::Set(d, static_cast<double>(m)); };
  // The last one of those left out at either end.
  Place<D> low{hn::Neg(none), hn::Neg(none)};
  Place<D> high{none, none};
  for (size_t t = 0; t < trim; ++t) {
    Place<D> first{none, none};
    Place<D> last{hn::Neg(none), hn::Neg(none)};
    for (size_t m = 0; m < rows; ++m) {
      const Place<D> here{hn::LoadU(d, values + m * stride), row_of(m)};
      const auto is_first = hn::And(Before<D>(low, here), Before<D>(here, first));
      first.value = hn::IfThenElse(is_first, here.value, first.value);
      first.row = hn::IfThenElse(is_first, here.row, first.row);
      const auto is_last = hn::And(Before<D>(here, high), Before<D>(last, here));
      last.value = hn::IfThenElse(is_last, here.value, last.value);
      last.row = hn::IfThenElse(is_last, here.row, last.row);
    }
    low = first;
    high = last;
  }
  auto sum = hn::Zero(d);
  auto weight = hn::Zero(d);
  for (size_t m = 0; m < rows; ++m) {
    const Place<D> here{hn::LoadU(d, values + m * stride), row_of(m)};
    const auto kept = hn::And(Before<D>(low, here), Before<D>(here, high));
    const auto w = hn::Set(d, weights[m]);
    sum = hn::Add(sum, hn::IfThenElseZero(kept, hn::Mul(w, here.value)));
    weight = hn::Add(weight, hn::IfThenElseZero(kept, w));
  }
  hn::StoreU(hn::Div(sum, weight), d, mean);
}

void Trimmed(const double* weights, size_t rows, size_t trim, const double* values, size_t stride,
             double* mean, size_t size) {
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    TrimmedAt(d, weights, rows, trim, values + i, stride, mean + i);
  }
  for (; i < size; ++i) TrimmedAt(one, weights, rows, trim, values + i, stride, mean + i);
}

}  // namespace causeway::server::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace causeway::server {

HWY_EXPORT(Nesterov);
HWY_EXPORT(Sgd);
HWY_EXPORT(Adam);
HWY_EXPORT(Squares);
HWY_EXPORT(SquaresOfFloats);
HWY_EXPORT(Finite);
HWY_EXPORT(Trimmed);

void NesterovStep(double lr, double mu, std::span<const double> g, std::span<float> theta,
                  std::span<float> b) {
  HWY_DYNAMIC_DISPATCH(Nesterov)(lr, mu, g.data(), g.size(), theta.data(), b.data());
}

void SgdStep(double lr, std::span<const double> g, std::span<float> theta) {
  HWY_DYNAMIC_DISPATCH(Sgd)(lr, g.data(), g.size(), theta.data());
}

void AdamStep(const AdamRates& rates, std::span<const double> g, std::span<float> theta,
              std::span<float> m, std::span<float> v) {
  HWY_DYNAMIC_DISPATCH(Adam)(rates, g.data(), g.size(), theta.data(), m.data(), v.data());
}

double SumOfSquares(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(SquaresOfFloats)(values.data(), values.size());
}

double SumOfSquares(std::span<const double> values) {
  return HWY_DYNAMIC_DISPATCH(Squares)(values.data(), values.size());
}

bool AllFinite(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Finite)(values.data(), values.size());
}

void TrimmedMean(std::span<const double> weights, size_t trim, std::span<const double> values,
                 size_t stride, std::span<double> mean) {
  HWY_DYNAMIC_DISPATCH(Trimmed)
  (weights.data(), weights.size(), trim, values.data(), stride, mean.data(), mean.size());
}

}  // namespace causeway::server
#endif  // HWY_ONCE
