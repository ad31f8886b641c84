// Rules of every codec.
#include "common/codec/codec.h"

#include <algorithm>
#include <array>

#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/codec/codec_test_util.h"

namespace causeway {
namespace {

using testing::HasSubstr;

class EveryCodec : public testing::TestWithParam<v1::Codec> {
 protected:
  const Codec& codec_ = GetCodec(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, testing::ValuesIn(kCodecs), CodecTestName);

// Largest |decoded - x| for a block whose largest magnitude is `largest`; its scale is at most
// 2^-7 larger.
double ErrorBound(v1::Codec id, double x, double largest) {
  const double scale = largest * (1 + 0x1p-7);
  const double flushed = 0x1p-100;
  switch (id) {
    case v1::FP32:
      return 0;
    case v1::BF16:
      return std::abs(x) * 0x1p-8 + 0x1p-134;
    case v1::INT8:
      return scale / 254 * 1.0001 + flushed;
    case v1::INT4:
      return scale / 14 * 1.0001 + flushed;
    case v1::E2M1:
      return scale / 6 * 1.0001 + flushed;
    case v1::E3M0:
      return scale / 4 * 1.0001 + flushed;
    case v1::SIGN1:
      return scale + flushed;
    default:  // LM2: a value of the size of the block's largest one may decode to a fraction of it.
      return scale * 1.51 + flushed;
  }
}

size_t ExpectedBytes(v1::Codec id, size_t n) {
  const auto bits = [id] {
    switch (id) {
      case v1::FP32:
        return 32;
      case v1::BF16:
        return 16;
      case v1::INT8:
        return 8;
      case v1::LM2:
        return 2;
      case v1::SIGN1:
        return 1;
      default:
        return 4;
    }
  }();
  const size_t scale = bits < 16 ? 2 : 0;
  // Only the last chunk has a ragged block or byte.
  return scale * ((n + 63) / 64) + (n * static_cast<size_t>(bits) + 7) / 8;
}

TEST_P(EveryCodec, RoundTripStaysWithinItsErrorBound) {
  for (const size_t n : InterestingLengths()) {
    for (const auto& values : {GaussianValues(n, n), WildValues(n, n + 1)}) {
      ASSERT_EQ(codec_.EncodedBytes(n), ExpectedBytes(GetParam(), n));
      const std::vector<uint8_t> bytes = EncodeDelta(codec_, values);
      ASSERT_TRUE(codec_.Validate(bytes, values).ok());
      const std::vector<double> decoded = DecodeDelta(codec_, bytes, values);
      double largest = 0;
      for (size_t i = 0; i < n; ++i) {
        // Values that share a scale.
        const size_t begin = i / kCodecBlock * kCodecBlock;
        if (i == begin) largest = 0;
        for (size_t j = i; i == begin && j < std::min(n, begin + kCodecBlock); ++j) {
          largest = std::max(largest, std::abs(static_cast<double>(values[j])));
        }
        ASSERT_LE(std::abs(decoded[i] - static_cast<double>(values[i])),
                  ErrorBound(GetParam(), static_cast<double>(values[i]), largest))
            << "value " << i << " of " << n << ": " << values[i];
      }
    }
  }
}

TEST_P(EveryCodec, ApplySubtractsWhatAccumulateAdds) {
  for (const size_t n : {1U, 63U, 65U, 4097U}) {
    const std::vector<float> base = GaussianValues(n, 1);
    const std::vector<float> target = GaussianValues(n, 2);
    std::vector<uint8_t> bytes(codec_.EncodedBytes(n));
    ASSERT_TRUE(codec_.Encode(base, target, {}, bytes).ok());
    std::vector<double> sum(n, 10.0);
    ASSERT_TRUE(codec_.Accumulate(bytes, base, 0.25, sum).ok());
    std::vector<float> applied = base;
    ASSERT_TRUE(codec_.Apply(bytes, applied).ok());
    const std::vector<double> delta = DecodeDelta(codec_, bytes, base);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], 10.0 + 0.25 * delta[i]);
      ASSERT_EQ(applied[i], static_cast<float>(static_cast<double>(base[i]) - delta[i]));
    }
  }
}

TEST_P(EveryCodec, SumsSquaresOfTheDecodedDeltaInEightSums) {
  for (const size_t n : {1U, 63U, 65U, 200U, 4097U, 8292U}) {
    const std::vector<float> base = GaussianValues(n, 1);
    std::vector<uint8_t> bytes(codec_.EncodedBytes(n));
    ASSERT_TRUE(codec_.Encode(base, GaussianValues(n, 2), {}, bytes).ok());
    const std::vector<double> delta = DecodeDelta(codec_, bytes, base);
    std::array<double, 8> s = {};
    for (size_t i = 0; i < n; ++i) s[i % 8] += delta[i] * delta[i];
    const auto sum = codec_.SumOfSquares(bytes, base).value();
    EXPECT_EQ(sum, ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
  }
}

TEST_P(EveryCodec, ChunksAreIndependent) {
  const size_t n = 3 * kCodecChunk + 100;
  const std::vector<float> values = WildValues(n, 7);
  const std::vector<uint8_t> whole = EncodeDelta(codec_, values);
  for (size_t begin = 0; begin < n; begin += kCodecChunk) {
    const auto range = std::span(values).subspan(begin);
    const std::vector<uint8_t> rest = EncodeDelta(codec_, range);
    ASSERT_TRUE(std::equal(rest.begin(), rest.end(),
                           whole.begin() + static_cast<ptrdiff_t>(codec_.EncodedBytes(begin))));
    ASSERT_EQ(codec_.EncodedBytes(begin) + rest.size(), whole.size());
  }
}

TEST_P(EveryCodec, ZerosStayExactlyZero) {
  const std::vector<float> zeros(300, 0.0F);
  const std::vector<uint8_t> bytes = EncodeDelta(codec_, zeros);
  EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size(), 0));
  std::vector<float> values = GaussianValues(300, 5);
  const std::vector<float> before = values;
  ASSERT_TRUE(codec_.Apply(bytes, values).ok());
  EXPECT_EQ(values, before);
}

