// BF16 and FP32, compiled once per instruction set; float_codecs.cc has the scalar code.
#if defined(CAUSEWAY_COMMON_CODEC_FLOAT_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_COMMON_CODEC_FLOAT_KERNELS_INL_H_
#undef CAUSEWAY_COMMON_CODEC_FLOAT_KERNELS_INL_H_
#else
#define CAUSEWAY_COMMON_CODEC_FLOAT_KERNELS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"
#include "common/codec/difference_codec.h"
#include "common/codec/kernel_loops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

// `count` numbers at `bytes`, which has no alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* bytes) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), bytes));
}

template <class D>
HWY_INLINE void StoreBytes(hn::Vec<D> v, D /*d*/, uint8_t* bytes) {
  const hn::Repartition<uint8_t, D> d8;
  hn::StoreU(hn::BitCast(d8, v), d8, bytes);
}

struct Bf16Vectors {
  static constexpr size_t kScaleBytes = 0;
  static constexpr size_t kCodeBytes = kCodecBlock * sizeof(uint16_t);

  template <bool kFeedback>
  static HWY_INLINE bool Encode(const float* difference, int32_t largest, uint8_t* /*scale*/,
                                uint8_t* codes, float* residual) {
    if (largest > kLargestBf16CodecBits) return false;
    const FloatTag d;
    const BitsTag du;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      const auto bits = hn::BitCast(du, hn::Load(d, difference + i));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
      const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffU))));
      const hn::Rebind<uint16_t, BitsTag> d16;
      StoreBytes(hn::TruncateTo(d16, rounded), d16, codes + i * sizeof(uint16_t));
      if constexpr (kFeedback) {
        const auto decoded = hn::BitCast(d, hn::ShiftLeft<16>(rounded));
        hn::StoreU(hn::Sub(hn::Load(d, difference + i), decoded), d, residual + i);
      }
    }
    return true;
  }

  class Decoder {
   public:
    HWY_INLINE bool Load(const uint8_t* /*scale*/, const uint8_t* codes) {
      codes_ = codes;
      auto largest = hn::Zero(IntTag());
      for (size_t i = 0; i < kCodecBlock; i += kLanes) {
        largest = hn::Max(largest, MagnitudeBits(Values(FloatTag(), i)));
      }
      return hn::AllTrue(IntTag(), hn::Lt(largest, hn::Set(IntTag(), kInfinityBits)));
    }

    template <class D>
    HWY_INLINE hn::Vec<D> Values(D d, size_t i) const {
      const hn::RebindToUnsigned<D> du;
      const hn::Rebind<uint16_t, D> d16;
      const auto bits = hn::PromoteTo(du, LoadBytes(d16, codes_ + i * sizeof(uint16_t)));
      return hn::BitCast(d, hn::ShiftLeft<16>(bits));
    }

   private:
    const uint8_t* codes_ = nullptr;
  };
};

// OrderedFromFloat and FloatFromOrdered, which are one operation on the bits.
template <class V>
HWY_INLINE V Ordered(V bits) {
  const hn::DFromV<V> d;
  return hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(d, 0x7fffffff)));
}

// The targets of FP32 at value i and on, and the largest magnitude of these and their base.
template <class D>
HWY_INLINE hn::Vec<D> Fp32Target(D d, const uint8_t* codes, hn::Vec<D> base) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, Ordered(hn::Add(Ordered(hn::BitCast(di, base)), LoadBytes(di, codes))));
}

HWY_INLINE bool Fp32BlockIsFinite(const uint8_t* codes, const float* base) {
  const FloatTag d;
  auto largest = hn::Zero(IntTag());
  for (size_t i = 0; i < kCodecBlock; i += kLanes) {
    const auto from = hn::LoadU(d, base + i);
    const auto to = Fp32Target(d, codes + i * sizeof(uint32_t), from);
    largest = hn::Max(largest, hn::Max(MagnitudeBits(from), MagnitudeBits(to)));
  }
  return hn::AllTrue(IntTag(), hn::Lt(largest, hn::Set(IntTag(), kInfinityBits)));
}

inline constexpr size_t kFp32BlockBytes = kCodecBlock * sizeof(uint32_t);

