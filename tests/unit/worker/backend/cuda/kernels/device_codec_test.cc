// The codecs of devices give the bytes and values of the host's, and refuse what those refuse.
#include "worker/backend/cuda/kernels/part_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cuda/kernels/device.h"

#ifdef CAUSEWAY_EMULATED_DEVICE
#include <device_emulation.h>

#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSizes[] = {1, 2, 3, 5, 8, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 4100, 8200};

struct Inputs {
  std::string name;
  std::vector<float> base;
  std::vector<float> target;
  std::vector<float> residual;
};

float Draw(uint64_t seed, size_t i) { return static_cast<float>(RandomNormal(3, seed, i)); }

// The kinds of values that codecs treat differently.
std::vector<Inputs> SomeInputs(size_t size) {
  std::vector<Inputs> all;
  const auto add = [&](const char* name, auto base, auto target, auto residual) {
    Inputs inputs{.name = name, .base = {}, .target = {}, .residual = {}};
    for (size_t i = 0; i < size; ++i) {
      inputs.base.push_back(base(i));
      inputs.target.push_back(target(i));
      inputs.residual.push_back(residual(i));
    }
    all.push_back(std::move(inputs));
  };
  const auto zero = [](size_t) { return 0.0F; };
  add(
      "weights", [](size_t i) { return 0.02F * Draw(1, i); },
      [](size_t i) { return 0.02F * Draw(1, i) + 1e-4F * Draw(2, i); },
      [](size_t i) { return 1e-4F * Draw(3, i); });
  // Every block of another size, down to what vanishes and up to what is just carried.
  add(
      "all sizes",
      [](size_t i) { return std::ldexp(Draw(4, i), static_cast<int>(i / 64 * 37 % 280) - 185); },
      zero, [](size_t i) { return std::ldexp(Draw(5, i), static_cast<int>(i % 40) - 80); });
  // Multiples of a small number, so that ties come up everywhere.
  add(
      "ties", [](size_t i) { return static_cast<float>(static_cast<int>(i * 7 % 57) - 28) / 8; },
      [](size_t i) { return i % 64 == 0 ? -3.5F : 0.0F; },
      [](size_t i) { return static_cast<float>(i % 3) - 1; });
  add(
      "equal magnitudes", [](size_t i) { return i % 2 == 0 ? 1.0F : -1.0F; }, zero, zero);
  add("nothing", zero, zero, [](size_t i) { return i % 5 == 0 ? -0.0F : 0.0F; });
  add(
      "few", [](size_t i) { return i % 97 == 3 ? 0x1p100F : 0.0F; }, zero,
      [](size_t i) { return i % 191 == 5 ? 0x1p-149F : 0.0F; });
  add(
      "limits", [](size_t i) { return i % 2 == 0 ? 0x1p-100F : -std::nextafter(0x1p-100F, 0.0F); },
      [](size_t i) { return i % 3 == 0 ? 0x1p-101F : 0.0F; }, zero);
  return all;
}

struct Encoded {
  std::vector<uint8_t> bytes;
  std::vector<float> residual;
  Refusal refusal;
};

// `pieces`: where the targets are; empty: side by side.
Encoded EncodeOnDevice(v1::Codec id, const Inputs& inputs, bool feedback, float decay,
                       bool gradient = false, const std::vector<ArenaPiece>& pieces = {}) {
  const size_t size = inputs.base.size();
  const auto bytes = static_cast<int64_t>(FindCodec(id).value()->EncodedBytes(size));
  TestDevice device;
  float* const residual = device.Upload(inputs.residual);
  auto* const out = device.Allocate<uint8_t>(bytes);
  Refusal* const refusal = device.Upload(std::vector<Refusal>(1));
  LaunchEncode(FindDeviceCodec(id).value(),
               {.values = static_cast<int64_t>(size),
                .base = gradient ? nullptr : device.Upload(inputs.base),
                .target = device.Upload(inputs.target),
                .pieces = pieces.empty() ? nullptr : device.Upload(pieces),
                .piece_count = static_cast<int>(pieces.size()),
                .negates_target = gradient,
                .residual = feedback ? residual : nullptr,
                .decay = decay,
                .out = out,
                .refusal = refusal},
               device.stream());
  EXPECT_TRUE(CheckLaunches("encoding").ok());
  return {device.Download(out, bytes), device.Download(residual, std::ssize(inputs.residual)),
          device.Value(refusal)};
}

