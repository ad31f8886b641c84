#include "worker/backend/cpu/kernels.h"

// Highway compiles kernels-inl.h once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/backend/cpu/kernels.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "worker/backend/cpu/kernels-inl.h"

#if HWY_ONCE
namespace causeway::worker {

HWY_EXPORT(FloatKernels);
HWY_EXPORT(DoubleKernels);

template <>
const Kernels<float>& GetKernels<float>() {
  static const Kernels<float>& kernels = *HWY_DYNAMIC_DISPATCH(FloatKernels)();
  return kernels;
}

template <>
const Kernels<double>& GetKernels<double>() {
  static const Kernels<double>& kernels = *HWY_DYNAMIC_DISPATCH(DoubleKernels)();
  return kernels;
}

}  // namespace causeway::worker
#endif  // HWY_ONCE
