// The backward pass in two kernels, one over queries and one over keys. Each computes the scores
// again, which costs two products of seven but needs neither atomics nor partial sums in memory: a
// gradient is summed in the registers of the warp that writes it, in one order.
#include "worker/backend/cuda/kernels/attention_tiles.cuh"

namespace causeway::worker::cuda {
namespace {

// A warp holds two tiles of 16 rows, or one of wide heads: that is what the registers hold.
template <int kHeadDim>
constexpr int kTiles = kHeadDim <= 64 ? 2 : 1;
template <int kHeadDim>
constexpr int kWarps = kAttentionBlockRows / (16 * kTiles<kHeadDim>);
template <int kHeadDim>
constexpr int kThreads = 32 * kWarps<kHeadDim>;
template <int kHeadDim>
constexpr int kBlocksPerMultiprocessor = kHeadDim <= 64 ? 2 : 1;

// Rows that are in shared memory at a time of what a kernel goes over: keys and values, or queries
// and dout. While one such stage is worked on, the next arrives.
constexpr int kStageRows = 64;
template <int kHeadDim>
constexpr int kStageBytes = 2 * kStageRows* Tile<kHeadDim>::kRowBytes;
// Two stages have the place of the block's own two tiles, which lie there before and after.
static_assert(2 * kStageRows == kAttentionBlockRows);

// This warp's rows of a tile, as left operands of products over head_dim.
template <int kHeadDim>
__device__ __forceinline__ void LoadOwnRows(
    const unsigned char* tile, int first_row,
    uint32_t (&fragments)[kTiles<kHeadDim>][kHeadDim / 16][4]) {
  const auto rows = MatrixRows<kHeadDim>::Plain(tile, first_row);
#pragma unroll
  for (int m = 0; m < kTiles<kHeadDim>; ++m) {
#pragma unroll
    for (int inner = 0; inner < kHeadDim / 16; ++inner) {
      LoadMatrixX4(fragments[m][inner], rows.At(16 * m, inner));
    }
  }
}

// products [own rows, kColumns] = left right^T over head_dim, for rows of the stage from `row` on.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void Multiply(const uint32_t (&left)[kTiles<kHeadDim>][kHeadDim / 16][4],
                                         const MatrixRows<kHeadDim>& right, int row,
                                         float (&products)[kTiles<kHeadDim>][kColumns / 8][4]) {
  Clear(products);
#pragma unroll
  for (int inner = 0; inner < kHeadDim / 16; ++inner) {
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      uint32_t fragment[4];
      LoadMatrixX4(fragment, right.At(row + 16 * pair, inner));
#pragma unroll
      for (int m = 0; m < kTiles<kHeadDim>; ++m) {
        MmaBf16(products[m][2 * pair], left[m][inner], fragment[0], fragment[1]);
        MmaBf16(products[m][2 * pair + 1], left[m][inner], fragment[2], fragment[3]);
      }
    }
  }
}

// sums [own rows, head_dim] += left [own rows, kColumns] right, for rows of the stage from `row`
// on.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void MultiplyAdd(const float (&left)[kTiles<kHeadDim>][kColumns / 8][4],
                                            const MatrixRows<kHeadDim>& right, int row,
                                            float (&sums)[kTiles<kHeadDim>][kHeadDim / 8][4]) {
#pragma unroll
  for (int inner = 0; inner < kColumns / 16; ++inner) {
    uint32_t fragments[kTiles<kHeadDim>][4];
#pragma unroll
    for (int m = 0; m < kTiles<kHeadDim>; ++m) {
      PackLeftOperand(fragments[m], left[m][2 * inner], left[m][2 * inner + 1]);
    }
#pragma unroll
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t fragment[4];
      LoadMatrixX4Transposed(fragment, right.At(row + 16 * inner, pair));
#pragma unroll
      for (int m = 0; m < kTiles<kHeadDim>; ++m) {
        MmaBf16(sums[m][2 * pair], fragments[m], fragment[0], fragment[1]);
        MmaBf16(sums[m][2 * pair + 1], fragments[m], fragment[2], fragment[3]);
      }
    }
  }
}