struct HostEncoded {
  absl::Status status;
  std::vector<uint8_t> bytes;
  std::vector<float> residual;
};

HostEncoded EncodeOnHost(v1::Codec id, const Inputs& inputs, bool feedback, float decay) {
  const Codec& codec = *FindCodec(id, CodecPath::kScalar).value();
  HostEncoded encoded;
  encoded.bytes.resize(codec.EncodedBytes(inputs.target.size()));
  encoded.residual = inputs.residual;
  encoded.status = codec.Encode(
      inputs.base, inputs.target,
      {.residual = feedback ? std::span(encoded.residual) : std::span<float>(), .decay = decay},
      encoded.bytes);
  return encoded;
}

class DeviceCodecTest : public testing::TestWithParam<v1::Codec> {};

INSTANTIATE_TEST_SUITE_P(AllCodecs, DeviceCodecTest, testing::ValuesIn(kCodecs),
                         [](const auto& tested) { return v1::Codec_Name(tested.param); });

TEST_P(DeviceCodecTest, EncodesTheBytesOfTheHost) {
  for (const size_t size : kSizes) {
    for (const Inputs& inputs : SomeInputs(size)) {
      for (const float decay : {0.0F, 1.0F, 0.95F}) {
        const bool feedback = decay > 0;
        const HostEncoded expected = EncodeOnHost(GetParam(), inputs, feedback, decay);
        const Encoded encoded = EncodeOnDevice(GetParam(), inputs, feedback, decay);
        SCOPED_TRACE(inputs.name + ", " + std::to_string(size) + " values");
        ASSERT_TRUE(expected.status.ok()) << expected.status;
        ASSERT_EQ(RefusedIndex(encoded.refusal), -1);
        ASSERT_EQ(encoded.bytes, expected.bytes);
        ASSERT_EQ(Bits(encoded.residual), Bits(expected.residual));
      }
    }
  }
}

TEST_P(DeviceCodecTest, EncodesGradientsAgainstZeros) {
  for (const size_t size : {size_t{65}, size_t{5000}}) {
    Inputs inputs = SomeInputs(size)[0];
    inputs.target[7] = -0.0F;
    const Encoded encoded = EncodeOnDevice(GetParam(), inputs, true, 1, /*gradient=*/true);
    for (float& x : inputs.base) x = 0;
    for (float& x : inputs.target) x = -x;
    const HostEncoded expected = EncodeOnHost(GetParam(), inputs, true, 1);
    EXPECT_EQ(encoded.bytes, expected.bytes);
    EXPECT_EQ(Bits(encoded.residual), Bits(expected.residual));
  }
}

TEST_P(DeviceCodecTest, FindsItsTargetsInPiecesOfAnArena) {
  Inputs inputs = SomeInputs(2 * kCodecChunk + 100)[0];
  const HostEncoded expected = EncodeOnHost(GetParam(), inputs, false, 1);
  // The second chunk stands before the first, the rest far behind.
  std::vector<float> arena(20480 + 128, std::numeric_limits<float>::quiet_NaN());
  std::copy_n(inputs.target.begin(), 4096, arena.begin() + 8192);
  std::copy_n(inputs.target.begin() + 4096, 4096, arena.begin() + 64);
  std::copy_n(inputs.target.begin() + 8192, 100, arena.begin() + 20480);
  inputs.target = arena;
  const Encoded encoded = EncodeOnDevice(
      GetParam(), inputs, false, 1, /*gradient=*/false,
      {{.first = 0, .begin = 8192}, {.first = 4096, .begin = 64}, {.first = 8192, .begin = 20480}});
  EXPECT_EQ(encoded.bytes, expected.bytes);
}

