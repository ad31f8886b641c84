// Decoding: an answer into the published copy and from there into the weights, and a late delta
// into what error feedback keeps, each as one kernel.
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

// --- Readers: a chunk's bytes as differences -----------------------------------------------------
//
// Read(i, base, delta) gives the differences of the values i .. i + 3, zeros beyond the end; false
// for bytes that no encoder makes.

template <typename Format>
class BlockReader {
 public:
  static constexpr bool kIsExact = false;

  __device__ BlockReader(const uint8_t* encoded, int count)
      : scales_(encoded +
                int64_t{blockIdx.x} * (kChunkValues * Format::kBits / 8 + 2 * kBlocksPerChunk)),
        codes_(scales_ + 2 * BlocksOf(count)),
        count_(count) {}

  __device__ bool Read(int i, const float (&)[4], float (&delta)[4]) const {
    constexpr unsigned kMask = (1U << Format::kBits) - 1U;
#pragma unroll
    for (int j = 0; j < 4; ++j) delta[j] = 0;
    if (i >= count_) return true;
    const auto scale_bits = static_cast<uint16_t>(LoadCodes<2>(scales_ + i / kBlockValues * 2, 2));
    unsigned long long codes = LoadCodes<kThreadBytes<Format::kBits>>(
        codes_ + i * Format::kBits / 8, CodeBytes<Format::kBits>(count_ - i));
    codes >>= i * Format::kBits % 8;
    if (Format::kBits == 1 && i + 4 < count_) codes &= 15U;  // Without the next thread's.
    if (count_ - i <= 4 && codes >> ((count_ - i) * Format::kBits) != 0) return false;
    if (scale_bits == 0) return codes == 0;
    if (scale_bits < kSmallestScaleBits || scale_bits > kLargestScaleBits) return false;
    const typename Format::Decoder decoder(Bf16ToFloat(scale_bits));
    bool is_good = true;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto code = static_cast<uint8_t>((codes >> (j * Format::kBits)) & kMask);
      if (i + j >= count_) continue;
      is_good = is_good && Format::IsCode(code);
      delta[j] = decoder.Value(code);
    }
    return is_good;
  }

 private:
  static constexpr int kBlocksPerChunk = kChunkValues / kBlockValues;
  const uint8_t* scales_;
  const uint8_t* codes_;
  int count_;
};

class Bf16Reader {
 public:
  static constexpr bool kIsExact = false;

  __device__ Bf16Reader(const uint8_t* encoded, int count)
      : codes_(encoded + int64_t{blockIdx.x} * kChunkValues * 2), count_(count) {}

  __device__ bool Read(int i, const float (&)[4], float (&delta)[4]) const {
    unsigned long long codes = 0;
    if (i < count_) codes = LoadCodes<8>(codes_ + i * 2, CodeBytes<16>(count_ - i));
    bool is_good = true;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      delta[j] = Bf16ToFloat(static_cast<uint16_t>(codes >> (16 * j)));
      is_good = is_good && isfinite(delta[j]);
    }
    return is_good;
  }

 private:
  const uint8_t* codes_;
  int count_;
};

// The exact one: gives targets, not differences.
class Fp32Reader {
 public:
  static constexpr bool kIsExact = true;

  __device__ Fp32Reader(const uint8_t* encoded, int count)
      : distances_(reinterpret_cast<const float*>(encoded) + int64_t{blockIdx.x} * kChunkValues),
        count_(count) {}

  __device__ bool Read(int i, const float (&base)[4], float (&target)[4]) const {
    float distance[4];
    Load4(distances_, i, count_, distance);
    bool is_good = true;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      target[j] = FloatFromOrdered(static_cast<int32_t>(
          static_cast<uint32_t>(OrderedFromFloat(base[j])) + __float_as_uint(distance[j])));
      is_good = is_good && isfinite(base[j]) && isfinite(target[j]);
    }
    return is_good;
  }

 private:
  const float* distances_;  // The bits of integers.
  int count_;
};

// --- Kernels -------------------------------------------------------------------------------------

struct LocalChunk {
  __device__ explicit LocalChunk(const MergeJob& job)
      : first(int64_t{blockIdx.x} * kChunkValues),
        count(ChunkCount(job.values)),
        alpha(job.alpha),
        beta(job.beta),
        local(job.local == nullptr ? nullptr : job.local + first),
        held(job.held == nullptr ? nullptr : job.held + first),
        keep(job.keep),
        weights(job.weights == nullptr
                    ? nullptr
                    : job.weights + (job.pieces == nullptr
                                         ? first
                                         : InArena(job.pieces, job.piece_count, first))) {}

