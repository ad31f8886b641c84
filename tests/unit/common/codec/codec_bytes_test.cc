// The bytes: the worked examples of docs/codecs.md, ties, scales, and hostile input.
#include <bit>

#include "common/codec/codec_layout.h"
#include "gmock/gmock.h"
#include "tests/unit/common/codec/codec_test_util.h"

namespace causeway {
namespace {

using Bytes = std::vector<uint8_t>;
using testing::ElementsAre;
using testing::HasSubstr;

// The worked examples.

const std::vector<float> kExample = {1.0F, -0.5F, 0.1F, 0.0F};

TEST(WorkedExample, OfEveryCodecThatRounds) {
  const double small = static_cast<double>(0.4528F * 0.5625F);
  const double large = static_cast<double>(1.510F * 0.5625F);
  struct Example {
    v1::Codec codec;
    Bytes bytes;
    std::vector<double> decoded = {};  // Empty: the page does not say it.
  };
  const Example examples[] = {
      {v1::INT4, {0x80, 0x3f, 0xc7, 0x01}, {1 - 0x1p-24, -4 * 0x1.249248p-3, 0x1.249248p-3, 0.0}},
      {v1::INT8, {0x80, 0x3f, 0x7f, 0xc0, 0x0d, 0x00}},
      {v1::E3M0, {0x80, 0x3f, 0xe7, 0x04}, {1.0, -0.5, 0.125, 0.0}},
      {v1::E2M1, {0x80, 0x3f, 0xd7, 0x01}},
      {v1::LM2, {0x10, 0x3f, 0x09}, {large, -small, small, small}},
      {v1::SIGN1, {0xcd, 0x3e, 0x02}, {0.400390625, -0.400390625, 0.400390625, 0.400390625}},
      {v1::BF16, {0x80, 0x3f, 0x00, 0xbf, 0xcd, 0x3d, 0x00, 0x00}}};
  for (const Example& example : examples) {
    SCOPED_TRACE(v1::Codec_Name(example.codec));
    const Codec& codec = GetCodec(example.codec);
    EXPECT_EQ(EncodeDelta(codec, kExample), example.bytes);
    if (example.decoded.empty()) continue;
    EXPECT_EQ(DecodeDelta(codec, example.bytes, kExample), example.decoded);
  }
}

TEST(WorkedExample, Fp32) {
  const Codec& codec = GetCodec(v1::FP32);
  const std::vector<float> base = {1.0F, 1.0F, 0.0F, 0.5F};
  const std::vector<float> target = {1.0F + 0x1p-23F, -1.0F, -0.0F, 0.25F};
  Bytes bytes(16);
  ASSERT_TRUE(codec.Encode(base, target, {}, bytes).ok());
  EXPECT_EQ(bytes, (Bytes{0x01, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0x80,  //
                          0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x80, 0xff}));
}

TEST(WorkedExample, AScaleThatIsNoBf16IsRoundedUp) {
  const std::vector<float> values = {1.001F};
  EXPECT_EQ(EncodeDelta(GetCodec(v1::INT8), values), (Bytes{0x81, 0x3f, 0x7e}));
}

TEST(WorkedExample, AChunkHasItsScalesFirst) {
  // 66 values: two blocks, scales 1 and 2, then 33 bytes of codes.
  std::vector<float> values(66, 0.0F);
  values[0] = 1.0F;
  values[65] = -2.0F;
  const Bytes bytes = EncodeDelta(GetCodec(v1::INT4), values);
  ASSERT_EQ(bytes.size(), 37U);
  Bytes expected(37, 0);
  expected[0] = 0x80, expected[1] = 0x3f;
  expected[2] = 0x00, expected[3] = 0x40;
  expected[4] = 0x07;
  expected[36] = 0x90;
  EXPECT_EQ(bytes, expected);
}

// Rounding.

// The codes of `values` in a block whose scale is `scale`, which is appended to it.
std::vector<int> Nibbles(v1::Codec id, std::vector<float> values, float scale) {
  values.push_back(scale);
  const Bytes bytes = EncodeDelta(GetCodec(id), values);
  std::vector<int> nibbles;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    nibbles.push_back((bytes[2 + i / 2] >> (i % 2 * 4)) & 15);
  }
  return nibbles;
}

TEST(Rounding, E3m0TiesGoToTheEvenCode) {
  const float u = 0x1p-7F;
  EXPECT_THAT(Nibbles(v1::E3M0, {u, 3 * u, 6 * u, 12 * u, 24 * u, 48 * u, 96 * u}, 1.0F),
              ElementsAre(0, 2, 2, 4, 4, 6, 6));
  EXPECT_THAT(Nibbles(v1::E3M0, {1.01F * u, 2.99F * u, 6.01F * u, 11.9F * u, -96.1F * u}, 1.0F),
              ElementsAre(1, 1, 3, 3, 15));
}

TEST(Rounding, E2m1TiesGoToTheEvenCode) {
  EXPECT_THAT(Nibbles(v1::E2M1, {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F}, 6.0F),
              ElementsAre(0, 2, 2, 4, 4, 6, 6));
  EXPECT_THAT(Nibbles(v1::E2M1, {0.26F, 0.74F, 1.26F, 1.74F, 2.51F, 3.49F, -5.01F}, 6.0F),
              ElementsAre(1, 1, 3, 3, 5, 5, 15));
}

TEST(Rounding, Int4TiesGoToTheEvenCode) {
  EXPECT_THAT(Nibbles(v1::INT4, {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 6.5F}, 7.0F),
              ElementsAre(0, 2, 2, 0, 14, 14, 6));
}

TEST(Rounding, MinusZeroIsNeverACode) {
  for (const auto id : {v1::E3M0, v1::E2M1, v1::INT4}) {
    EXPECT_THAT(Nibbles(id, {-0.0F, -1e-6F}, 1.0F), ElementsAre(0, 0));
  }
}

TEST(Rounding, Bf16TiesGoToEven) {
  EXPECT_EQ(Bf16Nearest(1.0F + 0x1p-8F), 0x3f80);
  EXPECT_EQ(Bf16Nearest(1.0F + 0x3p-8F), 0x3f82);
  EXPECT_EQ(Bf16RoundedUp(1.0F), 0x3f80);
  EXPECT_EQ(Bf16RoundedUp(1.0F + 0x1p-23F), 0x3f81);
}

// Limits.

std::vector<v1::Codec> BlockCodecIds() { return {kCodecs.begin() + 2, kCodecs.end()}; }

TEST(Limits, BlocksBelowTheSmallestScaleBecomeZeroAndAreKeptByFeedback) {
  for (const auto id : BlockCodecIds()) {
    const std::vector<float> values = {0x1p-101F, -0x1p-149F};
    std::vector<float> residual(2, 0.0F);
    const Bytes bytes = EncodeDelta(GetCodec(id), values, residual);
    EXPECT_EQ(bytes, Bytes(bytes.size(), 0)) << v1::Codec_Name(id);
    EXPECT_EQ(residual, values);
    const std::vector<float> smallest = {0x1p-100F, -0x1p-100F};
    EXPECT_EQ(EncodeDelta(GetCodec(id), smallest)[1], 0x0d) << v1::Codec_Name(id);
  }
}

TEST(Limits, MagnitudesAboveTheLargestScaleAreRefused) {
  for (const auto id : BlockCodecIds()) {
    const Codec& codec = GetCodec(id);
    std::vector<float> values = {1.0F, -0x1p100F};
    EXPECT_EQ(EncodeDelta(codec, std::vector<float>(2, 0x1p100F))[1], 0x71);
    const std::vector<float> zeros(2, 0.0F);
    Bytes bytes(codec.EncodedBytes(2));
    EXPECT_TRUE(codec.Encode(values, zeros, {}, bytes).ok());
    values[1] = std::nextafter(-0x1p100F, -1e38F);
    EXPECT_THAT(codec.Encode(values, zeros, {}, bytes).message(), HasSubstr("value 1:"));
  }
}

TEST(Limits, EveryScaleOfABlockKeepsItsLargestValue) {
  // Over all 128 mantissas: no code beyond the last one, and never more than the scale.
  for (const auto id : {v1::INT8, v1::E3M0, v1::E2M1, v1::INT4}) {
    for (uint32_t mantissa = 0; mantissa < 128; ++mantissa) {
      for (const uint32_t exponent : {27U, 127U, 226U}) {
        const float scale = std::bit_cast<float>((exponent << 23) | (mantissa << 16));
        const std::vector<float> values = {scale, -scale};
        const Codec& codec = GetCodec(id);
        const auto decoded = DecodeDelta(codec, EncodeDelta(codec, values), values);
        ASSERT_LE(decoded[0], static_cast<double>(scale));
        ASSERT_GE(decoded[0], static_cast<double>(scale) * (1 - 0x1p-22));
        ASSERT_EQ(decoded[1], -decoded[0]);
      }
    }
  }
}

TEST(Limits, Bf16RefusesWhatRoundsToInfinity) {
  const Codec& codec = GetCodec(v1::BF16);
  Bytes bytes(2);
  const std::vector<float> zero = {0.0F};
  const std::vector<float> fits = {std::bit_cast<float>(0x7f7f7fffU)};
  const std::vector<float> too_large = {std::bit_cast<float>(0x7f7f8000U)};
  EXPECT_TRUE(codec.Encode(fits, zero, {}, bytes).ok());
  EXPECT_EQ(codec.Encode(too_large, zero, {}, bytes).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Limits, ApplyRefusesToLeaveFp32) {
  const Codec& codec = GetCodec(v1::BF16);
  const std::vector<float> delta = {-3e38F};
  const Bytes bytes = EncodeDelta(codec, delta);
  std::vector<float> values = {3e38F};
  EXPECT_FALSE(codec.Validate(bytes, values).ok());
  EXPECT_FALSE(codec.Apply(bytes, values).ok());
}

// FP32.

TEST(Fp32, OrderIsABijectionThatFollowsTheValues) {
  EXPECT_EQ(OrderedFromFloat(0.0F), 0);
  EXPECT_EQ(OrderedFromFloat(-0.0F), -1);
  for (uint64_t i = 0; i < 100000; ++i) {
    const float a = std::bit_cast<float>(static_cast<uint32_t>(RandomBits(1, 0, i)));
    const float b = std::bit_cast<float>(static_cast<uint32_t>(RandomBits(1, 1, i)));
    ASSERT_EQ(std::bit_cast<uint32_t>(FloatFromOrdered(OrderedFromFloat(a))),
              std::bit_cast<uint32_t>(a));
    if (a < b) {
      ASSERT_LT(OrderedFromFloat(a), OrderedFromFloat(b));
    }
  }
}

TEST(Fp32, RestoresEveryFiniteBitPattern) {
  std::vector<float> base = {0.0F, -0.0F, 0x1p-149F, -0x1p-149F, 3.4e38F, -3.4e38F, 1e-30F};
  std::vector<float> target = {-0.0F, 0.0F, -0x1p-149F, 3.4e38F, -3.4e38F, 1e-45F, 1e30F};
  for (uint64_t i = 0; base.size() < 20000; ++i) {
    const float a = std::bit_cast<float>(static_cast<uint32_t>(RandomBits(2, 0, i)));
    const float b = std::bit_cast<float>(static_cast<uint32_t>(RandomBits(2, 1, i)));
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    base.push_back(a);
    target.push_back(b);
  }
  const Codec& codec = GetCodec(v1::FP32);
  Bytes bytes(codec.EncodedBytes(base.size()));
  ASSERT_TRUE(codec.Encode(base, target, {}, bytes).ok());
  const std::vector<double> delta = DecodeDelta(codec, bytes, base);
  std::vector<float> values = base;
  ASSERT_TRUE(codec.Apply(bytes, values).ok());
  for (size_t i = 0; i < base.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(target[i]));
    ASSERT_EQ(delta[i], static_cast<double>(base[i]) - static_cast<double>(target[i]));
  }
}

TEST(Fp32, FeedbackSendsTheResidualOnce) {
  const Codec& codec = GetCodec(v1::FP32);
  const std::vector<float> base = {1.0F, 2.0F};
  const std::vector<float> target = {0.5F, 2.5F};
  std::vector<float> residual = {0.25F, -1.0F};
  Bytes bytes(8);
  ASSERT_TRUE(codec.Encode(base, target, {residual}, bytes).ok());
  EXPECT_THAT(residual, ElementsAre(0.0F, 0.0F));
  std::vector<float> values = base;
  ASSERT_TRUE(codec.Apply(bytes, values).ok());
  EXPECT_THAT(values, ElementsAre(0.25F, 3.5F));
}

// Normalized squared error on Gaussian data; docs/codecs.md quotes these figures.

double NormalizedError(v1::Codec id) {
  const std::vector<float> values = GaussianValues(size_t{1} << 18, 11);
  const Codec& codec = GetCodec(id);
  const std::vector<double> decoded = DecodeDelta(codec, EncodeDelta(codec, values), values);
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<double>(values[i]);
    error += (decoded[i] - x) * (decoded[i] - x);
    power += x * x;
  }
  return error / power;
}