// The sums over this block's rows of dout * out, for this kernel in shared memory and for the next
// one in call.delta. Equally many neighbouring threads share each row.
template <int kHeadDim>
__device__ __forceinline__ void ComputeDelta(const unsigned char* dout_tile,
                                             const __nv_bfloat16* out, int64_t stride, int rows,
                                             int head_dim, float* shared, float* global) {
  constexpr int kThreadsPerRow = kThreads<kHeadDim> / kAttentionBlockRows;
  const int row = static_cast<int>(threadIdx.x) / kThreadsPerRow;
  float sum = 0;
  for (int chunk = static_cast<int>(threadIdx.x) % kThreadsPerRow; chunk < head_dim / 8;
       chunk += kThreadsPerRow) {
    if (row >= rows) break;
    const uint4 a = *reinterpret_cast<const uint4*>(out + row * stride + chunk * 8);
    const uint4 b = *reinterpret_cast<const uint4*>(dout_tile + Tile<kHeadDim>::Offset(row, chunk));
    sum += DotBf16(a.x, b.x);
    sum += DotBf16(a.y, b.y);
    sum += DotBf16(a.z, b.z);
    sum += DotBf16(a.w, b.w);
  }
#pragma unroll
  for (int bits = kThreadsPerRow / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, bits);
  }
  if (static_cast<int>(threadIdx.x) % kThreadsPerRow != 0) return;
  shared[row] = sum;
  if (row < rows) global[row] = sum;
}

// dq of 128 queries of a head, going over the keys that they see.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads<kHeadDim>, kBlocksPerMultiprocessor<kHeadDim>)
    QueryGradientKernel(AttentionKernelCall call) {
  constexpr int kM = kTiles<kHeadDim>;
  constexpr int kColumns = 32;  // Keys at a time.
  using T = Tile<kHeadDim>;
  using Rows = MatrixRows<kHeadDim>;
  CAUSEWAY_DYNAMIC_SHARED(unsigned char, shared);
  float* const delta_rows = reinterpret_cast<float*>(shared + 2 * kStageBytes<kHeadDim>);

  const int length = call.shape.length;
  const int head_dim = call.shape.head_dim;
  const QueryBlock block(call.shape);
  const int sequence = block.sequence;
  const int head = block.head;
  if (sequence >= call.shape.sequences) return;
  const int first_row = block.first_row;
  const int rows = block.rows;
  const int64_t stride = call.qkv_stride();
  const int64_t out_stride = call.out_stride();
  const __nv_bfloat16* const k = call.qkv + call.Key(sequence, block.kv_head);
  const __nv_bfloat16* const v = call.qkv + call.Value(sequence, block.kv_head);
  const int32_t* const starts = call.Starts(sequence);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int own_row = UniformWarpIndex() * 16 * kM;  // Row in the block.

  uint32_t q[kM][kHeadDim / 16][4];
  uint32_t dout[kM][kHeadDim / 16][4];
  float dq[kM][kHeadDim / 8][4];
  float log_sum_exp[kM][2];  // In units of the exponent of 2.
  float delta[kM][2];
  {
    unsigned char* const dout_tile = shared + kStageBytes<kHeadDim>;
    const int64_t out_at = call.Out(sequence, head) + first_row * out_stride;
    T::template Copy<kAttentionBlockRows, kThreads<kHeadDim>>(
        shared, call.qkv + call.Query(sequence, head) + first_row * stride, stride, rows, head_dim);
    T::template Copy<kAttentionBlockRows, kThreads<kHeadDim>>(dout_tile, call.dout + out_at,
                                                              out_stride, rows, head_dim);
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    const int64_t row_at = call.Row(sequence, head) + first_row;
    ComputeDelta<kHeadDim>(dout_tile, call.out + out_at, out_stride, rows, head_dim, delta_rows,
                           call.delta + row_at);
    LoadOwnRows<kHeadDim>(shared, own_row, q);
    LoadOwnRows<kHeadDim>(dout_tile, own_row, dout);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_row + 16 * m + 8 * half + lane / 4;
        delta[m][half] = delta_rows[row];
        log_sum_exp[m][half] = row < rows ? call.log_sum_exp[row_at + row] * kLog2OfE : 0.0F;
      }
    }
  }
  Clear(dq);

  const float scale_log2 = call.scale * kLog2OfE;
  const int first_query = first_row + own_row;
  const int last_query = first_query + 16 * kM - 1;
  const int largest_start = starts == nullptr ? 0 : starts[min(last_query, length - 1)];
  const int first_stage = starts == nullptr ? 0 : starts[first_row] / kStageRows;
  const int last_stage = (first_row + rows - 1) / kStageRows;
  const auto copy = [&](int stage) {
    unsigned char* const tile = shared + stage % 2 * kStageBytes<kHeadDim>;
    const int64_t at = static_cast<int64_t>(stage) * kStageRows * stride;
    const int present = length - stage * kStageRows;
    T::template Copy<kStageRows, kThreads<kHeadDim>>(tile, k + at, stride, present, head_dim);
    T::template Copy<kStageRows, kThreads<kHeadDim>>(tile + kStageBytes<kHeadDim> / 2, v + at,
                                                     stride, present, head_dim);
    CommitCopies();
  };
  copy(first_stage);
  for (int stage = first_stage; stage <= last_stage; ++stage) {
    WaitCopies<0>();
    __syncthreads();  // The stage is there, and nobody needs the one before any more.
    if (stage < last_stage) copy(stage + 1);
    const unsigned char* const k_tile = shared + stage % 2 * kStageBytes<kHeadDim>;
    const unsigned char* const v_tile = k_tile + kStageBytes<kHeadDim> / 2;
    const Rows k_columns = Rows::AsColumns(k_tile, 0);
    const Rows v_columns = Rows::AsColumns(v_tile, 0);
    const Rows k_rows = Rows::Plain(k_tile, 0);
#pragma unroll 1
    for (int row = 0; row < kStageRows; row += kColumns) {
      const int first_key = stage * kStageRows + row;
      if (first_key > last_query) break;
      float p[kM][kColumns / 8][4];
      Multiply<kHeadDim, kColumns>(q, k_columns, row, p);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] = Exp2(p[m][n][i] * scale_log2 - log_sum_exp[m][i / 2]);
          }
        }
      }
      if (first_key + kColumns - 1 > first_query || first_key < largest_start) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MaskKeys(p[m], first_query + 16 * m, first_key, starts, length, 0);
        }
      }
      float ds[kM][kColumns / 8][4];
      Multiply<kHeadDim, kColumns>(dout, v_columns, row, ds);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta[m][i / 2]);
          }
        }
      }
      MultiplyAdd<kHeadDim, kColumns>(ds, k_rows, row, dq);
    }
  }

  __syncthreads();
  const float factors[2] = {call.scale, call.scale};
