// Every codec that FindCodec knows, one target each: bytes from a peer, on every instruction set of
// the machine, against the plain code.
//
// Input: a byte of options, the number of values (2 bytes), a seed and then either the encoded
// bytes themselves or values to encode and changes to make to the result.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "google/protobuf/descriptor.h"
#include "hwy/targets.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

constexpr size_t kManyValues = kCodecChunk + 200;
constexpr size_t kFewValues = 3 * kCodecBlock + 10;

enum Options : uint8_t {
  kMany = 1 | 128,   // Both: more than a chunk, else up to several blocks.
  kEncoded = 2,      // Starts from what an encoder makes.
  kRawLength = 4,    // As many bytes as there are, rather than those that the values take.
  kFeedback = 8,     // Encodes with a residual.
  kBase = 16 | 32,   // Says what the base is: see MakeBase.
  kRestIsBase = 64,  // Bits of the base are the input's, NaNs and all, rather than well-behaved.
};

const std::vector<int64_t>& InstructionSets() {
  static const std::vector<int64_t>* const targets = [] {
    hwy::SetSupportedTargetsForTest(0);
    return new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  }();
  return *targets;
}

// Without asking the processor again what it has, which takes longer than all the rest.
void UseInstructionSet(int64_t target) { hwy::GetChosenTarget().Update(target); }