TEST(NormalizedError, OnGaussianDataIsWhatTheDocumentSays) {
  EXPECT_EQ(NormalizedError(v1::FP32), 0);
  EXPECT_NEAR(NormalizedError(v1::BF16), 2.8e-6, 0.5e-6);
  EXPECT_NEAR(NormalizedError(v1::INT8), 3.6e-5, 0.1e-5);
  EXPECT_NEAR(NormalizedError(v1::INT4), 0.0116, 0.0002);
  EXPECT_NEAR(NormalizedError(v1::E2M1), 0.0112, 0.0002);
  EXPECT_NEAR(NormalizedError(v1::E3M0), 0.0355, 0.0007);
  EXPECT_NEAR(NormalizedError(v1::LM2), 0.1146, 0.002);
  EXPECT_NEAR(NormalizedError(v1::SIGN1), 0.358, 0.004);
}

// Hostile bytes.

void ExpectRefused(v1::Codec id, const Bytes& bytes, size_t n, const std::string& why) {
  const std::vector<float> base(n, 1.0F);
  const absl::Status status = GetCodec(id).Validate(bytes, base);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << v1::Codec_Name(id) << " " << why;
  EXPECT_THAT(status.message(), HasSubstr(why));
}

TEST(HostileScale, OnlyZeroAndTheRangeAreAccepted) {
  for (const auto id : BlockCodecIds()) {
    const size_t n = id == v1::SIGN1 ? 8 : id == v1::LM2 ? 4 : id == v1::INT8 ? 1 : 2;
    for (const int scale :
         {0x8000, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x0080, 0x0d7f, 0x7181}) {
      ExpectRefused(id,
                    {static_cast<uint8_t>(scale & 0xff), static_cast<uint8_t>(scale >> 8), 0x01}, n,
                    "the scale");
    }
    ExpectRefused(id, {0x00, 0x00, 0x01}, n, "under a scale of zero");
    const std::vector<float> base(n, 1.0F);
    EXPECT_TRUE(GetCodec(id).Validate(Bytes{0x80, 0x0d, 0x01}, base).ok());
    EXPECT_TRUE(GetCodec(id).Validate(Bytes{0x80, 0x71, 0x01}, base).ok());
  }
}

