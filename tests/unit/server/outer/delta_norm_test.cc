#include "server/outer/delta_norm.h"

#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

constexpr size_t kNormValues = 2 * kCodecChunk + 100;

TEST(DeltaNormTest, IsThatOfTheDecodedDeltaWithEveryCodec) {
  std::vector<float> base(kNormValues);
  std::vector<float> target(kNormValues);
  for (size_t i = 0; i < kNormValues; ++i) {
    base[i] = static_cast<float>(RandomNormal(1, 0, i));
    target[i] = base[i] + 0.1F * static_cast<float>(RandomNormal(1, 1, i));
  }
  for (const v1::Codec id : {v1::FP32, v1::BF16, v1::INT8, v1::E3M0, v1::E2M1, v1::INT4, v1::LM2}) {
    const Codec& codec = **FindCodec(id);
    std::vector<uint8_t> encoded(codec.EncodedBytes(kNormValues));
    std::vector<float> residual(kNormValues);
    ASSERT_TRUE(codec.Encode(base, target, {.residual = residual}, encoded).ok());
    std::vector<double> delta(kNormValues);
    ASSERT_TRUE(codec.Accumulate(encoded, base, 1.0, delta).ok());
    double sum = 0;
    for (const double value : delta) sum += value * value;
    const absl::StatusOr<double> norm = DeltaNorm(codec, encoded, base);
    ASSERT_TRUE(norm.ok()) << norm.status();
    EXPECT_NEAR(*norm, std::sqrt(sum), 1e-12 * *norm) << v1::Codec_Name(id);
    EXPECT_GT(*norm, 8) << "0.1 times the root of 8292 is 9.1";
    EXPECT_LT(*norm, 10.5);
  }
}

TEST(DeltaNormTest, BytesThatAreNoDeltaAreRefused) {
  const std::vector<float> base(64);
  const Codec& codec = **FindCodec(v1::INT4);
  std::vector<uint8_t> encoded(codec.EncodedBytes(64), 0xff);
  EXPECT_EQ(DeltaNorm(codec, encoded, base).status().code(), absl::StatusCode::kInvalidArgument);
  encoded.pop_back();
  EXPECT_EQ(DeltaNorm(codec, encoded, base).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::server
