// Randomness as a pure function: (seed, stream, counter) -> bits. No hidden state, so any part of
// a sequence can be drawn by anybody, in any order, on any thread, with the same result.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <string>

#include "absl/base/macros.h"
#include "absl/strings/str_cat.h"

namespace causeway {

// The finalizer of SplitMix64: a bijection in which every input bit moves every output bit.
constexpr uint64_t MixBits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebU;
  x ^= x >> 31;
  return x;
}

// 64 random bits.
constexpr uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t counter) {
  const uint64_t key = MixBits(seed + 0x9e3779b97f4a7c15U) ^ MixBits(stream * 0xd1342543de82ef95U);
  return MixBits(MixBits(key + counter * 0x9e3779b97f4a7c15U) + std::rotl(key, 32));
}

// In [0, 1), 53 bits.
constexpr double RandomUniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<double>(RandomBits(seed, stream, counter) >> 11) * 0x1p-53;
}

// Standard normal, by Box and Muller.
inline double RandomNormal(uint64_t seed, uint64_t stream, uint64_t counter) {
  const double u = 1.0 - RandomUniform(seed, stream, 2 * counter);
  const double v = RandomUniform(seed, stream, 2 * counter + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

// The image of `index` under a permutation of [0, size) chosen by (seed, stream): a Feistel
// network over the next even power of two, walked until it lands inside. size >= 1.
inline uint64_t RandomPermutation(uint64_t seed, uint64_t stream, uint64_t size, uint64_t index) {
  ABSL_ASSERT(index < size);
  const int half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  if (half_bits == 0) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = RandomBits(seed, stream, (right << 3) | round) & mask;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= size);
  return value;
}

// Numbers that the machine draws, for names and processes that must differ: nothing that is trained
// depends on them. What a seed decides is in random.h.

// Never 0.
inline uint64_t RandomNonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device() | 1;
}

// Bytes that nothing on their way can compress.
inline std::string RandomText(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

// Eight hexadecimal digits.
inline std::string RandomSuffix() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device(), absl::kZeroPad8));
}

}  // namespace causeway
