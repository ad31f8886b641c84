#include "common/codec/codec_kernels.h"

// Highway compiles the headers that end in -inl.h once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/codec_kernels.cc"
#include "hwy/foreach_target.h"

#include "common/codec/block_kernels-inl.h"
#include "common/codec/float_kernels-inl.h"
#include "common/codec/weighted_sum-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
template <class Format>
const CodecKernels* FourBitKernels() {
  static const CodecKernels kKernels = [] {
    CodecKernels kernels = *DifferenceKernels<BlockVectors<Format> >();
    kernels.weighted_sum = WeightedSumOf<Format>();
    return kernels;
  }();
  return &kKernels;
}
#endif

const CodecKernels* KernelsOfTarget(v1::Codec id) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // Emulated vectors would be slower than the scalar code.
  static_cast<void>(id);
  return nullptr;
#else
  switch (id) {
    case v1::FP32:
      return Fp32Kernels();
    case v1::BF16:
      return DifferenceKernels<Bf16Vectors>();
    case v1::INT8:
      return DifferenceKernels<BlockVectors<Int8Vectors> >();
    case v1::E3M0:
      return FourBitKernels<E3m0Vectors>();
    case v1::E2M1:
      return FourBitKernels<E2m1Vectors>();
    case v1::INT4:
      return FourBitKernels<Int4Vectors>();
    case v1::LM2:
      return DifferenceKernels<BlockVectors<Lm2Vectors> >();
    case v1::SIGN1:
      return DifferenceKernels<BlockVectors<Sign1Vectors> >();
    default:
      return nullptr;
  }
#endif
}

}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace causeway {

HWY_EXPORT(KernelsOfTarget);

const CodecKernels* FindCodecKernels(v1::Codec id) {
  return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(id);
}

}  // namespace causeway
#endif  // HWY_ONCE