TEST_P(DeviceCodecTest, RefusesWhatTheHostRefusesInTheSameWords) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const Codec& codec = *FindCodec(GetParam()).value();
  struct Case {
    size_t index;
    float base, target, residual;
  };
  for (const Case& bad : std::vector<Case>{{0, nan, 0, 0},
                                           {4999, 0, infinity, 0},
                                           {4096, -infinity, 1, 0},
                                           {70, 0, 0, nan},
                                           {71, largest, -largest, 0},
                                           {300, 0x1.02p100F, 0, 0},
                                           {301, std::bit_cast<float>(0x7f7f8000), 0, 0}}) {
    for (const bool feedback : {false, true}) {
      Inputs inputs = SomeInputs(5000)[0];
      inputs.base[bad.index] = bad.base;
      inputs.target[bad.index] = bad.target;
      inputs.residual[bad.index] = bad.residual;
      inputs.target[4998] = nan;  // The first one counts.
      const HostEncoded expected = EncodeOnHost(GetParam(), inputs, feedback, 0.5F);
      const Encoded encoded = EncodeOnDevice(GetParam(), inputs, feedback, 0.5F);
      const absl::Status status =
          EncodeStatus(codec, encoded.refusal, RefusedIndex(encoded.refusal));
      EXPECT_FALSE(expected.status.ok());
      EXPECT_EQ(status, expected.status);
    }
  }
}

// --- Decoding ------------------------------------------------------------------------------------

struct Merged {
  std::vector<float> published;
  std::vector<float> local;
  std::vector<__nv_bfloat16> weights;
  Refusal refusal;
};

Merged MergeOnDevice(v1::Codec id, std::span<const uint8_t> encoded, const Inputs& inputs,
                     float alpha) {
  const auto size = static_cast<int64_t>(inputs.base.size());
  TestDevice device;
  float* const published = device.Upload(inputs.base);
  float* const local = device.Upload(inputs.target);
  auto* const weights = device.Allocate<__nv_bfloat16>(size);
  Refusal* const refusal = device.Upload(std::vector<Refusal>(1));
  LaunchMerge(FindDeviceCodec(id).value(),
              {.values = size,
               .encoded = device.Upload(std::vector<uint8_t>(encoded.begin(), encoded.end())),
               .base = published,
               .published = published,
               .local = local,
               .alpha = alpha,
               .beta = 1.0F - alpha,
               .weights = weights,
               .refusal = refusal},
              device.stream());
  EXPECT_TRUE(CheckLaunches("merging").ok());
  return {device.Download(published, size), device.Download(local, size),
          device.Download(weights, size), device.Value(refusal)};
}

TEST_P(DeviceCodecTest, MergesAnAnswerAsTheHostDoes) {
  const Codec& codec = *FindCodec(GetParam()).value();
  for (const size_t size : kSizes) {
    for (const Inputs& inputs : SomeInputs(size)) {
      const HostEncoded encoded = EncodeOnHost(GetParam(), inputs, false, 1);
      std::vector<float> published = inputs.base;
      ASSERT_TRUE(codec.Apply(encoded.bytes, published).ok());
      for (const float alpha : {0.0F, 0.3F}) {
        SCOPED_TRACE(inputs.name + ", " + std::to_string(size) + " values");
        std::vector<float> local = inputs.target;
        for (size_t i = 0; i < size; ++i) {
          local[i] = alpha == 0 ? published[i] : alpha * local[i] + (1.0F - alpha) * published[i];
        }
        const Merged merged = MergeOnDevice(GetParam(), encoded.bytes, inputs, alpha);
        ASSERT_EQ(RefusedIndex(merged.refusal), -1);
        ASSERT_EQ(Bits(merged.published), Bits(published));
        ASSERT_EQ(Bits(merged.local), Bits(local));
        for (size_t i = 0; i < size; ++i) {
          ASSERT_EQ(__bfloat162float(merged.weights[i]),
                    __bfloat162float(__float2bfloat16_rn(local[i])));
        }
      }
    }
  }
}

TEST_P(DeviceCodecTest, FoldsALateDeltaAsTheHostDoes) {
  const Codec& codec = *FindCodec(GetParam()).value();
  for (const size_t size : {size_t{65}, size_t{4097}}) {
    for (const Inputs& inputs : SomeInputs(size)) {
      const HostEncoded encoded = EncodeOnHost(GetParam(), inputs, false, 1);
      std::vector<double> sum(inputs.residual.begin(), inputs.residual.end());
      ASSERT_TRUE(codec.Accumulate(encoded.bytes, inputs.base, 1, sum).ok());
      std::vector<float> expected;
      for (const double x : sum) expected.push_back(static_cast<float>(x));
      TestDevice device;
      float* const residual = device.Upload(inputs.residual);
      Refusal* const refusal = device.Upload(std::vector<Refusal>(1));
      LaunchFold(FindDeviceCodec(GetParam()).value(),
                 {.values = static_cast<int64_t>(size),
                  .encoded = device.Upload(encoded.bytes),
                  .base = device.Upload(inputs.base),
                  .residual = residual,
                  .refusal = refusal},
                 device.stream());
      SCOPED_TRACE(inputs.name);
      ASSERT_EQ(Bits(device.Download(residual, std::ssize(expected))), Bits(expected));
      ASSERT_EQ(RefusedIndex(device.Value(refusal)), -1);
    }
  }
}