  __device__ void Mix(int i, const float (&published)[4]) const {
    if (local == nullptr || i >= count) return;
    float mixed[4];
    if (held != nullptr) {
      float sent[4];
      Load4(local, i, count, mixed);
      Load4(held, i, count, sent);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const double in_flight = static_cast<double>(mixed[j]) - static_cast<double>(sent[j]);
        mixed[j] = static_cast<float>(static_cast<double>(published[j]) + keep * in_flight);
      }
    } else if (alpha == 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed[j] = published[j];
    } else {
      Load4(local, i, count, mixed);
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed[j] = alpha * mixed[j] + beta * published[j];
    }
    Store4(mixed, local, i, count);
    if (weights == nullptr) return;
    if (i + 4 <= count) {
      *reinterpret_cast<uint2*>(weights + i) =
          make_uint2(PackBf16(mixed[0], mixed[1]), PackBf16(mixed[2], mixed[3]));
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < count) weights[i + j] = __float2bfloat16_rn(mixed[j]);
    }
  }

  int64_t first;
  int count;
  float alpha;
  float beta;
  float* local;
  const float* held;
  double keep;
  __nv_bfloat16* weights;
};

template <typename Reader>
__global__ void __launch_bounds__(kCodecThreads) MergeChunk(const MergeJob job) {
  __shared__ int refused;
  const LocalChunk chunk(job);
  if (threadIdx.x == 0) refused = 0;
  __syncthreads();
  const Reader reader(job.encoded, chunk.count);
  float target[kCodecRounds][4];
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    float base[4];
    float delta[4];
    Load4(job.base + chunk.first, i, chunk.count, base);
    bool is_good = reader.Read(i, base, delta);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      target[k][j] = Reader::kIsExact ? delta[j] : base[j] - delta[j];
      is_good = is_good && (isfinite(target[k][j]) || i + j >= chunk.count);
    }
    if (!is_good) Refuse(job.refusal, i, &refused);
  }
  __syncthreads();
  if (refused != 0) return;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    Store4(target[k], job.published + chunk.first, i, chunk.count);
    chunk.Mix(i, target[k]);
  }
}

__global__ void __launch_bounds__(kCodecThreads) MixChunk(const MergeJob job) {
  const LocalChunk chunk(job);
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    float published[4];
    Load4(job.base + chunk.first, i, chunk.count, published);
    chunk.Mix(i, published);
  }
}

template <typename Reader>
__global__ void __launch_bounds__(kCodecThreads) FoldChunk(const FoldJob job) {
  __shared__ int refused;
  const int64_t first = int64_t{blockIdx.x} * kChunkValues;
  const int count = ChunkCount(job.values);
  if (threadIdx.x == 0) refused = 0;
  __syncthreads();
  const Reader reader(job.encoded, count);
  float sum[kCodecRounds][4];
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    float base[4] = {};
    float delta[4];
    if constexpr (Reader::kIsExact) Load4(job.base + first, i, count, base);
    Load4(job.residual + first, i, count, sum[k]);
    if (!reader.Read(i, base, delta)) Refuse(job.refusal, i, &refused);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j >= count) continue;
      double exact = static_cast<double>(delta[j]);
      if constexpr (Reader::kIsExact) exact = static_cast<double>(base[j]) - exact;
      sum[k][j] = static_cast<float>(static_cast<double>(sum[k][j]) + exact);
    }
  }
  __syncthreads();
  if (refused != 0) return;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    Store4(sum[k], job.residual + first, FirstOfRound(k), count);
  }
}

template <typename Job>
void LaunchChunks(void (*kernel)(Job), const Job& job, cudaStream_t stream) {
  Launch(kernel, dim3(static_cast<unsigned>(ChunksOf(job.values))), dim3(kCodecThreads), 0, stream,
         job);
}

// Calls use() with the type of the codec's reader.
template <typename Use>
void WithReader(DeviceCodec codec, Use use) {
  if (codec == DeviceCodec::kFp32) return use(std::type_identity<Fp32Reader>());
  if (codec == DeviceCodec::kBf16) return use(std::type_identity<Bf16Reader>());
  WithBlockFormat(codec,
                  [&](auto format) { use(std::type_identity<BlockReader<decltype(format)>>()); });
}

}  // namespace

void LaunchMerge(DeviceCodec codec, const MergeJob& job, cudaStream_t stream) {
  WithReader(codec, [&](auto reader) {
    LaunchChunks<const MergeJob>(MergeChunk<typename decltype(reader)::type>, job, stream);
  });
}

void LaunchMix(const MergeJob& job, cudaStream_t stream) {
  LaunchChunks<const MergeJob>(MixChunk, job, stream);
}

void LaunchFold(DeviceCodec codec, const FoldJob& job, cudaStream_t stream) {
  WithReader(codec, [&](auto reader) {
    LaunchChunks<const FoldJob>(FoldChunk<typename decltype(reader)::type>, job, stream);
  });
}

}  // namespace causeway::worker::cuda
