// The matrix products behind Gemm against plain loops in double precision: cuBLASLt's on a GPU, the
// stand-in's elsewhere. Whatever the transformer asks for is asked for here, at odd sizes.
#include "worker/backend/cuda/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {
namespace {

struct Shape {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  bool transpose_a = false, transpose_b = false;
  bool float_d = false, with_bias = false, other_c = false;
  float alpha = 1, beta = 0;

  std::string Name() const {
    return std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) + ", batch " +
           std::to_string(batch) + (transpose_a ? ", A^T" : "") + (transpose_b ? ", B^T" : "") +
           (float_d ? ", fp32" : "") + (with_bias ? ", bias" : "") +
           (other_c ? ", another C" : "") + ", alpha " + std::to_string(alpha) + ", beta " +
           std::to_string(beta);
  }
};

// Rows are 16-byte aligned and wider than the matrix.
int64_t Stride(int64_t columns) { return (columns + 7) / 8 * 8 + 8; }

class GemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = DiscoverDevices({0}, *FileSystem::Real()).value();
    gemm_ = MakeTestGemm(devices.front(), &memory_).value();
  }

  // Compares D with the oracle, twice more with itself, and once more out of a graph.
  void Expect(const Shape& s) {
    SCOPED_TRACE(s.Name());
    // Operands begin at 16 bytes past the allocation: no more alignment than is promised.
    constexpr int64_t kOffset = 8;
    const int64_t a_rows = s.transpose_a ? s.k : s.m;
    const int64_t a_stride = Stride(s.transpose_a ? s.m : s.k);
    const int64_t b_rows = s.transpose_b ? s.n : s.k;
    const int64_t b_stride = Stride(s.transpose_b ? s.k : s.n);
    const int64_t d_stride = Stride(s.n);
    const int64_t d_size = s.batch * s.m * d_stride;
    const Doubles a = RandomValues(1).Normal(kOffset + s.batch * a_rows * a_stride);
    const Doubles b = RandomValues(2).Normal(kOffset + s.batch * b_rows * b_stride);
    const Doubles c = RandomValues(3).Normal(kOffset + d_size);
    const Doubles bias = RandomValues(4).Normal(kOffset + s.n);
    TestDevice device;

    GemmCall call;
    call.m = s.m, call.n = s.n, call.k = s.k, call.batch = s.batch;
    call.alpha = s.alpha, call.beta = s.beta;
    call.a = {device.UploadBf16(a) + kOffset, a_stride, a_rows * a_stride, s.transpose_a};
    call.b = {device.UploadBf16(b) + kOffset, b_stride, b_rows * b_stride, s.transpose_b};
    call.d_stride = d_stride;
    call.d_batch_stride = s.m * d_stride;
    call.bias = s.with_bias ? device.UploadBf16(bias) + kOffset : nullptr;
    Doubles first;
    for (const bool graph : {false, false, true}) {
      __nv_bfloat16* const d = device.UploadBf16(c);
      float* const d_float = device.UploadFloat(c);
      if (s.float_d) {
        call.d_float = d_float + kOffset;
        call.c = s.other_c ? device.UploadFloat(c) + kOffset : call.d_float;
      } else {
        call.d = d + kOffset;
        call.c = s.other_c ? device.UploadBf16(c) + kOffset : call.d;
      }
      const auto run = [&] { return gemm_->Run(call, device.stream()); };
      if (graph) {
        const auto recorded = Graph::Record(device.stream(), run);
        ASSERT_TRUE(recorded.ok()) << recorded.status();
        ASSERT_TRUE(recorded->Start(device.stream()).ok());
        ASSERT_EQ(cudaStreamSynchronize(device.stream()), cudaSuccess);
      } else {
        ASSERT_EQ(run(), absl::OkStatus());
      }
      const auto size = static_cast<int64_t>(c.size());
      const Doubles result = s.float_d ? device.Values(d_float, size) : device.Values(d, size);
      if (first.empty()) first = result;
      EXPECT_EQ(result, first);
    }

    for (int64_t item = 0; item < s.batch; ++item) {
      for (int64_t row = 0; row < s.m; ++row) {
        for (int64_t column = 0; column < d_stride; ++column) {
          const int64_t at = kOffset + (item * s.m + row) * d_stride + column;
          if (column >= s.n) {  // The space between rows stays.
            ASSERT_EQ(first[Size(at)], c[Size(at)]);
            continue;
          }
          double sum = 0;
          double magnitude = 0;  // Sum of the terms' magnitudes.
          for (int64_t i = 0; i < s.k; ++i) {
            const int64_t a_at = s.transpose_a ? i * a_stride + row : row * a_stride + i;
            const int64_t b_at = s.transpose_b ? column * b_stride + i : i * b_stride + column;
            const double term = a[Size(kOffset + item * a_rows * a_stride + a_at)] *
                                b[Size(kOffset + item * b_rows * b_stride + b_at)];
            sum += term;
            magnitude += std::abs(term);
          }
          sum *= double{s.alpha};
          const double product = sum;
          if (s.beta != 0) sum += double{s.beta} * c[Size(at)];
          if (s.with_bias) sum += bias[Size(kOffset + column)];
          // fp32 sums in any order, and a rounding of the result to bf16. Some of cuBLASLt's
          // kernels round the product to bf16, too, before they add C.
          double bound = 1e-6 * (2 + magnitude);
          if (!s.float_d) bound += std::abs(sum) / 256;
          if (!s.float_d && s.beta != 0) bound += std::abs(product) / 256;
          ASSERT_NEAR(first[Size(at)], sum, bound) << item << ", " << row << ", " << column;
        }
      }
    }
  }

  DeviceMemory memory_;
  std::unique_ptr<Gemm> gemm_;
};

TEST_F(GemmTest, EveryTranspositionAndTypeIsLikeTheOracle) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool float_d : {false, true}) {
        for (const float beta : {0.0F, 1.0F}) {
          Expect({.m = 40,
                  .n = 72,
                  .k = 56,
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .float_d = float_d,
                  .beta = beta});
        }
      }
    }
  }
}

TEST_F(GemmTest, OddNumbersOfRowsAndTermsAreTaken) {
  for (const int64_t rows : {int64_t{1}, int64_t{33}, int64_t{129}}) {
    Expect({.m = rows, .n = 64, .k = 48, .transpose_b = true});
    // As the gradient of weights after `rows` tokens.
    Expect({.m = 64, .n = 48, .k = rows, .transpose_a = true, .float_d = true, .beta = 1});
  }
}

TEST_F(GemmTest, BiasesScalesAndOtherAddendsAreTaken) {
  Expect({.m = 24, .n = 40, .k = 32, .transpose_b = true, .with_bias = true});
  Shape shape = {.m = 24, .n = 40, .k = 32, .transpose_b = true, .alpha = 2.0315F, .beta = -4.775F};
  Expect(shape);
  shape.other_c = true;
  Expect(shape);
  shape.float_d = true;
  Expect(shape);
}

TEST_F(GemmTest, BatchesAreTaken) {
  Shape shape = {.m = 24, .n = 24, .k = 40, .batch = 3, .transpose_b = true};
  Expect(shape);
  shape.beta = 0.5F;
  shape.other_c = true;
  Expect(shape);
}

TEST_F(GemmTest, TunedProductsAreLikeTheOracle) {
  gemm_->SetTuning(true);
  Expect({.m = 128, .n = 96, .k = 200, .transpose_b = true});
}

}  // namespace
}  // namespace causeway::worker::cuda
