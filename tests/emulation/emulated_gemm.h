// Matrix products for emulated devices: bf16 in, every product and sum in fp32 by the CPU's own
// product, rounded once.
#ifndef CAUSEWAY_TESTS_EMULATION_EMULATED_GEMM_H_
#define CAUSEWAY_TESTS_EMULATION_EMULATED_GEMM_H_

#include <memory>

#include "worker/backend/cuda/gemm.h"

namespace causeway::emulation {

std::unique_ptr<worker::cuda::Gemm> MakeEmulatedGemm();

}  // namespace causeway::emulation

#endif  // CAUSEWAY_TESTS_EMULATION_EMULATED_GEMM_H_