// Damages every byte of a short object in several ways: both sides refuse the same.
TEST_P(DeviceCodecTest, RefusesTheBytesThatTheHostRefuses) {
  const Codec& codec = *FindCodec(GetParam()).value();
  int refused = 0;
  for (const int values : {65, 66, 67, 68, 70, 72}) {
    const Inputs inputs = SomeInputs(values)[0];
    const std::vector<uint8_t> good = EncodeOnHost(GetParam(), inputs, false, 1).bytes;
    for (size_t i = 0; i<good.size(); i += good.size()> 200 ? 13 : 1) {
      for (const int damage : {0x80, 0xff, 0x08, 0x10, 0x01}) {
        std::vector<uint8_t> bytes = good;
        bytes[i] = static_cast<uint8_t>(bytes[i] ^ damage);
        const absl::Status status = codec.Validate(bytes, inputs.base);
        const Merged merged = MergeOnDevice(GetParam(), bytes, inputs, 0);
        ASSERT_EQ(RefusedIndex(merged.refusal) >= 0, !status.ok())
            << values << " values, byte " << i << ": " << status;
        if (status.ok()) continue;
        ++refused;
        ASSERT_EQ(Bits(merged.published), Bits(inputs.base)) << "a refused chunk stays as it is";
      }
    }
  }
  // Every pattern but infinities and NaNs is an fp32 or a bf16 difference.
  EXPECT_TRUE(refused > 0 || GetParam() == v1::FP32 || GetParam() == v1::BF16);
}

TEST_P(DeviceCodecTest, RefusesResultsThatAreNotFinite) {
  Inputs inputs = SomeInputs(5000)[0];
  inputs.base[4500] = -std::numeric_limits<float>::max();
  inputs.target = inputs.base;
  for (float& x : inputs.target) x -= 1;
  inputs.target[4500] = inputs.base[4500] + 0x1p90F;
  Inputs encoded = inputs;
  encoded.base[4500] = GetParam() == v1::BF16 ? 0x1p127F : 0x1p100F;
  encoded.target[4500] = 0;
  const HostEncoded answer = EncodeOnHost(GetParam(), encoded, false, 1);
  std::vector<float> published = inputs.base;
  const absl::Status status = FindCodec(GetParam()).value()->Apply(answer.bytes, published);
  const Merged merged = MergeOnDevice(GetParam(), answer.bytes, inputs, 0);
  EXPECT_EQ(RefusedIndex(merged.refusal) >= 0, !status.ok()) << status;
}

#ifdef CAUSEWAY_EMULATED_DEVICE
TEST_P(DeviceCodecTest, DoesNotDependOnTheOrderOfThreads) {
  const Inputs inputs = SomeInputs(4500)[0];
  const HostEncoded expected = EncodeOnHost(GetParam(), inputs, true, 1);
  for (const emulation::Order order : {emulation::Order::kBackward, emulation::Order::kShuffled}) {
    emulation::SetOrder(order, 7);
    const Encoded encoded = EncodeOnDevice(GetParam(), inputs, true, 1);
    EXPECT_EQ(encoded.bytes, expected.bytes);
    EXPECT_EQ(Bits(encoded.residual), Bits(expected.residual));
    const Merged merged = MergeOnDevice(GetParam(), encoded.bytes, inputs, 0.5F);
    std::vector<float> published = inputs.base;
    ASSERT_TRUE(FindCodec(GetParam()).value()->Apply(encoded.bytes, published).ok());
    EXPECT_EQ(Bits(merged.published), Bits(published));
  }
  emulation::SetOrder(emulation::Order::kForward);
}
#endif

TEST(DeviceCodecIdTest, AnUnknownCodecIsRefused) {
  EXPECT_THAT(FindDeviceCodec(v1::CODEC_UNSPECIFIED).status().message(), HasSubstr("no codec 0"));
}

}  // namespace
}  // namespace causeway::worker::cuda
