#include "worker/backend/cuda/kernels/kernels.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"

namespace causeway::worker::cuda {
namespace {

TEST(ElementwiseTest, CastsAndSumsTakeAnyLength) {
  for (const int64_t size : {1, 7, 8, 9, 2048, 2053}) {
    RandomValues random(1);
    const Doubles a = random.Normal(size);
    const Doubles b = random.Normal(size);
    Doubles fine = a;  // More digits than bf16 has.
    for (double& value : fine) value = static_cast<double>(static_cast<float>(value * 1.2345));
    Doubles sum = a;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
    const auto tensors = Repeat([&](TestDevice& device) {
      // The value behind must stay.
      auto* const narrow = device.UploadBf16(Doubles(static_cast<size_t>(size + 1), 5));
      CastToBf16(size, device.UploadFloat(fine), narrow, device.stream());
      Doubles before = a;
      before.push_back(5);
      float* const added = device.UploadFloat(before);
      Add(size, device.UploadFloat(b), added, device.stream());
      return std::vector<Doubles>{device.Values(narrow, size + 1), device.Values(added, size + 1)};
    });
    Doubles narrow = RoundToBf16(fine);
    for (Doubles* values : {&narrow, &sum}) values->push_back(5);
    EXPECT_EQ(tensors[0], narrow);
    ExpectCloseFloat("sum", tensors[1], sum, 1e-7);
  }
}

TEST(ElementwiseTest, CastsRoundToEvenAndKeepWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.00390625F, 1.01171875F, -1.00390625F, 3.4e38F,
                                     infinity,    -infinity,   1e-40F,       std::nanf("")};
  TestDevice device;
  auto* const out = device.Allocate<__nv_bfloat16>(8);
  CastToBf16(8, device.Upload(values), out, device.stream());
  const Doubles rounded = device.Values(out, 8);
  EXPECT_EQ(rounded[0], 1);
  EXPECT_EQ(rounded[1], 1.015625);
  EXPECT_EQ(rounded[2], -1);
  EXPECT_EQ(rounded[3], std::numeric_limits<double>::infinity());
  EXPECT_EQ(rounded[4], std::numeric_limits<double>::infinity());
  EXPECT_EQ(rounded[5], -std::numeric_limits<double>::infinity());
  EXPECT_NEAR(rounded[6], 1e-40, 1e-41);  // bf16 has multiples of 9.2e-41 here.
  EXPECT_TRUE(std::isnan(rounded[7]));
}

}  // namespace
}  // namespace causeway::worker::cuda
