// Activations and biases against the CPU's kernels in double.
#include "worker/backend/cuda/kernels/kernels.h"

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker::cuda {
namespace {

struct Shape {
  int64_t rows, width;
};
const Shape kShapes[] = {{1, 8}, {3, 24}, {5, 520}, {37, 64}};

// An activation whose input has so many values for each hidden one.
template <typename Oracle, typename OracleBackward, typename Forward, typename Backward>
void ExpectTheOracles(int64_t inputs, Oracle oracle, OracleBackward oracle_backward,
                      Forward forward, Backward backward) {
  for (const auto [rows, width] : kShapes) {
    const int64_t size = rows * width;
    RandomValues random(5);
    const Doubles input = random.Normal(inputs * size, 3);
    const Doubles dhidden = random.Normal(size);
    const auto tensors = Repeat([&, rows = rows, width = width](TestDevice& device) {
      __nv_bfloat16* const in = device.UploadBf16(input);
      auto* const hidden = device.Allocate<__nv_bfloat16>(size);
      auto* const again = device.UploadBf16(dhidden);
      forward(rows, width, in, hidden, device.stream());
      backward(rows, width, again, in, again, device.stream());
      return std::vector<Doubles>{device.Values(hidden, size), device.Values(again, size),
                                  device.Values(in, inputs * size)};
    });
    Doubles hidden(dhidden.size());
    Doubles gradient = input;
    oracle(input.data(), rows, width, hidden.data());
    ExpectCloseBf16("hidden", tensors[0], hidden);
    EXPECT_EQ(tensors[1], tensors[0]);
    oracle_backward(dhidden.data(), rows, width, gradient.data(), hidden.data());
    ExpectCloseBf16("gradient", tensors[2], gradient);
  }
}

TEST(ActivationTest, SwigluIsTheOracles) {
  const Kernels<double>& oracle = GetKernels<double>();
  ExpectTheOracles(2, oracle.swiglu, oracle.swiglu_backward, SwigluForward, SwigluBackward);
}

TEST(ActivationTest, GeluIsTheOracles) {
  const Kernels<double>& oracle = GetKernels<double>();
  ExpectTheOracles(1, oracle.gelu, oracle.gelu_backward, GeluForward, GeluBackward);
}

TEST(ActivationTest, FarFromZeroEverythingStaysFinite) {
  const Doubles x = RoundToBf16(Doubles{-1e30, -1000, -90, -20, 20, 90, 1000, 1e9});
  const Doubles ones(8, 1);
  TestDevice device;
  auto* const hidden = device.Allocate<__nv_bfloat16>(8);
  Doubles gate_up = x;
  gate_up.insert(gate_up.end(), ones.begin(), ones.end());
  SwigluForward(1, 8, device.UploadBf16(gate_up), hidden, device.stream());
  Doubles oracle(8);
  GetKernels<double>().swiglu(gate_up.data(), 1, 8, oracle.data());
  const Doubles swiglu = device.Values(hidden, 8);
  GeluForward(1, 8, device.UploadBf16(x), hidden, device.stream());
  const Doubles gelu = device.Values(hidden, 8);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_NEAR(swiglu[i], 0, 1e-6);
    EXPECT_NEAR(gelu[i], 0, 1e-6);
  }
  for (size_t i = 4; i < 8; ++i) {
    EXPECT_EQ(swiglu[i], x[i]);
    EXPECT_EQ(gelu[i], x[i]);
  }
}

TEST(ActivationTest, ABackwardPassWithoutHiddenWritesTheGradientAlone) {
  RandomValues random(8);
  const Doubles gate_up = random.Normal(2 * 3 * 16);
  const Doubles dhidden = random.Normal(3 * 16);
  TestDevice device;
  auto* const with = device.UploadBf16(gate_up);
  auto* const without = device.UploadBf16(gate_up);
  auto* const upstream = device.UploadBf16(dhidden);
  SwigluBackward(3, 16, upstream, with, device.Allocate<__nv_bfloat16>(48), device.stream());
  SwigluBackward(3, 16, upstream, without, nullptr, device.stream());
  EXPECT_EQ(device.Values(with, 96), device.Values(without, 96));
  EXPECT_EQ(device.Values(upstream, 48), dhidden);
  GeluBackward(3, 16, upstream, without, nullptr, device.stream());
  EXPECT_EQ(device.Values(upstream, 48), dhidden);
}

TEST(BiasTest, IsAddedToTheColumnsThatItIsOf) {
  constexpr int64_t kRows = 5, kStride = 48, kFirst = 8, kWidth = 24;
  RandomValues random(9);
  const Doubles values = random.Normal(kRows * kStride);
  const Doubles bias = random.Normal(kWidth);
  const auto tensors = Repeat([&](TestDevice& device) {
    auto* const out = device.UploadBf16(values);
    AddBias(kRows, kWidth, kStride, device.UploadBf16(bias), out + kFirst, device.stream());
    return std::vector<Doubles>{device.Values(out, kRows * kStride)};
  });
  Doubles expected = values;
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t column = i % kStride;
    if (column < kFirst || column >= kFirst + kWidth) continue;
    expected[i] = RoundToBf16(values[i] + bias[column - kFirst]);
  }
  EXPECT_EQ(tensors[0], expected);
}

TEST(BiasTest, TheGradientIsTheSumOverAllRows) {
  for (const auto [rows, width] : {Shape{1, 8}, Shape{7, 264}, Shape{131, 40}, Shape{8200, 8}}) {
    const int64_t stride = width + 16;
    RandomValues random(10);
    // Integers, so that sums are exact in any order.
    std::vector<int32_t> integers = random.Integers(rows * stride, -8, 8);
    const Doubles dout(integers.begin(), integers.end());
    for (const bool accumulate : {false, true}) {
      const auto run = [&, rows = rows, width = width](TestDevice& device) {
        float* const dbias = device.UploadFloat(Doubles(static_cast<size_t>(width), 1000));
        BiasBackward(rows, width, stride, device.UploadBf16(dout) + 8, accumulate, dbias,
                     device.Allocate<float>(BiasBackwardScratch(rows, width)), device.stream());
        return std::vector<Doubles>{device.Values(dbias, width)};
      };
      Doubles expected(static_cast<size_t>(width), accumulate ? 1000 : 0);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < width; ++column) {
          expected[static_cast<size_t>(column)] +=
              dout[static_cast<size_t>(row * stride + 8 + column)];
        }
      }
      EXPECT_EQ(Repeat(run)[0], expected) << rows << " x " << width;
    }
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
