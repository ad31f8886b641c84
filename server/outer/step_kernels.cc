#include "server/outer/step_kernels.h"

#include <cstddef>
#include <cstdint>

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

}  // namespace causeway::server::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace causeway::server {

HWY_EXPORT(Nesterov);
HWY_EXPORT(Sgd);
HWY_EXPORT(Finite);

void NesterovStep(double lr, double mu, std::span<const double> g, std::span<float> theta,
                  std::span<float> b) {
  HWY_DYNAMIC_DISPATCH(Nesterov)(lr, mu, g.data(), g.size(), theta.data(), b.data());
}

void SgdStep(double lr, std::span<const double> g, std::span<float> theta) {
  HWY_DYNAMIC_DISPATCH(Sgd)(lr, g.data(), g.size(), theta.data());
}

bool AllFinite(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Finite)(values.data(), values.size());
}

}  // namespace causeway::server
#endif  // HWY_ONCE
