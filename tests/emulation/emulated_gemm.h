// Matrix products for emulated devices: bf16 in, every product and sum in fp32 by the CPU's own
// product, rounded once.
#pragma once

#include <memory>

#include "worker/backend/cuda/gemm.h"

namespace causeway::emulation {

std::unique_ptr<worker::cuda::Gemm> MakeEmulatedGemm();

}  // namespace causeway::emulation
