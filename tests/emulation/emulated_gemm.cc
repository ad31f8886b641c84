// Matrix products for emulated devices: bf16 in, every product and sum in fp32 by the CPU's own
// product, rounded once.
#include "device_emulation.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cuda/gemm.h"

namespace causeway::worker::cuda {
namespace {

std::vector<float> Load(const GemmOperand& operand, int64_t index, int64_t rows, int64_t columns) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  const __nv_bfloat16* const data = operand.data + index * operand.batch_stride;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      values[static_cast<size_t>(r * columns + c)] = __bfloat162float(data[r * operand.stride + c]);
    }
  }
  return values;
}

void Compute(const GemmCall& call) {
  for (int64_t i = 0; i < call.batch; ++i) {
    const int64_t a_rows = call.a.transpose ? call.k : call.m;
    const int64_t b_rows = call.b.transpose ? call.n : call.k;
    const int64_t a_columns = call.m + call.k - a_rows;
    const int64_t b_columns = call.n + call.k - b_rows;
    const std::vector<float> a = Load(call.a, i, a_rows, a_columns);
    const std::vector<float> b = Load(call.b, i, b_rows, b_columns);
    std::vector<float> product(static_cast<size_t>(call.m * call.n));
    GemmTile<float>(call.a.transpose, call.b.transpose, call.m, call.n, call.k, call.alpha,
                    a.data(), a_columns, b.data(), b_columns, 0.0F, product.data(), call.n);
    for (int64_t r = 0; r < call.m; ++r) {
      for (int64_t c = 0; c < call.n; ++c) {
        const int64_t at = i * call.d_batch_stride + r * call.d_stride + c;
        float value = product[static_cast<size_t>(r * call.n + c)];
        if (call.d_float != nullptr) {
          if (call.beta != 0) value += call.beta * static_cast<const float*>(call.c)[at];
          call.d_float[at] = value;
          continue;
        }
        if (call.beta != 0) {
          value += call.beta * __bfloat162float(static_cast<const __nv_bfloat16*>(call.c)[at]);
        }
        if (call.bias != nullptr) value += __bfloat162float(call.bias[c]);
        call.d[at] = __float2bfloat16_rn(value);
      }
    }
  }
}

class EmulatedGemm final : public Gemm {
 public:
  absl::Status Run(const GemmCall& call, cudaStream_t stream) override {
    const bool one_result = (call.d != nullptr) != (call.d_float != nullptr);
    const bool aligned = call.a.stride % 8 == 0 && call.b.stride % 8 == 0 && call.d_stride % 8 == 0;
    if (!one_result || !aligned || (call.beta != 0 && call.c == nullptr) ||
        (call.bias != nullptr && call.d == nullptr)) {
      return absl::InternalError(absl::StrCat("a product of ", call.m, " x ", call.n, " x ", call.k,
                                              " that cuBLASLt would not take"));
    }
    emulation::Enqueue(stream, [call] { Compute(call); });
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm(const DeviceInfo&, DeviceMemory*,
                                                       GemmPlanStore*) {
  return std::make_unique<EmulatedGemm>();
}

}  // namespace causeway::worker::cuda
