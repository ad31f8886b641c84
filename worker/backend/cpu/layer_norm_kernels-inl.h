// LayerNorm (kernels.h), compiled once per instruction set.
#if defined(CAUSEWAY_WORKER_BACKEND_CPU_LAYER_NORM_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_WORKER_BACKEND_CPU_LAYER_NORM_KERNELS_INL_H_
#undef CAUSEWAY_WORKER_BACKEND_CPU_LAYER_NORM_KERNELS_INL_H_
#else
#define CAUSEWAY_WORKER_BACKEND_CPU_LAYER_NORM_KERNELS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "worker/backend/cpu/vector_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::worker::HWY_NAMESPACE {

template <typename T>
HWY_INLINE T MeanOf(const T* x, int64_t width) {
  const T sum = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); });
  return sum / static_cast<T>(width);
}

template <typename T>
void LayerNorm(const T* x_in, const T* addend, const T* weight, const T* bias, T epsilon,
               int64_t rows, int64_t width, T* x_out, T* out, T* inverse_deviation) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = x_in + r * width;
    if (addend != nullptr) {
      const T* add = addend + r * width;
      T* sum = x_out + r * width;
      ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, add + i)), d, sum + i);
      });
      x = sum;
    }
    const T mean = MeanOf(x, width);
    const T squares = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto value = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
      return hn::Mul(value, value);
    });
    const T factor = T{1} / std::sqrt(squares / static_cast<T>(width) + epsilon);
    inverse_deviation[r] = factor;
    T* normed = out + r * width;
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto xhat = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, factor));
      hn::StoreU(hn::MulAdd(xhat, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, normed + i);
    });
  }
}

// Per row: dx (+)= inverse_deviation * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight.
template <typename T>
void LayerNormBackward(const T* dout, const T* x_in, const T* weight, const T* bias,
                       const T* inverse_deviation, int64_t rows, int64_t width, bool accumulate,
                       T* dx_out, T* out, T* dweight, T* dbias) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = x_in + r * width;
    const T* dy = dout + r * width;
    T* dx = dx_out + r * width;
    T* y = out + r * width;
    const T factor = inverse_deviation[r];
    const T mean = MeanOf(x, width);
    const T gradient_sum = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
    });
    const T dot = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto g = hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
      return hn::Mul(g, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)));
    });
    const T gradient_mean = gradient_sum / static_cast<T>(width);
    const T slope = dot * factor / static_cast<T>(width);
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, weight + i);
      const auto upstream = hn::LoadU(d, dy + i);
      const auto xhat = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, factor));
      const auto centered = hn::Sub(hn::Mul(upstream, w), hn::Set(d, gradient_mean));
      auto gradient = hn::Mul(hn::Set(d, factor), hn::NegMulAdd(xhat, hn::Set(d, slope), centered));
      if (accumulate) gradient = hn::Add(gradient, hn::LoadU(d, dx + i));
      hn::StoreU(gradient, d, dx + i);
      hn::StoreU(hn::MulAdd(xhat, w, hn::LoadU(d, bias + i)), d, y + i);
      hn::StoreU(hn::MulAdd(upstream, xhat, hn::LoadU(d, dweight + i)), d, dweight + i);
      hn::StoreU(hn::Add(upstream, hn::LoadU(d, dbias + i)), d, dbias + i);
    });
  }
}

}  // namespace causeway::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
