#include "worker/backend/cuda/kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "worker/backend/cuda/kernels/attention_tiles.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;  // A grid's limit along x.
constexpr int64_t kMaxRowBlocks = 65535;                // Along y, of 128 rows each.
constexpr int64_t kMaxPasses = 65535;                   // Along z.
// Less than half of an A100's second-level cache, and a third of an H100's.
constexpr int64_t kCacheBytes = int64_t{16} << 20;

}  // namespace

const char* AttentionRefusal(const AttentionShape& shape) {
  if (shape.head_dim < 8 || shape.head_dim > 128 || shape.head_dim % 8 != 0) {
    return "attention on GPUs takes heads of 8 to 128 values, in multiples of 8: choose another "
           "model.head_dim, or train with --device=cpu";
  }
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    return "model.kv_heads must divide model.heads";
  }
  if (shape.length < 1 || shape.length > kMaxRowBlocks * 128) {
    return "attention on GPUs takes windows of 1 to 8388480 tokens: lower model.sequence_length";
  }
  if (shape.sequences < 1 || int64_t{shape.sequences} * shape.heads > kMaxBlocks) {
    return "too many windows at a time: lower train.micro_batch_sequences";
  }
  return nullptr;
}

int AttentionHeadsAtATime(const AttentionShape& shape, bool of_keys) {
  const int64_t sharing = shape.heads / shape.kv_heads;
  const int64_t columns = int64_t{shape.sequences} * (of_keys ? shape.kv_heads : shape.heads);
  int64_t at_a_time = shape.heads_at_a_time;
  if (at_a_time == 0) {
    // Two bf16 arrays: of one key head, or of all queries that share it.
    const int64_t bytes = 4 * int64_t{shape.length} * shape.head_dim * (of_keys ? sharing : 1);
    const int64_t together = of_keys ? 1 : sharing;  // Columns that read the same.
    const int64_t sets = columns / together;
    const int64_t fitting = std::max<int64_t>(1, kCacheBytes / bytes);
    const int64_t passes = (sets + fitting - 1) / fitting;
    at_a_time = together * ((sets + passes - 1) / passes);  // Passes of one size.
  }
  const int64_t least = (columns + kMaxPasses - 1) / kMaxPasses;
  return static_cast<int>(std::clamp(at_a_time, least, columns));
}

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
// A warp has two tiles of 16 rows, this far apart: so the warps have about the same work where the
// diagonal cuts a block.
constexpr int kTiles = 2;
constexpr int kTileDistance = 16 * kWarps;
static_assert(kTiles * kTileDistance == kAttentionBlockRows);

// Two tiles of 16 query rows of one warp, while it goes over the keys.
template <int kHeadDim, int kKeys>
struct ForwardWarp {
  float out[kTiles][kHeadDim / 8][4];
  float maximum[kTiles][2];  // Largest scores before scaling; rows lane / 4 and lane / 4 + 8.
  float sum[kTiles][2];      // This lane's share.
  int row[kTiles];           // The first one of a tile.
  const int32_t* starts;     // The sequence's document starts, or null.
  int length;
  float scale_log2;

