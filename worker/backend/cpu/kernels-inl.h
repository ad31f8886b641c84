// The kernels of kernels.h, compiled once per instruction set; those of attention
// and generation have files of their own.
#if defined(CAUSEWAY_WORKER_BACKEND_CPU_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_WORKER_BACKEND_CPU_KERNELS_INL_H_
#undef CAUSEWAY_WORKER_BACKEND_CPU_KERNELS_INL_H_
#else
#define CAUSEWAY_WORKER_BACKEND_CPU_KERNELS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "worker/backend/cpu/attention_kernels-inl.h"
#include "worker/backend/cpu/decode_kernels-inl.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/vector_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::worker::HWY_NAMESPACE {

template <typename T>
HWY_INLINE T MeanOf(const T* x, int64_t width) {
  const T sum = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); });
  return sum / static_cast<T>(width);
}

// 1 / the deviation from `mean`; from 0 that is 1 / rms.
template <typename T>
T InverseDeviation(const T* x, int64_t width, T mean, T epsilon) {
  const T squares = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
    const auto value = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(value, value);
  });
  return T{1} / std::sqrt(squares / static_cast<T>(width) + epsilon);
}

template <typename T>
void Norm(const T* x_in, const T* addend, const T* weight, const T* bias, T epsilon, int64_t rows,
          int64_t width, T* x_out, T* out, T* inverse_deviation) {
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
    const T mean = bias == nullptr ? T{0} : MeanOf(x, width);
    const T factor = InverseDeviation(x, width, mean, epsilon);
    inverse_deviation[r] = factor;
    T* normed = out + r * width;
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, weight + i);
      const auto xhat = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, factor));
      auto value = hn::Mul(xhat, w);
      if (bias != nullptr) value = hn::MulAdd(xhat, w, hn::LoadU(d, bias + i));
      hn::StoreU(value, d, normed + i);
    });
  }
}

// One row: y = xhat * weight (+ bias) with xhat = (x - mean) * factor, and with g = dy * weight
// dx (+)= factor * (g - mean(g) - xhat * mean(g * xhat)). Without a bias the means of x and of g
// count as 0.
template <typename T>
void NormRowBackward(const T* dy, const T* x, const T* weight, const T* bias, T factor,
                     int64_t width, bool accumulate, T* dx, T* y, T* dweight, T* dbias) {
  const bool layer_norm = bias != nullptr;
  const T mean = layer_norm ? MeanOf(x, width) : T{0};
  T gradient_mean = 0;
  if (layer_norm) {
    const T sum = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
    });
    gradient_mean = sum / static_cast<T>(width);
  }
  const T dot = SumOver<T>(width, [=](auto d, int64_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
    return hn::Mul(g, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)));
  });
  // mean(g * xhat); RMSNorm's is multiplied by the factor, for it multiplies x.
  const T slope = (layer_norm ? dot * factor : dot * factor * factor) / static_cast<T>(width);
  ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
    const auto w = hn::LoadU(d, weight + i);
    const auto upstream = hn::LoadU(d, dy + i);
    auto value = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    const auto xhat = hn::Mul(value, hn::Set(d, factor));
    auto out = hn::Mul(xhat, w);
    if (layer_norm) {
      value = xhat;
      out = hn::MulAdd(xhat, w, hn::LoadU(d, bias + i));
      hn::StoreU(hn::Add(upstream, hn::LoadU(d, dbias + i)), d, dbias + i);
    }
    const auto centered = hn::Sub(hn::Mul(upstream, w), hn::Set(d, gradient_mean));
    auto gradient = hn::Mul(hn::Set(d, factor), hn::NegMulAdd(value, hn::Set(d, slope), centered));
    if (accumulate) gradient = hn::Add(gradient, hn::LoadU(d, dx + i));
    hn::StoreU(gradient, d, dx + i);
    if (y != nullptr) hn::StoreU(out, d, y + i);
    hn::StoreU(hn::MulAdd(upstream, xhat, hn::LoadU(d, dweight + i)), d, dweight + i);
  });
}

template <typename T>
void NormBackward(const T* dout, const T* x, const T* weight, const T* bias,
                  const T* inverse_deviation, int64_t rows, int64_t width, bool accumulate, T* dx,
                  T* out, T* dweight, T* dbias) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    NormRowBackward(dout + at, x + at, weight, bias, inverse_deviation[r], width, accumulate,
                    dx + at, out + at, dweight, dbias);
  }
}