template <bool kFeedback>
size_t Fp32EncodeBlocks(const float* base, const float* target, float* residual, float decay,
                        size_t blocks, uint8_t* codes) {
  const FloatTag d;
  const IntTag di;
  HWY_ALIGN float wanted[kCodecBlock];
  for (size_t block = 0; block < blocks; ++block) {
    PrefetchAhead(base, kFp32BlockBytes);
    PrefetchAhead(target, kFp32BlockBytes);
    if constexpr (kFeedback) PrefetchAhead(residual, kFp32BlockBytes);
    auto largest = hn::Zero(di);
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      auto x = hn::LoadU(d, target + i);
      if constexpr (kFeedback) x = hn::Sub(x, Remembered(residual + i, decay));
      hn::Store(x, d, wanted + i);
      const auto from = hn::LoadU(d, base + i);
      largest = hn::Max(largest, hn::Max(MagnitudeBits(x), MagnitudeBits(from)));
    }
    if (!hn::AllTrue(di, hn::Lt(largest, hn::Set(di, kInfinityBits)))) return block;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      const auto to = Ordered(hn::BitCast(di, hn::Load(d, wanted + i)));
      const auto from = Ordered(hn::BitCast(di, hn::LoadU(d, base + i)));
      StoreBytes(hn::Sub(to, from), di, codes + i * sizeof(uint32_t));
      if constexpr (kFeedback) hn::StoreU(hn::Zero(d), d, residual + i);
    }
    base += kCodecBlock;
    target += kCodecBlock;
    if constexpr (kFeedback) residual += kCodecBlock;
    codes += kFp32BlockBytes;
  }
  return blocks;
}

inline size_t Fp32Encode(const float* base, const float* target, float* residual, float decay,
                         size_t blocks, uint8_t* /*scales*/, uint8_t* codes) {
  return residual == nullptr ? Fp32EncodeBlocks<false>(base, target, residual, decay, blocks, codes)
                             : Fp32EncodeBlocks<true>(base, target, residual, decay, blocks, codes);
}

inline size_t Fp32Accumulate(const uint8_t* /*scales*/, const uint8_t* codes, const float* base,
                             double weight, size_t blocks, double* sum) {
  const DoubleTag d;
  const HalfFloatTag df;
  const auto factor = hn::Set(d, weight);
  for (size_t block = 0; block < blocks; ++block) {
    PrefetchAhead(codes, kFp32BlockBytes);
    PrefetchAhead(base, kFp32BlockBytes);
    if (!Fp32BlockIsFinite(codes, base)) return block;
    for (size_t i = 0; i < kCodecBlock; i += kLanes / 2) {
      const auto from = hn::LoadU(df, base + i);
      const auto to = Fp32Target(df, codes + i * sizeof(uint32_t), from);
      const auto delta = hn::Sub(hn::PromoteTo(d, from), hn::PromoteTo(d, to));
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::Mul(factor, delta)), d, sum + i);
    }
    codes += kFp32BlockBytes;
    base += kCodecBlock;
    sum += kCodecBlock;
  }
  return blocks;
}

inline size_t Fp32Apply(const uint8_t* /*scales*/, const uint8_t* codes, size_t blocks,
                        float* values) {
  const FloatTag d;
  for (size_t block = 0; block < blocks; ++block) {
    PrefetchAhead(codes, kFp32BlockBytes);
    PrefetchAhead(values, kFp32BlockBytes);
    if (!Fp32BlockIsFinite(codes, values)) return block;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      const auto from = hn::LoadU(d, values + i);
      hn::StoreU(Fp32Target(d, codes + i * sizeof(uint32_t), from), d, values + i);
    }
    codes += kFp32BlockBytes;
    values += kCodecBlock;
  }
  return blocks;
}

inline size_t Fp32Squares(const uint8_t* /*scales*/, const uint8_t* codes, const float* base,
                          size_t blocks, double* sums) {
  const DoubleTag d;
  const HalfFloatTag df;
  SquareAdder adder(sums);
  size_t block = 0;
  for (; block < blocks; ++block) {
    PrefetchAhead(codes, kFp32BlockBytes);
    PrefetchAhead(base, kFp32BlockBytes);
    if (!Fp32BlockIsFinite(codes, base)) break;
    adder.AddBlock([=](size_t i) HWY_ATTR {
      const auto from = hn::LoadU(df, base + i);
      const auto to = Fp32Target(df, codes + i * sizeof(uint32_t), from);
      return hn::Sub(hn::PromoteTo(d, from), hn::PromoteTo(d, to));
    });
    codes += kFp32BlockBytes;
    base += kCodecBlock;
  }
  adder.Store(sums);
  return block;
}

inline const CodecKernels* Fp32Kernels() {
  static constexpr CodecKernels kKernels = {.encode = &Fp32Encode,
                                            .accumulate = &Fp32Accumulate,
                                            .apply = &Fp32Apply,
                                            .squares = &Fp32Squares};
  return &kKernels;
}

#endif  // A target with vectors.
}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
