// The kernels of synchronization: codecs, the hashes of leaves, and a trainer's tensors.
//
// The codecs (common/codec): the same bytes, the same values, the same refusals, bit for
// bit. One kernel encodes a fragment's delta straight from the weights, one applies an answer and
// mixes it into them; part_slots.h says how it went.
//
// Arrays are in device memory, or in pinned host memory, at multiples of 256 bytes, and hold a
// whole number of codec chunks, the last of which may be shorter. A block of threads has one chunk.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

enum class DeviceCodec { kFp32, kBf16, kInt8, kInt4, kE3m0, kE2m1, kLm2, kSign1 };

// The first value that a kernel refused. Its chunk and, of those after it, any are left as they
// were.
struct Refusal {
  unsigned long long index_inverted = 0;  // ~index; 0: none.
  float base = 0, target = 0;             // Values as an encoder saw them.
  float difference = 0;
};

// Where a part of a shard is in the whole arena.
struct ArenaPiece {
  int64_t first = 0;  // The part's first value in the shard: a multiple of kCodecChunk.
  int64_t begin = 0;  // The same in the arena.
};

// Values begin .. end that move as those of their block, source .. begin (MirrorIntoGaps).
struct MirroredGap {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t source = 0;
};

struct EncodeJob {
  int64_t values = 0;
  const float* base = nullptr;    // Null: zeros.
  const float* target = nullptr;  // As `values`; with `pieces` the whole arena.
  const ArenaPiece* pieces = nullptr;
  int piece_count = 0;
  bool negates_target = false;
  const MirroredGap* gaps = nullptr;  // In order; of plain targets with a base.
  int gap_count = 0;
  float* residual = nullptr;  // Null: no error feedback.
  float decay = 1;
  uint8_t* out = nullptr;      // As Codec::EncodedBytes.
  Refusal* refusal = nullptr;  // All zeros.
};
void LaunchEncode(DeviceCodec codec, const EncodeJob& job, cudaStream_t stream);

struct MergeJob {
  int64_t values = 0;
  const uint8_t* encoded = nullptr;
  const float* base = nullptr;  // The published copy.
  float* published = nullptr;   // Becomes the new copy; may be `base`.
  // local = alpha * local + beta * published; published where alpha is 0.
  float* local = nullptr;
  float alpha = 0, beta = 1;
  // As long as `local`: then local = published + keep * (local - held), in double and rounded once.
  const float* held = nullptr;
  double keep = 0;
  // The same, rounded to nearest even, in the whole arena.
  __nv_bfloat16* weights = nullptr;
  const ArenaPiece* pieces = nullptr;
  int piece_count = 0;
  Refusal* refusal = nullptr;
};
void LaunchMerge(DeviceCodec codec, const MergeJob& job, cudaStream_t stream);
// The same without an answer: mixes what is published. `encoded` and `refusal` are not used.
void LaunchMix(const MergeJob& job, cudaStream_t stream);

// residual += what was encoded, rounded once.
struct FoldJob {
  int64_t values = 0;
  const uint8_t* encoded = nullptr;
  const float* base = nullptr;  // That it was encoded against.
  float* residual = nullptr;
  Refusal* refusal = nullptr;
};
void LaunchFold(DeviceCodec codec, const FoldJob& job, cudaStream_t stream);

// The checksums of a tree hash's leaves (common/base/checksum.h) on a device: of what lies there,
// only 8 bytes per leaf have to leave it.

// Shorter leaves are hashed in another way, which is not here.
inline constexpr int64_t kLeastLeafBytes = 256;

struct HashLeaf {
  int64_t offset = 0;  // In bytes; a multiple of 16.
  int64_t bytes = 0;   // A multiple of 64, and at least kLeastLeafBytes.
};

// out[i] = Checksum64 of leaf i of `memory`. All pointers are to device memory.
void LaunchLeafHashes(const void* memory, const HashLeaf* leaves, int64_t count,
                      unsigned long long* out, cudaStream_t stream);

// Kernels between a trainer's tensors, of fp32, bf16 or fp16, and fp32 values of a fragment: one
// for all ranges of a fragment.

// kOwn: of fp32, and the library's: what lies between tensors in the arena.
enum class ValueType : int { kFp32, kBf16, kFp16, kOwn };

// A range of a tensor.
struct ValueRange {
  void* data = nullptr;  // Its first value.
  int64_t first = 0;     // The same in the fragment.
  int64_t count = 0;
  ValueType type = ValueType::kFp32;
};

// All pointers are to what the device can read.
struct ValueJob {
  const ValueRange* ranges = nullptr;  // By `first`, without overlaps.
  int range_count = 0;
  int64_t values = 0;  // Of the fragment.
};

// local = what the ranges have; `published` where none is. A value of two bytes was trained from a
// rounded copy of `local`: local becomes it and what that rounding left out, so that it still
// rounds to it.
void LaunchGather(const ValueJob& job, float* local, const float* published, cudaStream_t stream);

// The ranges = values, rounded to the nearest even; kOwn only where `own` is true.
void LaunchScatter(const ValueJob& job, const float* values, bool own, cudaStream_t stream);

}  // namespace causeway::worker::cuda
