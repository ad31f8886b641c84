// The vector kernels give the scalar codecs' bits: on every instruction set that this machine has,
// for every length, alignment and kind of value, and for bytes that no encoder makes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>

#include "common/codec/codec_kernels.h"
#include "gmock/gmock.h"
#include "hwy/targets.h"
#include "tests/unit/common/codec/codec_test_util.h"

namespace causeway {
namespace {

// HWY_EXPORTed code is compiled for these and what the compiler's flags require.
std::vector<int64_t> InstructionSets() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedAndGeneratedTargets();
}

void UseInstructionSets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class CodecVectors : public testing::TestWithParam<std::tuple<int64_t, v1::Codec>> {
 protected:
  void SetUp() override { UseInstructionSets(std::get<0>(GetParam())); }
  void TearDown() override { UseInstructionSets(0); }

  v1::Codec id() const { return std::get<1>(GetParam()); }

  // A call's results: its status, and the array that it wrote.
  template <typename T>
  struct Outcome {
    absl::Status status;
    std::vector<T> values;
  };

  template <typename T>
  static void ExpectSameBits(const Outcome<T>& expected, const Outcome<T>& found,
                             const std::string& what) {
    ASSERT_EQ(found.status, expected.status) << what;
    if (!expected.status.ok()) return;  // The arrays are unspecified.
    ASSERT_EQ(found.values.size(), expected.values.size());
    for (size_t i = 0; i < found.values.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found.values[i], &expected.values[i], sizeof(T)), 0)
          << what << ": " << i << " is " << +found.values[i] << " instead of "
          << +expected.values[i];
    }
  }

  // Reads `bytes` in every way with both codecs. `shift` moves the arrays off their alignment by as
  // many elements.
  void CompareReaders(const std::vector<uint8_t>& bytes, const std::vector<float>& base,
                      size_t shift) {
    std::vector<uint8_t> shifted_bytes(shift);
    shifted_bytes.insert(shifted_bytes.end(), bytes.begin(), bytes.end());
    const auto encoded = std::span(shifted_bytes).subspan(shift);
    std::vector<float> shifted_base(shift);
    shifted_base.insert(shifted_base.end(), base.begin(), base.end());
    const auto from = std::span(shifted_base).subspan(shift);

    const auto accumulate = [&](const Codec& codec) {
      std::vector<double> sum(shift + base.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = RandomUniform(5, 0, i) - 0.5;
      const absl::Status status =
          codec.Accumulate(encoded, from, 0.3, std::span(sum).subspan(shift));
      return Outcome<double>{status, sum};
    };
    ExpectSameBits(accumulate(scalar_), accumulate(vector_), "accumulated");
    const auto sum_up = [&](const Codec& codec) {
      const WeightedPart parts[] = {{encoded, 0.3}, {encoded, 0.25}, {encoded, 0.45}};
      const float* const upcoming[] = {from.data()};
      std::vector<double> sum(shift + base.size(), 7.0);
      const absl::Status status =
          codec.WeightedSum(parts, from, upcoming, std::span(sum).subspan(shift));
      return Outcome<double>{status, sum};
    };
    ExpectSameBits(sum_up(scalar_), sum_up(vector_), "summed up");
    const auto apply = [&](const Codec& codec) {
      std::vector<float> values = shifted_base;
      const absl::Status status = codec.Apply(encoded, std::span(values).subspan(shift));
      return Outcome<float>{status, values};
    };
    const Outcome<float> applied = apply(scalar_);
    ExpectSameBits(applied, apply(vector_), "applied");
    const absl::Status validated = scalar_.Validate(encoded, from);
    ASSERT_EQ(vector_.Validate(encoded, from), validated);
    // What one reader takes all take, and it is finite, unless the base is at the end of fp32.
    if (std::ranges::all_of(base, [](float x) { return std::abs(x) < 1e30F; })) {
      ASSERT_EQ(validated, applied.status);
      const absl::Status accumulated = accumulate(scalar_).status;
      ASSERT_EQ(validated.ok(), accumulated.ok());
      ASSERT_EQ(scalar_.SumOfSquares(encoded, from).status(), accumulated);
      ASSERT_TRUE(!validated.ok() ||
                  std::ranges::all_of(applied.values, [](float x) { return std::isfinite(x); }));
    }
    const auto square = [&](const Codec& codec) {
      const absl::StatusOr<double> sum = codec.SumOfSquares(encoded, from);
      return Outcome<double>{sum.status(), {sum.value_or(0)}};
    };
    ExpectSameBits(square(scalar_), square(vector_), "squared");
  }

  // Encodes with both codecs, and reads what they made, if they did.
  void Compare(const std::vector<float>& base, const std::vector<float>& target,
               const std::vector<float>& residual, size_t shift, float decay = 1) {
    const auto moved = [&](const std::vector<float>& values) {
      std::vector<float> copy(shift);
      copy.insert(copy.end(), values.begin(), values.end());
      return copy;
    };
    const std::vector<float> shifted_base = moved(base);
    const std::vector<float> shifted_target = moved(target);
    const auto encode = [&](const Codec& codec) {
      std::vector<uint8_t> bytes(shift + codec.EncodedBytes(base.size()), 0xa5);
      std::vector<float> left = moved(residual);
      const absl::Status status = codec.Encode(
          std::span(shifted_base).subspan(shift), std::span(shifted_target).subspan(shift),
          {std::span(left).subspan(shift), decay}, std::span(bytes).subspan(shift));
      return std::pair(Outcome<uint8_t>{status, bytes}, Outcome<float>{status, left});
    };
    const auto [expected, expected_left] = encode(scalar_);
    const auto [found, found_left] = encode(vector_);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(expected, found, "encoded"));
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(expected_left, found_left, "left out"));
    if (!expected.status.ok()) return;
    CompareReaders({expected.values.begin() + static_cast<ptrdiff_t>(shift), expected.values.end()},
                   base, shift);
  }

  // With error feedback, with decay and without, and with none.
  void Compare(const std::vector<float>& base, const std::vector<float>& target, size_t shift) {
    ASSERT_NO_FATAL_FAILURE(Compare(base, target, {}, shift));
    std::vector<float> residual(base.size());
    for (size_t i = 0; i < base.size(); ++i) {
      residual[i] = (base[i] - target[i]) * static_cast<float>(RandomUniform(6, 0, i) - 0.5);
    }
    ASSERT_NO_FATAL_FAILURE(Compare(base, target, residual, shift));
    Compare(base, target, residual, shift, 0.95F);
  }

  const Codec& scalar_ = **FindCodec(id(), CodecPath::kScalar);
  const Codec& vector_ = **FindCodec(id());
};