TEST_P(EveryCodec, ErrorFeedbackLosesNothing) {
  const size_t n = 200;
  constexpr int kRounds = 40;
  const std::vector<float> zeros(n, 0.0F);
  std::vector<float> residual(n, 0.0F);
  std::vector<double> sent(n, 0.0);
  std::vector<double> meant(n, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<float> delta = GaussianValues(n, static_cast<uint64_t>(round));
    const std::vector<uint8_t> bytes = EncodeDelta(codec_, delta, residual);
    ASSERT_TRUE(codec_.Accumulate(bytes, delta, 1.0, sent).ok());
    for (size_t i = 0; i < n; ++i) meant[i] += static_cast<double>(delta[i]);
  }
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(sent[i] + static_cast<double>(residual[i]), meant[i], 1e-4) << i;
    ASSERT_LT(std::abs(residual[i]), 20.0F) << i;  // It does not pile up.
  }
}

TEST_P(EveryCodec, DecaySendsAShareOfTheResidual) {
  const std::vector<float> delta = GaussianValues(5000, 1);
  const std::vector<float> remembered = GaussianValues(5000, 2);
  std::vector<float> share(5000);
  for (size_t i = 0; i < 5000; ++i) share[i] = 0.95F * remembered[i];
  std::vector<float> decayed = remembered;
  const std::vector<uint8_t> bytes = EncodeDelta(codec_, delta, decayed, 0.95F);
  EXPECT_EQ(EncodeDelta(codec_, delta, share), bytes);
  EXPECT_EQ(decayed, share);
}

TEST_P(EveryCodec, NonFiniteInputIsRefusedWithItsIndex) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, -infinity, nan}) {
    for (const size_t index : {0U, 69U, 4100U}) {
      std::vector<float> values = GaussianValues(4200, 1);
      const std::vector<float> good = values;
      std::vector<float> residual(values.size(), 0.0F);
      std::vector<uint8_t> bytes(codec_.EncodedBytes(values.size()));
      values[index] = bad;
      const std::string expected = "value " + std::to_string(index) + ":";
      for (const absl::Status& status :
           {codec_.Encode(values, good, {}, bytes), codec_.Encode(good, values, {}, bytes),
            codec_.Encode(values, values, {}, bytes), codec_.Encode(good, good, {values}, bytes)}) {
        EXPECT_THAT(status, StatusIs(kInvalidArgument, HasSubstr(expected)));
      }
    }
  }
}

TEST_P(EveryCodec, WrongLengthsAreRefused) {
  const std::vector<float> values = GaussianValues(100, 1);
  const auto shorter = std::span(values).first(99);
  std::vector<float> residual(99, 0.0F);
  std::vector<uint8_t> bytes(codec_.EncodedBytes(100));
  std::vector<uint8_t> longer(bytes.size() + 1);
  EXPECT_FALSE(codec_.Encode(values, shorter, {}, bytes).ok());
  EXPECT_FALSE(codec_.Encode(values, values, {residual}, bytes).ok());
  EXPECT_FALSE(codec_.Encode(values, values, {}, longer).ok());
  EXPECT_FALSE(codec_.Encode(values, values, {}, std::span(bytes).first(bytes.size() - 1)).ok());
  for (size_t size = 0; size <= longer.size(); ++size) {
    const auto encoded = std::span<const uint8_t>(longer).first(size);
    std::vector<double> sum(100);
    std::vector<float> applied = values;
    const bool fits = size == bytes.size();
    EXPECT_EQ(codec_.Validate(encoded, values).ok(), fits) << size;
    EXPECT_EQ(codec_.Accumulate(encoded, values, 1.0, sum).ok(), fits) << size;
    EXPECT_EQ(codec_.Apply(encoded, applied).ok(), fits) << size;
    EXPECT_EQ(codec_.SumOfSquares(encoded, values).ok(), fits) << size;
  }
}

TEST(FindCodec, KnowsEveryCodecByIdAndName) {
  const std::vector<std::string> names = {"fp32", "bf16", "int8", "e3m0",
                                          "e2m1", "int4", "lm2",  "sign1"};
  ASSERT_EQ(kCodecs.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto codec = FindCodec(kCodecs[i]).value();
    EXPECT_EQ(codec->id(), kCodecs[i]);
    EXPECT_EQ(codec->name(), names[i]);
    EXPECT_EQ(codec->needs_error_feedback(), i >= 6);
  }
}

TEST(FindCodec, RefusesWhatItDoesNotHave) {
  for (const auto id : {v1::CODEC_UNSPECIFIED, static_cast<v1::Codec>(99)}) {
    EXPECT_THAT(
        FindCodec(id),
        StatusIs(kInvalidArgument, HasSubstr("FP32, BF16, INT8, E3M0, E2M1, INT4, LM2, SIGN1")));
  }
}

}  // namespace
}  // namespace causeway