  // scores = q k^T of keys from `first_key` on. With kMasked those that no row may see are left
  // out and all that a row may not see become -infinity.
  template <bool kMasked>
  __device__ __forceinline__ void Scores(const MatrixRows<kHeadDim>& q,
                                         const MatrixRows<kHeadDim>& k, int first_key,
                                         float (&scores)[kTiles][kKeys / 8][4]) const {
    Clear(scores);
#pragma unroll
    for (int inner = 0; inner < kHeadDim / 16; ++inner) {
      uint32_t left[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) LoadMatrixX4(left[m], q.At(m * kTileDistance, inner));
#pragma unroll
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        if (kMasked && !Sees(kTiles - 1, first_key + 16 * pair)) continue;
        uint32_t right[4];
        LoadMatrixX4(right, k.At(16 * pair, inner));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          if (kMasked && !Sees(m, first_key + 16 * pair)) continue;
          MmaBf16(scores[m][2 * pair], left[m], right[0], right[1]);
          MmaBf16(scores[m][2 * pair + 1], left[m], right[2], right[3]);
        }
      }
    }
    if constexpr (kMasked) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MaskKeys(scores[m], row[m], first_key, starts, length, -INFINITY);
      }
    }
  }

  // Turns scores into exp(scaled score - maximum) and brings what was summed before to the new
  // maximum.
  template <bool kMasked>
  __device__ __forceinline__ void Softmax(float (&scores)[kTiles][kKeys / 8][4]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = maximum[m][half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
        // A row that has seen no key yet has no maximum: its terms must be 0, not 0 / 0.
        const float shift = kMasked && largest == -INFINITY ? 0.0F : largest * scale_log2;
        const float correction = Exp2(maximum[m][half] * scale_log2 - shift);
        maximum[m][half] = largest;
        float terms = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = Exp2(scores[m][n][i] * scale_log2 - shift);
            terms += scores[m][n][i];
          }
        }
        sum[m][half] = sum[m][half] * correction + terms;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          out[m][n][2 * half] *= correction;
          out[m][n][2 * half + 1] *= correction;
        }
      }
    }
  }

  // out += probabilities v.
  template <bool kMasked>
  __device__ __forceinline__ void AddValues(const float (&probabilities)[kTiles][kKeys / 8][4],
                                            const MatrixRows<kHeadDim>& v, int first_key) {
#pragma unroll
    for (int inner = 0; inner < kKeys / 16; ++inner) {
      if (kMasked && !Sees(kTiles - 1, first_key + 16 * inner)) continue;
      uint32_t left[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        PackLeftOperand(left[m], probabilities[m][2 * inner], probabilities[m][2 * inner + 1]);
      }
#pragma unroll
      for (int pair = 0; pair < kHeadDim / 16; ++pair) {
        uint32_t right[4];
        LoadMatrixX4Transposed(right, v.At(16 * inner, pair));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          if (kMasked && !Sees(m, first_key + 16 * inner)) continue;
          MmaBf16(out[m][2 * pair], left[m], right[0], right[1]);
          MmaBf16(out[m][2 * pair + 1], left[m], right[2], right[3]);
        }
      }
    }
  }

  // Whether a row of tile m may see `key`, as far as causality goes.
  __device__ __forceinline__ bool Sees(int m, int key) const { return key <= row[m] + 15; }
};

template <int kHeadDim>
constexpr int kForwardKeys = kHeadDim <= 64 ? 128 : 64;

