// The vector code of the codecs, compiled for every instruction set that Highway knows and chosen
// at run time. It gives the bits of the scalar code, which stays the authority: a kernel walks the
// whole blocks of one chunk (FP32: of any range) and stops before the first block that it does not
// take, leaving that block's outputs as they were. The caller goes on from there with the scalar
// code, which takes ragged blocks and words the refusals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "causeway/v1/config.pb.h"

namespace causeway {

// The blocks of one chunk of one contribution, and what it counts.
struct WeightedBlocks {
  const uint8_t* scales;
  const uint8_t* codes;
  double weight;
};

// sum = the weighted values of all parts, added to zero in their order; stops as the others do.
// It also prefetches from each array of `upcoming` as many values as it sums.
using WeightedSumKernel = size_t (*)(std::span<const WeightedBlocks> parts, size_t blocks,
                                     std::span<const float* const> upcoming, double* sum);

// All pointers are to the first block's values, scale or codes, and need no alignment; arrays do
// not overlap. `scales` is not used by codecs without scales. Every function returns the number of
// blocks done, at most `blocks`. See codec.h for what each does.
struct CodecKernels {
  // `residual` is null without error feedback.
  size_t (*encode)(const float* base, const float* target, float* residual, float decay,
                   size_t blocks, uint8_t* scales, uint8_t* codes);
  // `base` is read by FP32 alone.
  size_t (*accumulate)(const uint8_t* scales, const uint8_t* codes, const float* base,
                       double weight, size_t blocks, double* sum);
  size_t (*apply)(const uint8_t* scales, const uint8_t* codes, size_t blocks, float* values);
  // Adds the squares of the values: value i to sums[i mod kSquareSums]. `base` is read by FP32
  // alone.
  size_t (*squares)(const uint8_t* scales, const uint8_t* codes, const float* base, size_t blocks,
                    double* sums);
  // Null where nothing is faster than to accumulate part by part.
  WeightedSumKernel weighted_sum = nullptr;
};

// The kernels for this machine; null if it has no vector instructions, or there are none for that
// codec. Cheap, and follows hwy::SetSupportedTargetsForTest.
const CodecKernels* FindCodecKernels(v1::Codec id);

}  // namespace causeway
