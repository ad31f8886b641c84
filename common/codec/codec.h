// How a fragment becomes bytes and back.
//
// A codec turns the difference `base - target` of two equally long arrays into bytes. The other
// side holds the same base, and forms the target from it, exactly (FP32) or nearly:
//
//   uplink     base = published, target = local           the delta of a worker
//   downlink   base = published, target = theta           the answer of the coordinator
//   gradient   base = 0,         target = -gradient       data parallelism
//
// FP32 carries the distance of the two in units of the last place, because a rounded difference
// would not restore the target. All others carry the fp32 difference.
//
// Values are cut into chunks of kCodecChunk (4096). Any range of whole chunks can be encoded,
// decoded or merged alone. Within a chunk, blocks of kCodecBlock (64) values share a scale. Tensors
// start at multiples of 64 in the arena, so each block lies in one tensor. docs/codecs.md has the
// exact bytes. They are the same on every machine.
//
// Thread-safety: codecs are stateless; every method may be called by any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec_layout.h"

namespace causeway {

// State that the sender keeps from one delta to the next (error feedback, arXiv 1901.09847).
struct ErrorFeedback {
  // As long as base and target, or empty: no error feedback.
  std::span<float> residual;
  // Share of the residual that is sent, in [0, 1]. The rest is forgotten: a value that waited for
  // long would come too late (SparseLoCo, arXiv 2508.15706).
  float decay = 1;
};

// One of several encoded differences, and its weight.
struct WeightedPart {
  std::span<const uint8_t> encoded;
  double weight = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual v1::Codec id() const = 0;
  virtual absl::string_view name() const = 0;  // "int4"
  // Bytes of `values` encoded values.
  virtual size_t EncodedBytes(size_t values) const = 0;
  // True for codecs that only train well with error feedback.
  virtual bool needs_error_feedback() const { return false; }

  // Encodes base - target into `out`, which must have EncodedBytes(base.size()) bytes. All arrays
  // have the same length. With error feedback it encodes base - target + decay * residual, and the
  // residual becomes what the code left out. INVALID_ARGUMENT, with the index, if a difference is
  // not finite; `out` and the residual are then unspecified.
  virtual absl::Status Encode(std::span<const float> base, std::span<const float> target,
                              const ErrorFeedback& feedback, std::span<uint8_t> out) const = 0;

  // Adds weight * delta[i] to sum[i], where delta is the decoded base - target, exact in double.
  // Only FP32 reads `base`. INVALID_ARGUMENT for a wrong length, a scale or a code that no encoder
  // makes, or a value that is not finite; `sum` is then unspecified.
  virtual absl::Status Accumulate(std::span<const uint8_t> encoded, std::span<const float> base,
                                  double weight, std::span<double> sum) const = 0;

  // Sets sum[i] to the sum over parts of weight * delta[i], in their order. The bits and errors are
  // those of filling `sum` with zeros and accumulating part by part; many parts are faster.
  // `upcoming` points to arrays as long as `sum` that the caller uses next: they may be fetched
  // from memory meanwhile.
  virtual absl::Status WeightedSum(std::span<const WeightedPart> parts, std::span<const float> base,
                                   std::span<const float* const> upcoming,
                                   std::span<double> sum) const;

  // The sum of the squares of all delta[i], each as Accumulate adds it. Value i counts in sum
  // i mod 8, in order of index; all together are ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)):
  // the same bits everywhere. Accumulate's errors.
  absl::StatusOr<double> SumOfSquares(std::span<const uint8_t> encoded,
                                      std::span<const float> base) const;

  // Turns `values` from the base into the target: values[i] -= delta[i] in fp32 (FP32: exactly the
  // target). Accumulate's errors.
  virtual absl::Status Apply(std::span<const uint8_t> encoded, std::span<float> values) const = 0;

  // Checks everything that Accumulate and Apply would refuse: applies it to a copy of the base.
  absl::Status Validate(std::span<const uint8_t> encoded, std::span<const float> base) const;

 protected:
  // Adds the squares to SumOfSquares' eight sums.
  virtual absl::Status AddSquares(std::span<const uint8_t> encoded, std::span<const float> base,
                                  std::span<double, kSquareSums> sums) const = 0;
};

// Every codec there is.
inline constexpr std::array kCodecs = {v1::FP32, v1::BF16, v1::INT8, v1::E3M0,
                                       v1::E2M1, v1::INT4, v1::LM2,  v1::SIGN1};

// kVector uses the vector instructions of this machine. kScalar is plain code for tests: it defines
// the bits that the others must give.
enum class CodecPath { kVector, kScalar };

// Returns the codec of that id, which lives for ever. INVALID_ARGUMENT, with the list of all, for
// an id without one.
absl::StatusOr<const Codec*> FindCodec(v1::Codec id, CodecPath path = CodecPath::kVector);

// The lossless stage after the codecs: zstd at its fastest level with entropy coding. Codes are not
// equally frequent, which saves 5 to 26 % of them (docs/results.md has what it brings and
// costs).
//
// One piece of bytes makes one frame, which is unpacked without any other.
//
// Thread-safety: all functions may be called by any number of threads.

// Fills `packed` and returns true if that is smaller by at least 3 %; otherwise `packed` is
// unspecified, and `plain` is what should be sent.
bool EntropyPack(std::span<const uint8_t> plain, std::string& packed);

// Fills `plain`, whose size the caller has checked: nothing else is allocated that depends on
// `packed`. INVALID_ARGUMENT unless `packed` makes just as many bytes; `plain` is then unspecified.
absl::Status EntropyUnpack(absl::string_view packed, std::span<uint8_t> plain);

}  // namespace causeway