// A small generator: neighbouring seeds give unlike sequences.
uint32_t Scramble(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

float Unremarkable(uint32_t random) {
  return static_cast<float>(static_cast<int32_t>(random)) * 0x1p-33F;
}

// Finite floats at the borders of what codecs carry.
float Extreme(uint32_t random) {
  static constexpr std::array<float, 16> kValues = {
      0.0F,       -0.0F,    0x1p-149F,       -0x1p-126F,      0x1p-100F, -0x1p-101F,
      1.0F,       -1.0F,    0x1p100F,        -0x1p100F,       0x1p101F,  0x1p126F,
      -0x1.8p99F, 0x1p-93F, 0x1.fffffep127F, -0x1.fffffep127F};
  return kValues[random % kValues.size()];
}

std::vector<float> FloatsOf(const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<float> MakeBase(uint8_t options, uint32_t seed, size_t values, const Input& input) {
  if ((options & kRestIsBase) != 0) return FloatsOf(input.Repeat(values * sizeof(float)));
  std::vector<float> base(values, 0.0F);
  for (size_t i = 0; i < values; ++i) {
    const uint32_t random = Scramble(seed + static_cast<uint32_t>(i) * 0x9e3779b9U);
    switch ((options & kBase) >> 4) {
      case 0:
        break;
      case 1:
        base[i] = Unremarkable(random);
        break;
      case 2:
        base[i] = Extreme(random);
        break;
      default:
        base[i] = random % 64 == 0 ? Extreme(random >> 6) : Unremarkable(random);
    }
  }
  return base;
}

template <typename T>
bool AllFinite(const std::vector<T>& values) {
  T zeros = 0;
  for (const T x : values) zeros += x * 0;  // NaN, and for ever, once one is not finite.
  return zeros == 0;
}

// Both implementations of one codec; every call must come to the same end in both.
class Pair {
 public:
  explicit Pair(v1::Codec id)
      : scalar_(*FindCodec(id, CodecPath::kScalar).value()),
        vector_(*FindCodec(id, CodecPath::kVector).value()) {}

  const Codec& codec() const { return scalar_; }

  bool Encode(std::span<const float> base, std::span<const float> target,
              std::vector<float>& residual, std::vector<uint8_t>& out) const {
    std::vector<float> other_residual = residual;
    std::vector<uint8_t> other_out = out;
    const absl::Status status = scalar_.Encode(base, target, {residual}, out);
    Same("Encode", status, vector_.Encode(base, target, {other_residual}, other_out));
    if (!status.ok()) return false;
    FUZZ_REQUIRE(out == other_out, "the vector code encodes to other bytes");
    FUZZ_REQUIRE(SameBits(residual, other_residual), "the vector code leaves another residual");
    return true;
  }

  bool Validate(std::span<const uint8_t> encoded, std::span<const float> base) const {
    const absl::Status status = scalar_.Validate(encoded, base);
    Same("Validate", status, vector_.Validate(encoded, base));
    return status.ok();
  }

  bool Accumulate(std::span<const uint8_t> encoded, std::span<const float> base, double weight,
                  std::vector<double>& sum) const {
    std::vector<double> other = sum;
    const absl::Status status = scalar_.Accumulate(encoded, base, weight, sum);
    Same("Accumulate", status, vector_.Accumulate(encoded, base, weight, other));
    if (!status.ok()) return false;
    FUZZ_REQUIRE(SameBits(sum, other), "the vector code accumulates other bits");
    return true;
  }

  bool SumOfSquares(std::span<const uint8_t> encoded, std::span<const float> base) const {
    const absl::StatusOr<double> sum = scalar_.SumOfSquares(encoded, base);
    const absl::StatusOr<double> other = vector_.SumOfSquares(encoded, base);
    Same("SumOfSquares", sum.status(), other.status());
    if (sum.ok()) FUZZ_REQUIRE(*sum == *other, "the vector code sums other squares");
    return sum.ok();
  }

  bool Apply(std::span<const uint8_t> encoded, std::vector<float>& values) const {
    std::vector<float> other = values;
    const absl::Status status = scalar_.Apply(encoded, values);
    Same("Apply", status, vector_.Apply(encoded, other));
    if (!status.ok()) return false;
    FUZZ_REQUIRE(SameBits(values, other), "the vector code applies to other bits");
    return true;
  }

 private:
  void Same(absl::string_view what, const absl::Status& a, const absl::Status& b) const {
    FUZZ_REQUIRE(a == b, absl::StrCat(scalar_.name(), " ", what, ": the plain code says ",
                                      a.ToString(), ", the vector code ", b.ToString()));
    FUZZ_REQUIRE(a.ok() || absl::IsInvalidArgument(a),
                 absl::StrCat(what, " may only answer INVALID_ARGUMENT, not ", a.ToString()));
  }

  const Codec& scalar_;
  const Codec& vector_;
};

std::vector<float> Decoded(const Pair& pair, std::span<const uint8_t> encoded, size_t values) {
  const std::vector<float> zeros(values, 0.0F);
  std::vector<double> sum(values, 0.0);
  FUZZ_REQUIRE(pair.Accumulate(encoded, zeros, 1.0, sum), "what validates must decode");
  std::vector<float> decoded(values);
  for (size_t i = 0; i < values; ++i) decoded[i] = static_cast<float>(sum[i]);
  return decoded;
}

std::vector<uint8_t> EncodedDifference(const Pair& pair, const std::vector<float>& difference) {
  const std::vector<float> zeros(difference.size(), 0.0F);
  std::vector<float> target = difference;
  for (float& x : target) x = -x;
  std::vector<float> residual;
  std::vector<uint8_t> out(pair.codec().EncodedBytes(difference.size()));
  FUZZ_REQUIRE(pair.Encode(zeros, target, residual, out), "decoded values must encode again");
  return out;
}

// The largest code of a block that an encoder made is the largest that there is, even though the
// scale was rounded up by as much as 1/128: so what it decodes to has the same scale again. (int8's
// may be 126.)
bool EncodesToTheSameBytesAgain(v1::Codec id) {
  return id == v1::INT4 || id == v1::E2M1 || id == v1::E3M0 || id == v1::SIGN1;
}

// docs/codecs.md: fp32 restores the target exactly; bf16 decodes to what encodes to the same
// values; a block made by an encoder of 4 bits or 1 decodes to what encodes to the same bytes. What
// any codec decodes to can be encoded, and that decoded.
void CheckRoundTrip(const Pair& pair, std::span<const uint8_t> encoded,
                    const std::vector<float>& base, const std::vector<float>& applied) {
  const Codec& codec = pair.codec();
  if (codec.id() == v1::FP32) {
    std::vector<float> residual;
    std::vector<uint8_t> again(encoded.size());
    FUZZ_REQUIRE(pair.Encode(base, applied, residual, again), "fp32 must carry any two values");
    FUZZ_REQUIRE(std::ranges::equal(again, encoded), "fp32 must be exact");
    return;
  }
  const std::vector<float> first = Decoded(pair, encoded, base.size());
  if (codec.id() != v1::BF16 &&
      !std::ranges::all_of(first, [](float x) { return std::abs(x) <= 0x1p100F; })) {
    return;  // lm2's large level lies above its scale.
  }
  const std::vector<uint8_t> once = EncodedDifference(pair, first);
  const std::vector<float> second = Decoded(pair, once, base.size());
  if (codec.id() == v1::BF16) {
    FUZZ_REQUIRE(std::ranges::equal(first, second), "bf16 must keep what it carries");
  } else if (EncodesToTheSameBytesAgain(codec.id())) {
    FUZZ_REQUIRE(EncodedDifference(pair, second) == once,
                 "decoded values must encode to the same bytes");
  }
}

// The rules by which docs/codecs.md has a decoder of scales and codes refuse, said once more in the
// plainest way, so that a rule that both implementations forget is noticed. `bits` is the width of
// a code.
bool DocumentAccepts(size_t bits, std::span<const uint8_t> encoded, size_t values) {
  const auto byte = [&](size_t i) -> unsigned { return encoded[i]; };
  size_t offset = 0;
  for (size_t begin = 0; begin < values; begin += kCodecChunk) {
    const size_t count = std::min(kCodecChunk, values - begin);
    const size_t blocks = (count + kCodecBlock - 1) / kCodecBlock;
    const size_t codes = offset + 2 * blocks;
    const size_t end = codes + (count * bits + 7) / 8;
    if (end > encoded.size()) return false;
    for (size_t i = 0; i < (end - codes) * 8 / bits; ++i) {
      const unsigned code = byte(codes + i * bits / 8) >> (i * bits % 8) & ((1U << bits) - 1U);
      if (i >= count) {
        if (code != 0) return false;
        continue;
      }
      const size_t at = offset + 2 * (i / kCodecBlock);
      const unsigned scale = byte(at) | byte(at + 1) << 8;
      if (scale == 0 ? code != 0 : scale < 0x0d80 || scale > 0x7180) return false;
      if (bits >= 4 && code == 1U << (bits - 1)) return false;  // -8, -128, minus zero.
    }
    offset = end;
  }
  return offset == encoded.size();
}

void CheckAgainstDocument(v1::Codec id, std::span<const uint8_t> encoded, size_t values,
                          bool accepted) {
  size_t bits = 0;
  if (id == v1::SIGN1) bits = 1;
  if (id == v1::LM2) bits = 2;
  if (id == v1::INT4 || id == v1::E2M1 || id == v1::E3M0) bits = 4;
  if (id == v1::INT8) bits = 8;
  if (bits == 0) return;
  FUZZ_REQUIRE(DocumentAccepts(bits, encoded, values) == accepted,
               absl::StrCat("the document and the decoder disagree; accepted: ", accepted));
}

void CheckDecode(const Pair& pair, std::span<const uint8_t> encoded,
                 const std::vector<float>& base) {
  const bool valid = pair.Validate(encoded, base);
  std::vector<double> sum(base.size(), 0.5);
  const bool accumulates = pair.Accumulate(encoded, base, 0.25, sum);
  FUZZ_REQUIRE(pair.SumOfSquares(encoded, base) == accumulates,
               "SumOfSquares must accept exactly what Accumulate does");
  CheckAgainstDocument(pair.codec().id(), encoded, base.size(), accumulates);
  std::vector<float> values = base;
  const bool applies = pair.Apply(encoded, values);
  FUZZ_REQUIRE(applies == valid, "Validate must accept exactly what Apply does");
  FUZZ_REQUIRE(accumulates || !valid, "Accumulate must accept what Validate does");
  if (accumulates) FUZZ_REQUIRE(AllFinite(sum), "a sum is not finite");
  if (!valid) return;
  FUZZ_REQUIRE(AllFinite(values), "a decoded value is not finite");
  CheckRoundTrip(pair, encoded, base, values);
}

// Encodes the input's values, checks the result, and changes it here and there.
std::vector<uint8_t> EncodeAndChange(const Pair& pair, uint8_t options, uint32_t seed,
                                     const std::vector<float>& base, Input& input) {
  const size_t values = base.size();
  const size_t changes = input.Take<uint8_t>() % 8;
  std::vector<std::pair<uint32_t, uint8_t>> edits;
  for (size_t i = 0; i < changes; ++i) {
    const auto position = input.Take<uint16_t>();
    edits.emplace_back(position, input.Take<uint8_t>());
  }
  std::vector<float> target = FloatsOf(input.Repeat(values * sizeof(float)));
  std::vector<float> residual;
  if ((options & kFeedback) != 0) {
    for (size_t i = 0; i < values; ++i) {
      residual.push_back(Unremarkable(Scramble(seed ^ static_cast<uint32_t>(i))));
    }
  }
  const bool feedback = !residual.empty();
  std::vector<uint8_t> encoded(pair.codec().EncodedBytes(values));
  const std::vector<float> held_residual = residual;
  if (!pair.Encode(base, target, residual, encoded)) {
    // Values that no codec carries: well-behaved ones in their place.
    for (size_t i = 0; i < values; ++i) {
      if (!(std::abs(target[i]) < 0x1p40F)) target[i] = Unremarkable(seed + uint32_t(i));
    }
    residual = held_residual;
    if (!pair.Encode(base, target, residual, encoded)) return encoded;
  }
  if (feedback) FUZZ_REQUIRE(AllFinite(residual), "a residual is not finite");
  // The target may lie beyond fp32 as seen from the base; the bytes decode all the same.
  if ((options & (kBase | kRestIsBase)) == 0) Decoded(pair, encoded, values);
  for (const auto& [position, mask] : edits) {
    if (!encoded.empty()) encoded[position % encoded.size()] ^= mask;
  }
  return encoded;
}

void CheckCodec(v1::Codec id, Input input) {
  const auto options = input.Take<uint8_t>();
  const size_t limit = (options & kMany) == kMany ? kManyValues : kFewValues;
  const size_t values = input.Take<uint16_t>() % (limit + 1);
  const auto seed = static_cast<uint32_t>(input.Take<uint16_t>());
  UseInstructionSet(InstructionSets()[seed % InstructionSets().size()]);

  const Pair pair(id);
  const std::vector<float> base = MakeBase(options, seed, values, input);
  std::vector<uint8_t> encoded;
  if ((options & kEncoded) != 0) {
    encoded = EncodeAndChange(pair, options, seed, base, input);
  } else if ((options & kRawLength) != 0) {
    encoded = input.TakeBytes(input.rest().size());
  } else {
    encoded = input.Repeat(pair.codec().EncodedBytes(values));
  }
  CheckDecode(pair, encoded, base);
}

}  // namespace

std::vector<Target> Targets() {
  std::vector<Target> targets;
  const auto* const names = v1::Codec_descriptor();
  for (int i = 0; i < names->value_count(); ++i) {
    const auto id = static_cast<v1::Codec>(names->value(i)->number());
    if (!FindCodec(id).ok()) continue;
    targets.push_back({absl::StrCat("codec_", FindCodec(id).value()->name()),
                       [id](std::span<const uint8_t> bytes) { CheckCodec(id, Input(bytes)); }});
  }
  return targets;
}

}  // namespace causeway::fuzz
