// The base of all codecs but FP32: they carry the fp32 difference base - target, block by block.
// Here are the walk over chunks and blocks, the refusal of bad input, error feedback and the
// ways to read; a derived class turns one block into bytes and back. Vector kernels, where there
// are any, go ahead of that and leave it the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"

namespace causeway {

// INVALID_ARGUMENT unless `bytes` is what `values` values of the codec take.
absl::Status CheckEncodedSize(const Codec& codec, size_t bytes, size_t values);
// INVALID_ARGUMENT unless the arrays of an Encode fit each other.
absl::Status CheckEncodeSizes(const Codec& codec, size_t base, size_t target, size_t residual,
                              size_t bytes);
// The refusal of a difference that the codec does not carry.
absl::Status TooLarge(const Codec& codec, size_t index, float difference, float base, float target,
                      float largest);
// The refusal of a result that is not finite.
absl::Status NotFiniteAfterwards(size_t index, float base, float delta);

class DifferenceCodec : public Codec {
 public:
  size_t EncodedBytes(size_t values) const final;
  absl::Status Encode(std::span<const float> base, std::span<const float> target,
                      const ErrorFeedback& feedback, std::span<uint8_t> out) const final;
  absl::Status Accumulate(std::span<const uint8_t> encoded, std::span<const float> base,
                          double weight, std::span<double> sum) const final;
  absl::Status WeightedSum(std::span<const WeightedPart> parts, std::span<const float> base,
                           std::span<const float* const> upcoming,
                           std::span<double> sum) const final;
  absl::Status Apply(std::span<const uint8_t> encoded, std::span<float> values) const final;

 protected:
  absl::Status AddSquares(std::span<const uint8_t> encoded, std::span<const float> base,
                          std::span<double, kSquareSums> sums) const final;
  // `scale_bytes` per block and `code_bits` per value, 2, 4, 8 or 16. A difference whose
  // magnitude is not at most `largest_magnitude` is refused.
  DifferenceCodec(CodecPath path, size_t scale_bytes, size_t code_bits, float largest_magnitude)
      : path_(path),
        scale_bytes_(scale_bytes),
        code_bits_(code_bits),
        largest_magnitude_(largest_magnitude) {}

  // `values` are 1..kCodecBlock differences within the limit, `scale` and `codes` have just the
  // block's bytes, zeros at first. `decoded`, if not empty, receives what DecodeBlock would give.
  virtual void EncodeBlock(std::span<const float> values, std::span<uint8_t> scale,
                           std::span<uint8_t> codes, std::span<float> decoded) const = 0;
  // The differences of one block; INVALID_ARGUMENT for bytes that EncodeBlock does not make.
  virtual absl::Status DecodeBlock(std::span<const uint8_t> scale, std::span<const uint8_t> codes,
                                   std::span<float> decoded) const = 0;

 private:
  // WeightedSum with vectors; false, with `sum` unspecified, where they do not take it all.
  bool SumWithKernel(std::span<const WeightedPart> parts, std::span<const float* const> upcoming,
                     std::span<double> sum) const;
  // Null where the scalar code does it all.
  const CodecKernels* Kernels() const;
  // Calls `decode_chunk` for every chunk, with where its first value, scales and codes are, and
  // then, block after block, decodes what that has not done and hands it to `visit`.
  using ChunkKernel = absl::FunctionRef<size_t(size_t first, const uint8_t* scales,
                                               const uint8_t* codes, size_t blocks)>;
  using BlockVisitor = absl::FunctionRef<absl::Status(size_t first, std::span<const float>)>;
  absl::Status Decode(std::span<const uint8_t> encoded, size_t values, ChunkKernel decode_chunk,
                      BlockVisitor visit) const;

  CodecPath path_;
  size_t scale_bytes_;
  size_t code_bits_;
  float largest_magnitude_;
};

// FP32's refusal of a base or a target to encode.
absl::Status EndsNotFinite(size_t index, float base, float target);

const Codec* Fp32Codec(CodecPath path);
const Codec* Bf16Codec(CodecPath path);

}  // namespace causeway