std::string TargetAndCodec(const testing::TestParamInfo<std::tuple<int64_t, v1::Codec>>& test) {
  return std::string(hwy::TargetName(std::get<0>(test.param))) + "_" +
         v1::Codec_Name(std::get<1>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Targets, CodecVectors,
                         testing::Combine(testing::ValuesIn(InstructionSets()),
                                          testing::ValuesIn(kCodecs)),
                         TargetAndCodec);

std::vector<float> Minus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return difference;
}

TEST_P(CodecVectors, GiveTheScalarBitsForEveryLengthAndAlignment) {
  for (const size_t n : InterestingLengths()) {
    const std::vector<float> base = GaussianValues(n, n);
    const std::vector<float> wild = WildValues(n, n + 1);
    ASSERT_NO_FATAL_FAILURE(Compare(base, Minus(base, wild), n % 17)) << n;
    ASSERT_NO_FATAL_FAILURE(Compare(wild, base, n % 13)) << n;
  }
  for (size_t shift = 0; shift < 65; ++shift) {
    ASSERT_NO_FATAL_FAILURE(Compare(GaussianValues(200, 1), GaussianValues(200, 2), shift));
  }
}

// Blocks whose largest value is a power of two times `largest`, and the rest multiples of a small
// fraction of it: every tie between neighbouring codes, and its neighbours in fp32.
TEST_P(CodecVectors, GiveTheScalarBitsAtTies) {
  for (const float largest : {1.0F, 6.0F, 7.0F, 127.0F, 1.0F / 3, 1.0078125F}) {
    for (const int exponent : {-100, -60, -3, 0, 1, 50, 93}) {
      std::vector<float> values;
      const auto add = [&](float x) {
        if (values.size() % kCodecBlock == 0) values.push_back(std::ldexp(largest, exponent));
        values.push_back(x);
      };
      for (int i = -256; i <= 256; ++i) {
        const float tie = std::ldexp(largest * static_cast<float>(i) / 256, exponent);
        const float sevenths = std::ldexp(largest * static_cast<float>(i) / 14, exponent - 5);
        const float sixths = std::ldexp(largest * static_cast<float>(i % 25) / 24, exponent);
        for (const float x : {tie, sevenths, sixths}) {
          add(x);
          add(std::nextafter(x, 1e38F));
          add(std::nextafter(x, -1e38F));
        }
      }
      const std::vector<float> zeros(values.size(), 0.0F);
      ASSERT_NO_FATAL_FAILURE(Compare(values, zeros, 1)) << largest << " " << exponent;
    }
  }
}