// Turns the pairs (i, i + half) by the position's angles; sign -1 turns back.
template <typename T>
void RotateHead(const T* cosine, const T* sine, int64_t half, T sign, T* head) {
  ForEach<T>(half, [=](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::LoadU(d, cosine + i);
    const auto s = hn::Mul(hn::LoadU(d, sine + i), hn::Set(d, sign));
    const auto first = hn::LoadU(d, head + i);
    const auto second = hn::LoadU(d, head + half + i);
    hn::StoreU(hn::NegMulAdd(second, s, hn::Mul(first, c)), d, head + i);
    hn::StoreU(hn::MulAdd(first, s, hn::Mul(second, c)), d, head + half + i);
  });
}

template <typename T>
void Rotate(const HeadShape& shape, const T* query_weight, const T* key_weight, T epsilon,
            const T* cosine, const T* sine, T* heads, T* raw, T* inverse_rms) {
  for (int64_t h = 0; h < shape.rotated(); ++h) {
    T* head = heads + h * shape.head_dim;
    if (query_weight != nullptr) {
      const T* weight = h < shape.query_heads ? query_weight : key_weight;
      T* kept = raw + h * shape.head_dim;
      const T factor = InverseDeviation(head, shape.head_dim, T{0}, epsilon);
      inverse_rms[h] = factor;
      ForEach<T>(shape.head_dim, [=](auto d, int64_t i) HWY_ATTR {
        const auto value = hn::LoadU(d, head + i);
        hn::StoreU(value, d, kept + i);
        hn::StoreU(hn::Mul(hn::Mul(value, hn::Set(d, factor)), hn::LoadU(d, weight + i)), d,
                   head + i);
      });
    }
    RotateHead(cosine, sine, shape.head_dim / 2, T{1}, head);
  }
}

template <typename T>
void RotateBackward(const HeadShape& shape, const T* query_weight, const T* key_weight,
                    const T* cosine, const T* sine, const T* raw, const T* inverse_rms, T* dheads,
                    T* dweights) {
  for (int64_t h = 0; h < shape.rotated(); ++h) {
    T* dhead = dheads + h * shape.head_dim;
    RotateHead(cosine, sine, shape.head_dim / 2, T{-1}, dhead);
    if (query_weight == nullptr) continue;
    const bool query = h < shape.query_heads;
    NormRowBackward<T>(dhead, raw + h * shape.head_dim, query ? query_weight : key_weight,
                       /*bias=*/nullptr, inverse_rms[h], shape.head_dim, /*accumulate=*/false,
                       dhead, /*y=*/nullptr, dweights + (query ? 0 : shape.head_dim),
                       /*dbias=*/nullptr);
  }
}

template <typename T>
void Swiglu(const T* gate_up, int64_t rows, int64_t width, T* hidden) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + 2 * r * width;
    T* out = hidden + r * width;
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto g = hn::LoadU(d, gate + i);
      const auto silu = hn::Mul(g, Sigmoid(d, g));
      hn::StoreU(hn::Mul(silu, hn::LoadU(d, gate + width + i)), d, out + i);
    });
  }
}

template <typename T>
void SwigluBackward(const T* dhidden, int64_t rows, int64_t width, T* gate_up, T* hidden) {
  for (int64_t r = 0; r < rows; ++r) {
    T* gate = gate_up + 2 * r * width;
    const T* upstream = dhidden + r * width;
    T* out = hidden + r * width;
    ForEach<T>(width, [=](auto d, int64_t i) HWY_ATTR {
      const auto g = hn::LoadU(d, gate + i);
      const auto up = hn::LoadU(d, gate + width + i);
      const auto dh = hn::LoadU(d, upstream + i);
      const auto s = Sigmoid(d, g);
      const auto silu = hn::Mul(g, s);
      // silu' = s + silu * (1 - s)
      const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1), s), s);
      hn::StoreU(hn::Mul(silu, up), d, out + i);
      hn::StoreU(hn::Mul(hn::Mul(dh, up), slope), d, gate + i);
      hn::StoreU(hn::Mul(dh, silu), d, gate + width + i);
    });
  }
}

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr double kTwiceSqrtTwoOverPi = 1.5957691216057308;
constexpr double kGeluCubic = 0.044715;

template <typename T>
void Gelu(const T* up, int64_t rows, int64_t width, T* hidden) {
  ForEach<T>(rows * width, [=](auto d, int64_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, up + i);
    const auto cubic = hn::Mul(hn::Mul(x, x), hn::Set(d, static_cast<T>(kGeluCubic)));
    const auto linear = hn::Mul(x, hn::Set(d, static_cast<T>(kTwiceSqrtTwoOverPi)));
    hn::StoreU(hn::Mul(x, Sigmoid(d, hn::MulAdd(linear, cubic, linear))), d, hidden + i);
  });
}