#pragma unroll
  for (int m = 0; m < kM; ++m) T::PutAccumulators(shared, own_row + 16 * m, dq[m], factors);
  __syncthreads();
  T::template Store<kAttentionBlockRows, kThreads<kHeadDim>>(
      shared, call.dqkv + call.Query(sequence, head) + first_row * stride, stride, rows, head_dim);
}

// A stage's queries for the pass over keys, beside q and dout.
struct QueryStage {
  float log_sum_exp[kStageRows];
  float delta[kStageRows];
  int32_t start[kStageRows];
};

// dk and dv of 128 keys of a key head, going over the queries that see them, of one head of the
// group after the other. Products are transposed: a warp's rows are keys, so that probabilities and
// the scores' gradients go from accumulators into the next product without leaving its registers.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads<kHeadDim>, kBlocksPerMultiprocessor<kHeadDim>)
    KeyGradientKernel(AttentionKernelCall call) {
  constexpr int kM = kTiles<kHeadDim>;
  constexpr int kColumns = 16;  // Queries at a time.
  using T = Tile<kHeadDim>;
  using Rows = MatrixRows<kHeadDim>;
  CAUSEWAY_DYNAMIC_SHARED(unsigned char, shared);
  QueryStage* const query_stages =
      reinterpret_cast<QueryStage*>(shared + 2 * kStageBytes<kHeadDim>);

  const int length = call.shape.length;
  const int head_dim = call.shape.head_dim;
  const int sequence = BlockColumn() / call.shape.kv_heads;
  const int kv_head = BlockColumn() % call.shape.kv_heads;
  if (sequence >= call.shape.sequences) return;
  const int group = call.shape.heads / call.shape.kv_heads;
  const int first_row = static_cast<int>(blockIdx.y) * kAttentionBlockRows;
  const int rows = min(kAttentionBlockRows, length - first_row);
  const int64_t stride = call.qkv_stride();
  const int64_t out_stride = call.out_stride();
  const int32_t* const starts = call.Starts(sequence);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int own_row = UniformWarpIndex() * 16 * kM;  // Row in the block.

  uint32_t k[kM][kHeadDim / 16][4];
  uint32_t v[kM][kHeadDim / 16][4];
  T::template Copy<kAttentionBlockRows, kThreads<kHeadDim>>(
      shared, call.qkv + call.Key(sequence, kv_head) + first_row * stride, stride, rows, head_dim);
  T::template Copy<kAttentionBlockRows, kThreads<kHeadDim>>(
      shared + kStageBytes<kHeadDim>, call.qkv + call.Value(sequence, kv_head) + first_row * stride,
      stride, rows, head_dim);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  LoadOwnRows<kHeadDim>(shared, own_row, k);
  LoadOwnRows<kHeadDim>(shared + kStageBytes<kHeadDim>, own_row, v);
  __syncthreads();
  float dk[kM][kHeadDim / 8][4];
  float dv[kM][kHeadDim / 8][4];
  Clear(dk);
  Clear(dv);

  const float scale_log2 = call.scale * kLog2OfE;
  const int first_key = first_row + own_row;
  const int last_key = first_key + 16 * kM - 1;
  // The stages of queries that see one of the block's keys: as documents follow each other, there
  // is a last one.
  const int first_stage = first_row / kStageRows;
  int end_stage = (length + kStageRows - 1) / kStageRows;
  if (starts != nullptr) {
    int low = first_stage + 1;
    while (low < end_stage) {
      const int middle = (low + end_stage) / 2;
      if (starts[middle * kStageRows] > first_row + rows - 1) {
        end_stage = middle;
      } else {
        low = middle + 1;
      }
    }
  }
  const int stages = end_stage - first_stage;  // Stages per head.
  const auto copy = [&](int index) {
    const int head = kv_head * group + index / stages;
    const int first_query = (first_stage + index % stages) * kStageRows;
    const int present = length - first_query;
    unsigned char* const tile = shared + index % 2 * kStageBytes<kHeadDim>;
    T::template Copy<kStageRows, kThreads<kHeadDim>>(
        tile, call.qkv + call.Query(sequence, head) + first_query * stride, stride, present,
        head_dim);
    T::template Copy<kStageRows, kThreads<kHeadDim>>(
        tile + kStageBytes<kHeadDim> / 2,
        call.dout + call.Out(sequence, head) + first_query * out_stride, out_stride, present,
        head_dim);
    // Queries past the end have q = dout = 0: whatever their probabilities, they add nothing.
    QueryStage& query = query_stages[index % 2];
    const int row = static_cast<int>(threadIdx.x) % kStageRows;
    const int64_t at = call.Row(sequence, head) + first_query + row;
    if (threadIdx.x < kStageRows) {
      CopyAsync4(&query.log_sum_exp[row], call.log_sum_exp + at, row < present);
      if (starts != nullptr) {
        CopyAsync4(&query.start[row], starts + first_query + row, row < present);
      }
    } else if (threadIdx.x < 2 * kStageRows) {
      CopyAsync4(&query.delta[row], call.delta + at, row < present);
    }
    CommitCopies();
  };
  copy(0);
  for (int index = 0; index < group * stages; ++index) {
    WaitCopies<0>();
    __syncthreads();  // The stage is there, and nobody needs the one before any more.
    if (index + 1 < group * stages) copy(index + 1);
    const int stage_query = (first_stage + index % stages) * kStageRows;
    const unsigned char* const q_tile = shared + index % 2 * kStageBytes<kHeadDim>;
    const unsigned char* const dout_tile = q_tile + kStageBytes<kHeadDim> / 2;
    const QueryStage& query = query_stages[index % 2];
    const Rows q_columns = Rows::AsColumns(q_tile, 0);
    const Rows dout_columns = Rows::AsColumns(dout_tile, 0);
    const Rows q_rows = Rows::Plain(q_tile, 0);
    const Rows dout_rows = Rows::Plain(dout_tile, 0);
#pragma unroll 1
    for (int row = 0; row < kStageRows; row += kColumns) {
      const int first_query = stage_query + row;
      if (first_query >= length) break;
      if (first_query + kColumns - 1 < first_key) continue;
      float p[kM][kColumns / 8][4];
      Multiply<kHeadDim, kColumns>(k, q_columns, row, p);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = row + 8 * n + lane % 4 * 2;
        const float2 log_sum_exp = *reinterpret_cast<const float2*>(&query.log_sum_exp[column]);
        const float shift[2] = {log_sum_exp.x * kLog2OfE, log_sum_exp.y * kLog2OfE};
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] = Exp2(p[m][n][i] * scale_log2 - shift[i % 2]);
          }
        }
      }
      const int last_present = min(row + kColumns, length - stage_query) - 1;
      if (first_query < last_key || (starts != nullptr && query.start[last_present] > first_key)) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int column = row + 8 * n + lane % 4 * 2 + i;
            const int start = starts == nullptr ? 0 : query.start[column];
