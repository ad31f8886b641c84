// Snapshot, delta, error feedback and quantization as one kernel.
#include <cmath>
#include <type_traits>

#include "common/codec/block_formats.h"
#include "common/codec/codec_layout.h"
#include "worker/backend/cuda/kernels/codec_device.cuh"
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {
namespace {

// --- Scales --------------------------------------------------------------------------------------

// Returns the scale of the largest magnitude of the 16 lanes that have a codec block.
__device__ uint16_t MagnitudeScale(const float (&difference)[4]) {
  float largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) largest = fmaxf(largest, fabsf(difference[j]));
#pragma unroll
  for (int bits = kBlockLanes / 2; bits > 0; bits /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, bits));
  }
  return Bf16RoundedUp(largest);
}

constexpr int kMeanLanes = static_cast<int>(kMeanSums);
constexpr int kBlocksPerChunk = kChunkValues / kBlockValues;

// Makes the scales of all blocks of the chunk of `count` values, from their differences, zeros at
// the end. Eight lanes have a block, one sum each. Ends without a barrier.
template <typename Format>
__device__ void MeanScales(const float* difference, int count, uint16_t* scales) {
  const int lane = static_cast<int>(threadIdx.x) % kMeanLanes;
  for (int block = static_cast<int>(threadIdx.x) / kMeanLanes; block < kBlocksPerChunk;
       block += kCodecThreads / kMeanLanes) {
    double sum = 0;
    for (int i = lane; i < kBlockValues; i += kMeanLanes) {
      sum += Format::Term(difference[block * kBlockValues + i]);
    }
    // ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)), in all eight lanes.
#pragma unroll
    for (int bits = kMeanLanes / 2; bits > 0; bits /= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, bits);
    }
    const int values = min(count - block * kBlockValues, kBlockValues);
    if (lane == 0 && values > 0) {
      const double mean = sum / static_cast<double>(values);
      scales[block] = Bf16Nearest(static_cast<float>(Format::kIsRoot ? sqrt(mean) : mean));
    }
  }
}

// --- Codecs with and without scales --------------------------------------------------------------

template <typename FormatType>
struct BlockCoder {
  using Format = FormatType;
  static constexpr int kBits = Format::kBits;
  static constexpr int kScaleBytes = 2;
  static constexpr bool kHasMean = std::is_base_of_v<MeanScale<Format>, Format>;
  __device__ static float Limit() { return kLargestBlockMagnitude; }

  __device__ explicit BlockCoder(uint16_t bits)
      : scale_bits(bits < kSmallestScaleBits ? 0 : bits),
        encoder(scale_bits == 0 ? 1.0F : Bf16ToFloat(scale_bits)),
        decoder(scale_bits == 0 ? 1.0F : Bf16ToFloat(scale_bits)) {}
  __device__ unsigned Code(float x) const { return scale_bits == 0 ? 0 : encoder.Code(x); }
  __device__ float Value(unsigned code) const {
    return scale_bits == 0 ? 0.0F : decoder.Value(static_cast<uint8_t>(code));
  }

  uint16_t scale_bits;
  typename Format::Encoder encoder;
  typename Format::Decoder decoder;
};

struct Bf16Coder {
  static constexpr int kBits = 16;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kHasMean = false;
  __device__ static float Limit() { return __int_as_float(kLargestBf16CodecBits); }

  __device__ explicit Bf16Coder(uint16_t) {}
  __device__ unsigned Code(float x) const { return Bf16Nearest(x); }
  __device__ float Value(unsigned code) const { return Bf16ToFloat(static_cast<uint16_t>(code)); }
  uint16_t scale_bits = 0;
};

