// Muon's orthogonalization as a whole on the device, against the CPU's in double: at most 1.5 times
// as far off as the same iteration in double, rounded to bf16 where the device writes a matrix.
#include "worker/backend/cuda/device_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/optimizer.h"

namespace causeway::worker::cuda {
namespace {

struct Side {
  const Doubles& values;
  int64_t stride;
  bool transpose;
};
// alpha * op(a) op(b) + beta * c of [m, n], rounded to bf16.
Doubles Product(int64_t m, int64_t n, int64_t k, const Side& a, const Side& b, double alpha = 1,
                double beta = 0, Doubles c = {}) {
  c.resize(Size(m * n));
  worker::Gemm<double>(nullptr, a.transpose, b.transpose, m, n, k, alpha, a.values.data(), a.stride,
                       b.values.data(), b.stride, beta, c.data(), n);
  return RoundToBf16(std::move(c));
}

Doubles Emulated(int64_t rows, int64_t cols, Doubles x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value = RoundToBf16(value / (std::sqrt(squares) + 1e-7));
  const bool tall = rows > cols;
  const int64_t side = std::min(rows, cols);
  for (int i = 0; i < kNewtonSchulzIterations; ++i) {
    const Side plain = {x, cols, false};
    const Side turned = {x, cols, true};
    const Doubles gram =
        Product(side, side, std::max(rows, cols), tall ? turned : plain, tall ? plain : turned);
    const Side a = {gram, side, false};
    const Doubles polynomial = Product(side, side, side, a, a, 2.0315, -4.7750, gram);
    const Side p = {polynomial, side, false};
    x = Product(rows, cols, side, tall ? plain : p, tall ? p : plain, 1, 3.4445, x);
  }
  return x;
}

TEST(NewtonSchulzTest, IsAsCloseToTheOracleAsRoundingToBf16Allows) {
  ASSERT_TRUE(HaveDevices(1));
  // Wide, tall, square; one and several at a time.
  for (const MatrixBatch& batch :
       {MatrixBatch{24, 64, 1}, MatrixBatch{24, 64, 3}, MatrixBatch{72, 16, 2},
        MatrixBatch{40, 40, 2}, MatrixBatch{8, 136, 1}, MatrixBatch{128, 8, 1}}) {
    SCOPED_TRACE(absl::StrCat(batch.count, " of ", batch.rows, "x", batch.cols));
    const int64_t size = batch.rows * batch.cols;
    // Larger than 1 by far, and each of another size.
    RandomValues random(static_cast<uint32_t>(size + batch.count));
    Doubles input;
    for (int64_t i = 0; i < batch.count; ++i) {
      const Doubles one = random.Normal(size, std::pow(10.0, static_cast<double>(2 - i)));
      input.insert(input.end(), one.begin(), one.end());
    }
    const std::vector<Doubles> actual = Repeat([&](TestDevice& device) {
      DeviceMemory memory;
      const auto gemm = MakeTestGemm({}, &memory).value();
      const NewtonSchulz newton_schulz = NewtonSchulz::Create({batch}, &memory, gemm.get()).value();
      __nv_bfloat16* const matrices = device.UploadBf16(input);
      EXPECT_TRUE(newton_schulz.Orthogonalize(batch, matrices, device.stream()).ok());
      return std::vector<Doubles>{device.Values(matrices, size * batch.count)};
    });
    for (int64_t i = 0; i < batch.count; ++i) {
      const auto of = [&](const Doubles& all) {
        return Doubles(all.begin() + i * size, all.begin() + (i + 1) * size);
      };
      Doubles oracle = of(input);
      Doubles scratch(Size(MuonScratchSize(batch.rows, batch.cols)));
      Orthogonalize<double>(batch.rows, batch.cols, oracle.data(), scratch);
      ExpectClose(absl::StrCat("matrix ", i), of(actual[0]), oracle,
                  Emulated(batch.rows, batch.cols, of(input)));
    }
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