TEST(HostileCode, WhatNoEncoderMakesIsRefused) {
  ExpectRefused(v1::INT8, {0x80, 0x3f, 0x80}, 1, "0x80 is not a code");
  for (const auto id : {v1::INT4, v1::E3M0, v1::E2M1}) {
    ExpectRefused(id, {0x80, 0x3f, 0x08}, 2, "0x8 is not a code");
    ExpectRefused(id, {0x80, 0x3f, 0x87}, 2, "0x8 is not a code");
    ExpectRefused(id, {0x80, 0x3f, 0x17}, 1, "unused bits");
  }
  ExpectRefused(v1::LM2, {0x80, 0x3f, 0x40}, 3, "unused bits");
  ExpectRefused(v1::SIGN1, {0x80, 0x3f, 0x08}, 3, "unused bits");
  ExpectRefused(v1::BF16, {0x80, 0x7f}, 1, "not a finite bf16");
  ExpectRefused(v1::FP32, {0x00, 0x00, 0x00, 0x40}, 1, "decoded target");
}

TEST(HostileCode, TheMessageSaysWhere) {
  std::vector<float> base = GaussianValues(5000, 1);
  Bytes bytes = EncodeDelta(GetCodec(v1::INT4), base);
  bytes.back() = 0x88;
  EXPECT_THAT(GetCodec(v1::INT4).Validate(bytes, base).message(),
              HasSubstr("values 4992 to 4999 in int4"));
}

}  // namespace
}  // namespace causeway
