#include "server/outer/delta_norm.h"

#include <algorithm>
#include <cmath>
#include <span>
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
    double expected = 0;
    for (const double value : delta) expected += value * value;
    double sum = 0;
    for (size_t begin = 0; begin < kNormValues; begin += kCodecChunk) {
      const size_t size = std::min(kCodecChunk, kNormValues - begin);
      const absl::StatusOr<double> squares = DeltaSquares(
          codec, std::span(encoded).subspan(codec.EncodedBytes(begin), codec.EncodedBytes(size)),
          std::span(base).subspan(begin, size));
      ASSERT_TRUE(squares.ok()) << squares.status();
      sum += *squares;
    }
    EXPECT_NEAR(sum, expected, 1e-12 * sum) << v1::Codec_Name(id);
    EXPECT_GT(std::sqrt(sum), 8) << "0.1 times the root of 8292 is 9.1";
    EXPECT_LT(std::sqrt(sum), 10.5);
  }
}

TEST(DeltaNormTest, BytesThatAreNoDeltaAreRefused) {
  const std::vector<float> base(64);
  const Codec& codec = **FindCodec(v1::INT4);
  std::vector<uint8_t> encoded(codec.EncodedBytes(64), 0xff);
  EXPECT_EQ(DeltaSquares(codec, encoded, base).status().code(), absl::StatusCode::kInvalidArgument);
  encoded.pop_back();
  EXPECT_EQ(DeltaSquares(codec, encoded, base).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::server