template <typename T>
void GeluBackward(const T* dhidden, int64_t rows, int64_t width, T* up, T* hidden) {
  ForEach<T>(rows * width, [=](auto d, int64_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, up + i);
    const auto scale = hn::Set(d, static_cast<T>(kTwiceSqrtTwoOverPi));
    const auto cubic = hn::Mul(hn::Mul(x, x), hn::Set(d, static_cast<T>(kGeluCubic)));
    const auto linear = hn::Mul(x, scale);
    const auto s = Sigmoid(d, hn::MulAdd(linear, cubic, linear));
    const auto value = hn::Mul(x, s);
    // d(2u)/dx = scale * (1 + 3 * 0.044715 x^2)
    const auto slope = hn::Mul(scale, hn::MulAdd(cubic, hn::Set(d, 3), hn::Set(d, 1)));
    const auto gradient = hn::MulAdd(hn::Mul(value, hn::Sub(hn::Set(d, 1), s)), slope, s);
    hn::StoreU(value, d, hidden + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, dhidden + i), gradient), d, up + i);
  });
}

template <typename T>
void Classifier(T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary, int64_t stride,
                T factor, T z_loss, bool gradient, T* loss, T* log_sum_exp) {
  for (int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * stride;
    const int32_t target = targets[r];
    if (target < 0) {
      loss[r] = 0;
      log_sum_exp[r] = 0;
      if (gradient) {
        ForEach<T>(stride,
                   [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(hn::Zero(d), d, row + i); });
      }
      continue;
    }
    const T max = MaxOver(row, vocabulary);
    const T target_logit = row[target];
    T sum;
    if (gradient) {
      sum = SumOver<T>(vocabulary, [=](auto d, int64_t i) HWY_ATTR {
        const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, max)));
        hn::StoreU(e, d, row + i);
        return e;
      });
    } else {
      sum = SumOver<T>(vocabulary, [=](auto d, int64_t i) HWY_ATTR {
        return hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, max)));
      });
    }
    const T log_sum = max + std::log(sum);
    loss[r] = log_sum - target_logit;
    log_sum_exp[r] = log_sum;
    if (!gradient) continue;
    const T scale = factor * (1 + 2 * z_loss * log_sum) / sum;
    ForEach<T>(vocabulary, [=](auto d, int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale)), d, row + i);
    });
    row[target] -= factor;
    for (int64_t i = vocabulary; i < stride; ++i) row[i] = 0;
  }
}

template <typename T>
void Add(const T* values, int64_t size, T* sum) {
  ForEach<T>(size, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, values + i)), d, sum + i);
  });
}

// The operations of AdamWStep::Apply in its order, none of them fused: the same bits.
template <typename T>
void AdamW(const AdamWStep<T>& step, T weight_decay, T gradient_factor, const T* gradient,
           int64_t size, T* weight, T* m, T* v) {
  const AdamWStep<T> s = step;
  const T decay = s.learning_rate * weight_decay;
  ForEach<T>(size, [=](auto d, int64_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, gradient + i), hn::Set(d, gradient_factor));
    auto w = hn::LoadU(d, weight + i);
    w = hn::Sub(w, hn::Mul(hn::Set(d, decay), w));
    const auto new_m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, m + i)),
                               hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto new_v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, v + i)),
                               hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    const auto root = hn::Mul(hn::Sqrt(new_v), hn::Set(d, s.inverse_sqrt_correction2));
    w = hn::Sub(
        w, hn::Div(hn::Mul(hn::Set(d, s.step_size), new_m), hn::Add(root, hn::Set(d, s.epsilon))));
    hn::StoreU(w, d, weight + i);
    hn::StoreU(new_m, d, m + i);
    hn::StoreU(new_v, d, v + i);
  });
}

template <typename T>
const Kernels<T>* KernelTable() {
  static constexpr Kernels<T> kTable = {
      .norm = &Norm<T>,
      .norm_backward = &NormBackward<T>,
      .rotate = &Rotate<T>,
      .rotate_backward = &RotateBackward<T>,
      .swiglu = &Swiglu<T>,
      .swiglu_backward = &SwigluBackward<T>,
      .gelu = &Gelu<T>,
      .gelu_backward = &GeluBackward<T>,
      .causal_softmax = &CausalSoftmax<T>,
      .causal_softmax_backward = &CausalSoftmaxBackward<T>,
      .scale_rows = &ScaleRows<T>,
      .dot_rows = &DotRows<T>,
      .classifier = &Classifier<T>,
      .dot_products = &DotProducts<T>,
      .weighted_rows = &WeightedRows<T>,
      .add = &Add<T>,
      .adamw = &AdamW<T>,
  };
  return &kTable;
}

inline const Kernels<float>* FloatKernels() { return KernelTable<float>(); }
inline const Kernels<double>* DoubleKernels() { return KernelTable<double>(); }

}  // namespace causeway::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