#pragma unroll
            for (int m = 0; m < kM; ++m) {
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const int key = first_key + 16 * m + 8 * half + lane / 4;
                if (key > stage_query + column || key < start) p[m][n][2 * half + i] = 0;
              }
            }
          }
        }
      }
      MultiplyAdd<kHeadDim, kColumns>(p, dout_rows, row, dv);
      float ds[kM][kColumns / 8][4];
      Multiply<kHeadDim, kColumns>(v, dout_columns, row, ds);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = row + 8 * n + lane % 4 * 2;
        const float2 delta = *reinterpret_cast<const float2*>(&query.delta[column]);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - (i % 2 == 0 ? delta.x : delta.y));
          }
        }
      }
      MultiplyAdd<kHeadDim, kColumns>(ds, q_rows, row, dk);
    }
  }

  __syncthreads();
  const float dk_factors[2] = {call.scale, call.scale};
  const float dv_factors[2] = {1.0F, 1.0F};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    T::PutAccumulators(shared, own_row + 16 * m, dk[m], dk_factors);
    T::PutAccumulators(shared + kStageBytes<kHeadDim>, own_row + 16 * m, dv[m], dv_factors);
  }
  __syncthreads();
  T::template Store<kAttentionBlockRows, kThreads<kHeadDim>>(
      shared, call.dqkv + call.Key(sequence, kv_head) + first_row * stride, stride, rows, head_dim);
  T::template Store<kAttentionBlockRows, kThreads<kHeadDim>>(
      shared + kStageBytes<kHeadDim>,
      call.dqkv + call.Value(sequence, kv_head) + first_row * stride, stride, rows, head_dim);
}

template <int kHeadDim>
void LaunchBackward(const AttentionKernelCall& call, cudaStream_t stream) {
  constexpr int kTiles = 2 * kStageBytes<kHeadDim>;
  const AttentionShape& shape = call.shape;
  LaunchAttention(QueryGradientKernel<kHeadDim>, shape.sequences * shape.heads,
                  AttentionHeadsAtATime(shape, /*of_keys=*/false), shape.length, kThreads<kHeadDim>,
                  kTiles + kAttentionBlockRows * sizeof(float), stream, call);
  LaunchAttention(KeyGradientKernel<kHeadDim>, shape.sequences * shape.kv_heads,
                  AttentionHeadsAtATime(shape, /*of_keys=*/true), shape.length, kThreads<kHeadDim>,
                  kTiles + 2 * sizeof(QueryStage), stream, call);
}

}  // namespace

void AttentionBackward(const AttentionCall& call, cudaStream_t stream) {
  DispatchHeadDim(call.shape, [&]<int kHeadDim>() {
    LaunchBackward<kHeadDim>(AttentionKernelCall(call), stream);
  });
}

}  // namespace causeway::worker::cuda
