// Shared by the codec tests: inputs, and short forms of encoding and decoding.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/codec/codec.h"
#include "gtest/gtest.h"

namespace causeway {

inline const Codec& GetCodec(v1::Codec id) { return **FindCodec(id); }

inline std::vector<float> GaussianValues(size_t n, uint64_t seed, double stddev = 1) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(stddev * RandomNormal(seed, 0, i));
  }
  return values;
}

// Magnitudes over many powers of two within each block, a few exact zeros, no minus zero.
inline std::vector<float> WildValues(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const double spread = std::exp2(60 * (RandomUniform(seed, 1, i) - 0.5));
    values[i] = RandomBits(seed, 2, i) % 16 == 0
                    ? 0.0F
                    : static_cast<float>(spread * RandomNormal(seed, 0, i));
  }
  return values;
}

// The bytes of the difference `delta`, encoded as base = delta, target = 0.
inline std::vector<uint8_t> EncodeDelta(const Codec& codec, std::span<const float> delta,
                                        std::span<float> residual = {}, float decay = 1) {
  std::vector<uint8_t> bytes(codec.EncodedBytes(delta.size()), 0xa5);
  const std::vector<float> zeros(delta.size(), 0.0F);
  EXPECT_EQ(codec.Encode(delta, zeros, {residual, decay}, bytes), absl::OkStatus());
  return bytes;
}

// base - target as the other side understands it.
inline std::vector<double> DecodeDelta(const Codec& codec, std::span<const uint8_t> bytes,
                                       std::span<const float> base) {
  std::vector<double> delta(base.size(), 0.0);
  EXPECT_EQ(codec.Accumulate(bytes, base, 1.0, delta), absl::OkStatus());
  return delta;
}

// Every length of a block and more, and both sides of the chunk's border.
inline std::vector<size_t> InterestingLengths() {
  std::vector<size_t> lengths = {4095, 4096, 4097, 4159, 4160, 4161, 8191, 8192, 8193, 12345};
  for (size_t n = 0; n <= 200; ++n) lengths.push_back(n);
  return lengths;
}

inline std::string CodecTestName(const testing::TestParamInfo<v1::Codec>& info) {
  return v1::Codec_Name(info.param);
}

}  // namespace causeway