template <typename Coder, bool kFeedback>
__global__ void __launch_bounds__(kCodecThreads) EncodeChunk(const EncodeJob job) {
  __shared__ int refused;
  __shared__ float staged[Coder::kHasMean ? kChunkValues : 1];
  __shared__ uint16_t scales[kBlocksPerChunk];
  const ChunkInput input(job);
  if (threadIdx.x == 0) refused = 0;
  __syncthreads();
  float difference[kCodecRounds][4];
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    input.LoadDifferences<kFeedback>(i, difference[k]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // NaNs and infinities fail this, too.
      if (!(fabsf(difference[k][j]) <= Coder::Limit())) Refuse(job.refusal, i + j, &refused);
      if constexpr (Coder::kHasMean) staged[i + j] = difference[k][j];
    }
  }
  __syncthreads();
  if (refused != 0) return;
  if constexpr (Coder::kHasMean) {
    MeanScales<typename Coder::Format>(staged, input.count, scales);
    __syncthreads();
  }
  uint8_t* const out =
      job.out + int64_t{blockIdx.x} * WholeChunkBytes<Coder::kBits, Coder::kScaleBytes>();
  uint8_t* const codes_out = out + BlocksOf(input.count) * Coder::kScaleBytes;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    uint16_t scale_bits = 0;
    if constexpr (Coder::kHasMean) {
      scale_bits = scales[i / kBlockValues];
    } else if constexpr (Coder::kScaleBytes > 0) {
      scale_bits = MagnitudeScale(difference[k]);
    }
    const bool is_inside = i < input.count;
    const Coder coder(is_inside ? scale_bits : 0);
    unsigned long long codes = 0;
    float left[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned code = coder.Code(difference[k][j]);
      codes |= static_cast<unsigned long long>(code) << (j * Coder::kBits);
      left[j] = difference[k][j] - coder.Value(code);
    }
    // Of one bit, two threads' codes share a byte, which the first of the two writes.
    if constexpr (Coder::kBits == 1) codes |= __shfl_xor_sync(kFullWarp, codes, 1) << 4;
    if (!is_inside) continue;
    if (Coder::kBits > 1 || i % 8 == 0) {
      StoreCodes<kThreadBytes<Coder::kBits>>(codes, codes_out + i * Coder::kBits / 8,
                                             CodeBytes<Coder::kBits>(input.count - i));
    }
    if constexpr (Coder::kScaleBytes > 0) {
      if (i % kBlockValues == 0) {
        StoreCodes<2>(coder.scale_bits, out + i / kBlockValues * Coder::kScaleBytes, 2);
      }
    }
    if constexpr (kFeedback) Store4(left, input.residual, i, input.count);
  }
}

// --- FP32 ----------------------------------------------------------------------------------------

template <bool kFeedback>
__global__ void __launch_bounds__(kCodecThreads) EncodeFp32Chunk(const EncodeJob job) {
  __shared__ int refused;
  const ChunkInput input(job);
  if (threadIdx.x == 0) refused = 0;
  __syncthreads();
  float distance[kCodecRounds][4];  // The bits of integers.
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    float bases[4];
    float wanted[4];
    input.Load(i, bases, wanted);
    float kept[4] = {};
    if constexpr (kFeedback) input.LoadResidual(i, kept);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kFeedback) wanted[j] -= input.decay * kept[j];
      if (!isfinite(bases[j]) || !isfinite(wanted[j])) Refuse(job.refusal, i + j, &refused);
      distance[k][j] = __uint_as_float(static_cast<uint32_t>(OrderedFromFloat(wanted[j])) -
                                       static_cast<uint32_t>(OrderedFromFloat(bases[j])));
    }
  }
  __syncthreads();
  if (refused != 0) return;
  auto* const out = reinterpret_cast<float*>(job.out) + input.first;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    Store4(distance[k], out, i, input.count);
    if constexpr (kFeedback) {
      const float zeros[4] = {};
      Store4(zeros, input.residual, i, input.count);
    }
  }
}

// Keeps the first refused value: its target changes with the next step.
__global__ void ExplainRefusal(const EncodeJob job, bool is_fp32) {
  if (threadIdx.x != 0 || job.refusal->index_inverted == 0) return;
  const auto index = static_cast<int64_t>(~job.refusal->index_inverted);
  const int64_t place = job.pieces == nullptr ? index : InArena(job.pieces, job.piece_count, index);
  const float base = job.base == nullptr ? 0.0F : job.base[index];
  float target = job.negates_target ? -job.target[place] : job.target[place];
  float difference = base - target;
  if (job.residual != nullptr) {
    const float kept = job.decay * job.residual[index];
    difference += kept;
    if (is_fp32) target -= kept;
  }
  job.refusal->base = base;
  job.refusal->target = target;
  job.refusal->difference = difference;
}

using Kernel = void (*)(EncodeJob);

void LaunchChunks(Kernel with_feedback, Kernel without, const EncodeJob& job, cudaStream_t stream) {
  Launch(job.residual != nullptr ? with_feedback : without,
         dim3(static_cast<unsigned>(ChunksOf(job.values))), dim3(kCodecThreads), 0, stream, job);
}

}  // namespace

void LaunchEncode(DeviceCodec codec, const EncodeJob& job, cudaStream_t stream) {
  if (job.values == 0) return;
  if (codec == DeviceCodec::kFp32) {
    LaunchChunks(EncodeFp32Chunk<true>, EncodeFp32Chunk<false>, job, stream);
  } else if (codec == DeviceCodec::kBf16) {
    LaunchChunks(EncodeChunk<Bf16Coder, true>, EncodeChunk<Bf16Coder, false>, job, stream);
  } else {
    WithBlockFormat(codec, [&](auto format) {
      using Coder = BlockCoder<decltype(format)>;
      LaunchChunks(EncodeChunk<Coder, true>, EncodeChunk<Coder, false>, job, stream);
    });
  }
  Launch(ExplainRefusal, dim3(1), dim3(kWarpSize), 0, stream, job, codec == DeviceCodec::kFp32);
}

}  // namespace causeway::worker::cuda