TEST_P(CodecVectors, GiveTheScalarBitsForEveryKindOfFloat) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const size_t n = 64 + seed % 200;
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bits = RandomBits(seed, 0, i);
      // Exponents in a window that moves over all of them, with zeros of both signs.
      const uint64_t exponent = std::min<uint64_t>(seed % 257 + (bits >> 32) % 12, 254);
      values[i] =
          std::bit_cast<float>(static_cast<uint32_t>((bits & 0x807fffffU) | exponent << 23));
      if (bits >> 60 == 0) values[i] = (bits & 1) == 0 ? 0.0F : -0.0F;
    }
    const std::vector<float> zeros(n, seed % 2 == 0 ? 0.0F : -0.0F);
    ASSERT_NO_FATAL_FAILURE(Compare(values, zeros, seed % 3)) << seed;
    ASSERT_NO_FATAL_FAILURE(Compare(zeros, values, seed % 3)) << seed;
  }
}

TEST_P(CodecVectors, GiveTheScalarBitsForBlocksOfZeros) {
  for (size_t only = 0; only < 256; only += 5) {
    std::vector<float> values(256, 0.0F);
    values[only] = only % 2 == 0 ? 1.0F : 0x1p-120F;
    ASSERT_NO_FATAL_FAILURE(Compare(values, std::vector<float>(256, 0.0F), 0));
  }
}

TEST_P(CodecVectors, RefuseTheSameValueInTheSameWords) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float bad_ones[] = {infinity,
                            -infinity,
                            nan,
                            -nan,
                            0x1p100F,
                            0x1.000002p100F,
                            -0x1.000002p100F,
                            3.4e38F,
                            std::bit_cast<float>(0x7f7f7fffU),
                            std::bit_cast<float>(0xff7f8000U)};
  for (const float bad : bad_ones) {
    for (const size_t index : {0U, 63U, 64U, 100U, 4095U, 4096U, 4224U, 4229U}) {
      const std::vector<float> good = GaussianValues(4230, 1);
      std::vector<float> values = good;
      values[index] = bad;
      values[4229] = bad;
      const std::vector<float> residual(good.size(), 0.0F);
      ASSERT_NO_FATAL_FAILURE(Compare(values, good, {}, 0));
      ASSERT_NO_FATAL_FAILURE(Compare(good, values, {}, 0));
      ASSERT_NO_FATAL_FAILURE(Compare(good, values, residual, 0));
      ASSERT_NO_FATAL_FAILURE(Compare(good, good, values, 0));
      // Read against a base that is not finite, or that the difference takes beyond fp32.
      const std::vector<uint8_t> bytes = EncodeDelta(scalar_, good);
      ASSERT_NO_FATAL_FAILURE(CompareReaders(bytes, values, 0));
      std::vector<float> large(good.size(), 1.0F);
      large[index] = bad < 0 ? 0x1p99F : -0x1p99F;
      ASSERT_NO_FATAL_FAILURE(CompareReaders(EncodeDelta(scalar_, large), values, 0));
    }
  }
}

