#include "server/outer/step_kernels.h"

#include <limits>

// Highway compiles the part between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE once per
// instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/outer/trim_kernel.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::server::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

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

HWY_EXPORT(Trimmed);

void TrimmedMean(std::span<const double> weights, size_t trim, std::span<const double> values,
                 size_t stride, std::span<double> mean) {
  HWY_DYNAMIC_DISPATCH(Trimmed)
  (weights.data(), weights.size(), trim, values.data(), stride, mean.data(), mean.size());
}

}  // namespace causeway::server
#endif  // HWY_ONCE
