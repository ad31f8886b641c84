// XXH3-64 of long inputs (seed 0, the default secret). The input is a run of blocks of 16 stripes
// of 64 bytes. Within a block, what the stripes add to the eight accumulators can be added up in
// any order: all but one warp do that, a block of the input for every four threads. Between blocks
// the accumulators are scrambled, one block after the other: the last warp does that for the blocks
// that the others have just been through.
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {
namespace {

using Word = unsigned long long;

// The words of the secret at every multiple of 8 bytes; those from byte 121 on, for the last
// stripe; those from byte 11 on, for the end.
__constant__ unsigned long long kSecret[24] = {
    0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
    0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL, 0x4c263a81e69035e0ULL,
    0xcb00c391bb52283cULL, 0xa32e531b8b65d088ULL, 0x4ef90da297486471ULL, 0xd8acdea946ef1938ULL,
    0x3f349ce33f76faa8ULL, 0x1d4f0bc7c7bbdcf9ULL, 0x3159b4cd4be0518aULL, 0x647378d9c97e9fc8ULL,
    0xc3ebd33483acc5eaULL, 0xeb6313faffa081c5ULL, 0x49daf0b751dd0d17ULL, 0x9e68d429265516d3ULL,
    0xfca1477d58be162bULL, 0xce31d07ad1b8f88fULL, 0x280416958f3acb45ULL, 0x7e404bbbcafbd7afULL};
__constant__ unsigned long long kLastSecret[8] = {
    0xea647378d9c97e9fULL, 0xc5c3ebd33483acc5ULL, 0x17eb6313faffa081ULL, 0xd349daf0b751dd0dULL,
    0x2b9e68d429265516ULL, 0x8ffca1477d58be16ULL, 0x45ce31d07ad1b8f8ULL, 0xaf280416958f3acbULL};
__constant__ unsigned long long kMergeSecret[8] = {
    0x6dd4de1cad21f72cULL, 0xa44072db979083e9ULL, 0xe679cb1f67b3b7a4ULL, 0xd05a8278e5c0cc4eULL,
    0x4608b82172ffcc7dULL, 0x9035e08e2443f774ULL, 0x52283c4c263a81e6ULL, 0x65d088cb00c391bbULL};

constexpr Word kPrime32_1 = 0x9e3779b1;
constexpr Word kPrime64_1 = 0x9e3779b185ebca87;
constexpr Word kPrimeEnd = 0x165667919e3779f9;

constexpr int kLanes = 8;
constexpr int kStripeBytes = 64;
constexpr int kBlockStripes = 16;
constexpr int kBlockThreads = kLanes / 2;  // Each has two neighbouring lanes.
constexpr int kAdders = 256;
constexpr int kThreads = kAdders + kWarpSize;
constexpr int kBlocksAtOnce = kAdders / kBlockThreads;
constexpr int kScrambleSecret = 16;

__device__ Word InitialAccumulator(int lane) {
  switch (lane) {
    case 0:
      return 0xc2b2ae3d;
    case 1:
      return 0x9e3779b185ebca87;
    case 2:
      return 0xc2b2ae3d27d4eb4f;
    case 3:
      return 0x165667b19e3779f9;
    case 4:
      return 0x85ebca77c2b2ae63;
    case 5:
      return 0x85ebca77;
    case 6:
      return 0x27d4eb2f165667c5;
    default:
      return 0x9e3779b1;
  }
}

__device__ Word Product(Word key) { return (key & 0xffffffffU) * (key >> 32); }

__device__ Word Fold(Word a, Word b) { return a * b ^ __umul64hi(a, b); }

// The end: in the first lane; all lanes of the warp call it with their accumulators.
__device__ Word Finish(Word accumulator, int64_t bytes) {
  Word result = static_cast<Word>(bytes) * kPrime64_1;
  for (int i = 0; i < kLanes; i += 2) {
    const Word a = __shfl_sync(kFullWarp, accumulator, i) ^ kMergeSecret[i];
    const Word b = __shfl_sync(kFullWarp, accumulator, i + 1) ^ kMergeSecret[i + 1];
    result += Fold(a, b);
  }
  result ^= result >> 37;
  result *= kPrimeEnd;
  return result ^ result >> 32;
}

__global__ void __launch_bounds__(kThreads)
    HashLeaves(const void* memory, const HashLeaf* leaves, Word* out) {
  __shared__ Word secret[kBlockStripes + kLanes];
  __shared__ Word sums[2][kBlocksAtOnce][kLanes];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kBlockStripes + kLanes) secret[thread] = kSecret[thread];
  __syncthreads();
  const HashLeaf leaf = leaves[blockIdx.x];
  const auto* const bytes = static_cast<const unsigned char*>(memory) + leaf.offset;
  const int64_t stripes = leaf.bytes / kStripeBytes - 1;  // But for the last, which is special.
  const int64_t whole_blocks = stripes / kBlockStripes;
  const int64_t blocks = (stripes + kBlockStripes - 1) / kBlockStripes;
  const int64_t rounds = (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const int lane = thread % kLanes;  // The last warp's four groups of threads do the same.
  Word accumulator = InitialAccumulator(lane);
  for (int64_t round = 0; round <= rounds; ++round) {
    if (thread < kAdders && round < rounds) {
      const int place = thread / kBlockThreads;
      const int even = thread % kBlockThreads * 2;
      const int64_t first = (round * kBlocksAtOnce + place) * kBlockStripes;
      Word sum_even = 0;
      Word sum_odd = 0;
      for (int i = 0; i < kBlockStripes && first + i < stripes; ++i) {
        const auto data = *reinterpret_cast<const ulonglong2*>(
            bytes + (first + i) * kStripeBytes + even * static_cast<int>(sizeof(Word)));
        sum_even += data.y + Product(data.x ^ secret[i + even]);
        sum_odd += data.x + Product(data.y ^ secret[i + even + 1]);
      }
      sums[round % 2][place][even] = sum_even;
      sums[round % 2][place][even + 1] = sum_odd;
    } else if (thread >= kAdders && round > 0) {
      const int64_t first = (round - 1) * kBlocksAtOnce;
      for (int i = 0; i < kBlocksAtOnce && first + i < blocks; ++i) {
        accumulator += sums[(round - 1) % 2][i][lane];
        if (first + i < whole_blocks) {
          accumulator =
              (accumulator ^ accumulator >> 47 ^ secret[kScrambleSecret + lane]) * kPrime32_1;
        }
      }
    }
    __syncthreads();
  }
  if (thread < kAdders) return;
  const auto* const last = reinterpret_cast<const Word*>(bytes + leaf.bytes - kStripeBytes);
  accumulator += last[lane ^ 1] + Product(last[lane] ^ kLastSecret[lane]);
  const Word hash = Finish(accumulator, leaf.bytes);
  if (thread == kAdders) out[blockIdx.x] = hash;
}

}  // namespace

void LaunchLeafHashes(const void* memory, const HashLeaf* leaves, int64_t count,
                      unsigned long long* out, cudaStream_t stream) {
  Launch(HashLeaves, dim3(static_cast<unsigned>(count)), dim3(kThreads), 0, stream, memory, leaves,
         out);
}

}  // namespace causeway::worker::cuda