// One block per 128 queries of a head. Keys and values are each in shared memory once: values
// arrive while the scores are computed, the next keys while the values are added up.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2) ForwardKernel(AttentionKernelCall call) {
  constexpr int kKeys = kForwardKeys<kHeadDim>;
  using T = Tile<kHeadDim>;
  CAUSEWAY_DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const q_tile = shared;
  unsigned char* const k_tile = q_tile + kAttentionBlockRows * T::kRowBytes;
  unsigned char* const v_tile = k_tile + kKeys * T::kRowBytes;

  const int length = call.shape.length;
  const int head_dim = call.shape.head_dim;
  const QueryBlock block(call.shape);
  const int sequence = block.sequence;
  const int head = block.head;
  if (sequence >= call.shape.sequences) return;
  const int first_row = block.first_row;
  const int rows = block.rows;
  const int64_t stride = call.qkv_stride();
  const __nv_bfloat16* const q = call.qkv + call.Query(sequence, head) + first_row * stride;
  const __nv_bfloat16* const k = call.qkv + call.Key(sequence, block.kv_head);
  const __nv_bfloat16* const v = call.qkv + call.Value(sequence, block.kv_head);
  const int32_t* const starts = call.Starts(sequence);

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = UniformWarpIndex();
  ForwardWarp<kHeadDim, kKeys> state;
  state.scale_log2 = call.scale * kLog2OfE;
  state.starts = starts;
  state.length = length;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    state.row[m] = first_row + 16 * warp + m * kTileDistance;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.maximum[m][half] = -INFINITY;
      state.sum[m][half] = 0;
    }
  }
  Clear(state.out);
  const int first_tile = starts == nullptr ? 0 : starts[first_row] / kKeys;
  const int last_tile = (first_row + rows - 1) / kKeys;
  const int largest_start = starts == nullptr ? 0 : starts[first_row + rows - 1];

  const auto copy = [&](unsigned char* tile, const __nv_bfloat16* from, int n) {
    T::template Copy<kKeys, kThreads>(tile, from + static_cast<int64_t>(n) * kKeys * stride, stride,
                                      length - n * kKeys, head_dim);
    CommitCopies();
  };
  const auto q_rows = MatrixRows<kHeadDim>::Plain(q_tile, 16 * warp);
  const auto k_rows = MatrixRows<kHeadDim>::AsColumns(k_tile, 0);
  const auto v_rows = MatrixRows<kHeadDim>::Plain(v_tile, 0);
  const auto step = [&]<bool kMasked>(int n) {
    WaitCopies<0>();
    __syncthreads();  // The keys are there, and nobody needs the former values any more.
    copy(v_tile, v, n);
    float scores[kTiles][kKeys / 8][4];
    state.template Scores<kMasked>(q_rows, k_rows, n * kKeys, scores);
    WaitCopies<0>();
    __syncthreads();  // The same with keys and values exchanged.
    if (n > first_tile) copy(k_tile, k, n - 1);
    state.template Softmax<kMasked>(scores);
    state.template AddValues<kMasked>(scores, v_rows, n * kKeys);
  };

  T::template Copy<kAttentionBlockRows, kThreads>(q_tile, q, stride, rows, head_dim);
  copy(k_tile, k, last_tile);
  for (int n = last_tile; n >= first_tile; --n) {
    if ((n + 1) * kKeys - 1 > first_row || n * kKeys < largest_start) {
      step.template operator()<true>(n);
    } else {
      step.template operator()<false>(n);
    }
  }

  float* const log_sum_exp = call.log_sum_exp + call.Row(sequence, head);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      inverse[half] = 1.0F / sum;
      const int row = state.row[m] + lane / 4 + 8 * half;
      if (lane % 4 == 0 && row < length) {
        log_sum_exp[row] = state.maximum[m][half] * call.scale + logf(sum);
      }
    }
    // A warp's queries were read by this warp alone.
    T::PutAccumulators(q_tile, 16 * warp + m * kTileDistance, state.out[m], inverse);
  }
  __syncthreads();
  T::template Store<kAttentionBlockRows, kThreads>(
      q_tile, call.out + call.Out(sequence, head) + first_row * call.out_stride(),
      call.out_stride(), rows, head_dim);
}

template <int kHeadDim>
void LaunchForward(const AttentionKernelCall& call, cudaStream_t stream) {
  constexpr int kBytes =
      (kAttentionBlockRows + 2 * kForwardKeys<kHeadDim>)*Tile<kHeadDim>::kRowBytes;
  const AttentionShape& shape = call.shape;
  LaunchAttention(ForwardKernel<kHeadDim>, shape.sequences * shape.heads,
                  AttentionHeadsAtATime(shape, /*of_keys=*/false), shape.length, kThreads, kBytes,
                  stream, call);
}

}  // namespace

void AttentionForward(const AttentionCall& call, cudaStream_t stream) {
  DispatchHeadDim(call.shape, [&]<int kHeadDim>() {
    LaunchForward<kHeadDim>(AttentionKernelCall(call), stream);
  });
}

}  // namespace causeway::worker::cuda
