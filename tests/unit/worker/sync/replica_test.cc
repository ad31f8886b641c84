#include "worker/sync/replica.h"

#include <limits>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

using testing::HasSubstr;

std::vector<float> Values(size_t size, uint64_t seed) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>(RandomBits(seed, 0, i) % 2001) * 1e-4F - 0.1F;
  }
  return values;
}

TEST(EncodedObject, HasTheBytesAndTheChecksumsOfAnEncodingInOnePiece) {
  for (const v1::Codec id : {v1::FP32, v1::BF16, v1::INT4}) {
    const Codec& codec = *FindCodec(id).value();
    for (const size_t size : {size_t{1}, size_t{65'536}, size_t{600'001}, size_t{4'300'000}}) {
      const std::vector<float> base = Values(size, 1);
      const std::vector<float> target = Values(size, 2);
      std::vector<float> residual = Values(size, 3);
      std::vector<float> same_residual = residual;
      const auto object = EncodeObject(codec, base, target, {.residual = residual, .decay = 0.5F});
      ASSERT_TRUE(object.ok()) << object.status();
      std::vector<uint8_t> whole(codec.EncodedBytes(size));
      ASSERT_TRUE(
          codec.Encode(base, target, {.residual = same_residual, .decay = 0.5F}, whole).ok());
      // Not EXPECT_EQ, which would print megabytes.
      EXPECT_TRUE(
          std::equal(whole.begin(), whole.end(), object->bytes.begin(), object->bytes.end()))
          << codec.name() << ' ' << size;
      EXPECT_TRUE(residual == same_residual) << codec.name() << ' ' << size;
      EXPECT_EQ(object->leaves, LeafChecksums(whole)) << codec.name() << ' ' << size;
    }
  }
}

TEST(EncodedObject, OfWhatIsNotFiniteIsRefusedWithThePlace) {
  const std::vector<float> base(100'000);
  std::vector<float> target = base;
  target[70'000] = std::numeric_limits<float>::infinity();
  const auto object = EncodeObject(*FindCodec(v1::INT4).value(), base, target, {});
  EXPECT_EQ(object.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(object.status().message()), HasSubstr("counted from value 65536"));
  EXPECT_THAT(std::string(object.status().message()), HasSubstr("value 4464"));
}

TEST(EncodedObject, OfArraysOfUnequalLengthIsRefused) {
  const std::vector<float> base(100);
  const std::vector<float> target(99);
  std::vector<float> residual(98);
  const Codec& codec = *FindCodec(v1::INT4).value();
  EXPECT_EQ(EncodeObject(codec, base, target, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodeObject(codec, base, base, {.residual = residual}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::worker