TEST_P(CodecVectors, DecideAlikeOnHostileBytes) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const size_t n = 1 + seed % 204;
    const std::vector<float> base = GaussianValues(n, seed);
    std::vector<uint8_t> bytes = EncodeDelta(scalar_, base);
    // A few damaged bytes, often among the scales; then any bytes.
    for (uint64_t i = 0; i < 1 + seed % 4; ++i) {
      const uint64_t bits = RandomBits(seed, 1, i);
      const size_t place = (bits >> 8) % std::min(bits % 2 == 0 ? bytes.size() : 6, bytes.size());
      bytes[place] = static_cast<uint8_t>(bits >> 40);
    }
    ASSERT_NO_FATAL_FAILURE(CompareReaders(bytes, base, 0)) << seed;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(RandomBits(seed, 3, i));
    }
    // Mostly scales that are accepted, so that the codes decide.
    for (size_t i = 0; i < (n + 63) / 64 && seed % 4 != 0; ++i) bytes[2 * i + 1] = 0x3f;
    ASSERT_NO_FATAL_FAILURE(CompareReaders(bytes, base, 0)) << seed;
  }
}

TEST_P(CodecVectors, DecideAlikeOnEveryCodeAndPlace) {
  if (scalar_.EncodedBytes(64) > 66) return;  // BF16 and FP32 have too many codes.
  const std::vector<float> base = GaussianValues(192, 3);
  const std::vector<uint8_t> good = EncodeDelta(scalar_, base);
  for (size_t place = 0; place < good.size(); ++place) {
    for (int byte = 0; byte < 256; byte += place < 6 ? 1 : 7) {
      std::vector<uint8_t> bytes = good;
      bytes[place] = static_cast<uint8_t>(byte);
      ASSERT_NO_FATAL_FAILURE(CompareReaders(bytes, base, 0)) << place << " " << byte;
      // Under a scale of zero.
      std::fill_n(bytes.begin(), 6, uint8_t{0});
      std::fill(bytes.begin() + 6, bytes.end(), uint8_t{0});
      bytes[place] = static_cast<uint8_t>(byte);
      ASSERT_NO_FATAL_FAILURE(CompareReaders(bytes, base, 0)) << place << " " << byte;
    }
  }
}

TEST_P(CodecVectors, DecideAlikeOnEveryScale) {
  const std::vector<float> base = GaussianValues(192, 3);
  const std::vector<uint8_t> bytes = EncodeDelta(scalar_, base);
  for (const size_t block : {0U, 2U}) {
    for (const unsigned scale : {0x0000U, 0x0001U, 0x0d7fU, 0x0d80U, 0x7180U, 0x7181U, 0x7f80U,
                                 0x7fc0U, 0x8000U, 0xbf80U, 0xff80U}) {
      std::vector<uint8_t> other = bytes;
      other[2 * block] = static_cast<uint8_t>(scale & 0xffU);
      other[2 * block + 1] = static_cast<uint8_t>(scale >> 8);
      ASSERT_NO_FATAL_FAILURE(CompareReaders(other, base, 0)) << block << " " << scale;
    }
  }
}

TEST_P(CodecVectors, TakeEveryWholeBlockOfOrdinaryValues) {
  const CodecKernels* const kernels = FindCodecKernels(id());
  if (std::get<0>(GetParam()) == HWY_STATIC_TARGET && kernels == nullptr) return;
  ASSERT_NE(kernels, nullptr);
  const std::vector<float> base = GaussianValues(640, 1);
  const std::vector<float> target = GaussianValues(640, 2);
  std::vector<uint8_t> bytes(scalar_.EncodedBytes(640));
  const size_t code_begin = scalar_.EncodedBytes(4096) < 4096 * 2 ? 20 : 0;
  uint8_t* const scales = bytes.data();
  uint8_t* const codes = bytes.data() + code_begin;
  EXPECT_EQ(kernels->encode(base.data(), target.data(), nullptr, 1, 10, scales, codes), 10U);
  std::vector<double> sum(640);
  EXPECT_EQ(kernels->accumulate(scales, codes, base.data(), 1.0, 10, sum.data()), 10U);
  std::array<double, kSquareSums> squares = {};
  EXPECT_EQ(kernels->squares(scales, codes, base.data(), 10, squares.data()), 10U);
  std::vector<float> values = base;
  EXPECT_EQ(kernels->apply(scales, codes, 10, values.data()), 10U);
}

}  // namespace
}  // namespace causeway
