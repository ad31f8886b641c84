// Every kernel of a training step but attention's (attention.h). The rules of all of them:
//
// - Launch functions take device pointers and enqueue on the stream that they are given. They
//   neither allocate nor wait, so that they may be captured in a graph; what a replay changes is
//   read from device memory. A launch that fails shows in cudaGetLastError().
// - Activations and the weights that compute are bf16; statistics, losses and gradients of weights
//   are fp32; sums over everything are double. Arithmetic is fp32, rounded to bf16 where a tensor
//   is written.
// - Results have the same bits every time: launch shapes follow from the problem's shape, sums have
//   one order, there are no atomics.
// - Pointers are aligned to 16 bytes, and so are rows: widths and strides of bf16 are multiples of
//   kVectorValues, those of fp32 are multiples of 4. Offending calls end the program.
// - Buffers of one call do not overlap except where it says "in place" or "may be".
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "common/params/adamw.h"

namespace causeway::worker::cuda {

// bf16 values in 16 bytes: the model's width, MLP width and attention widths are multiples of it.
inline constexpr int64_t kVectorValues = 8;
// The widest row that the norms take.
inline constexpr int64_t kMaxNormWidth = 16384;
// The widest head that the rotary kernels take; even ones only.
inline constexpr int64_t kMaxRotaryHeadDim = 512;
// That of heads whose head_dim is no multiple of 16.
inline constexpr int64_t kMaxUnalignedRotaryHeadDim = 256;

// Where a backward pass leaves the fp32 gradients of weights: all of the arena in one array, or
// runs of it in buffers, of which some share their memory (staged_gradients.h).

// Immutable; owns no memory of the device.
class GradientPlaces {
 public:
  // The gradients from `begin` on in the arena, up to the next place, lie at `data`.
  struct Place {
    int64_t begin = 0;
    float* data = nullptr;
  };

  // The whole arena; null where no gradients are computed.
  explicit GradientPlaces(float* arena) : places_{{0, arena}} {}
  // In arena order, the first from 0 on.
  explicit GradientPlaces(std::vector<Place> places) : places_(std::move(places)) {}

  // Where the tensor at `offset` >= 0 in the arena has its gradient.
  float* At(int64_t offset) const {
    const auto after = std::ranges::upper_bound(places_, offset, {}, &Place::begin);
    const Place& place = *std::prev(after);
    return place.data + (offset - place.begin);
  }

 private:
  std::vector<Place> places_;
};

// Embeddings of tokens and of positions.

struct EmbeddingForwardArguments {
  int64_t tokens = 0;  // All windows together.
  int64_t length = 0;  // Tokens per window.
  int64_t width = 0;
  const int32_t* inputs = nullptr;           // [tokens]
  const __nv_bfloat16* embedding = nullptr;  // [vocabulary, width]
  const __nv_bfloat16* positions = nullptr;  // [at least length, width], or null.
  __nv_bfloat16* out = nullptr;              // [tokens, width]
};
void EmbeddingForward(const EmbeddingForwardArguments& arguments, cudaStream_t stream);

struct EmbeddingBackwardArguments {
  int64_t tokens = 0;
  int64_t width = 0;
  const int32_t* inputs = nullptr;      // [tokens]
  const int32_t* order = nullptr;       // [tokens], of TokenOrder.
  const __nv_bfloat16* dout = nullptr;  // [tokens, width]
  float* dembedding = nullptr;          // [vocabulary, width] +=; rows of other tokens stay.
  float* scratch = nullptr;             // EmbeddingBackwardScratch(tokens, width) values.
};
int64_t EmbeddingBackwardScratch(int64_t tokens, int64_t width);
void EmbeddingBackward(const EmbeddingBackwardArguments& arguments, cudaStream_t stream);

struct PositionsBackwardArguments {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t learned_positions = 0;  // At least length.
  int64_t width = 0;
  const __nv_bfloat16* dout = nullptr;  // [sequences, length, width]
  bool accumulate = false;              // Without, positions from length on become 0.
  float* dpositions = nullptr;          // [learned_positions, width]
};
void PositionsBackward(const PositionsBackwardArguments& arguments, cudaStream_t stream);

// The order in which the embedding's gradient adds up tokens: made on the host, where the tokens
// come from, while the device works on what came before.

// Not thread-safe.
class TokenOrder {
 public:
  explicit TokenOrder(int64_t vocabulary);

  // order = the places of `inputs`, sorted by token; those of one token ascend. Both have the same
  // size, below 2^31, and inputs lie in [0, vocabulary). Linear in tokens + vocabulary.
  void Sort(std::span<const int32_t> inputs, std::span<int32_t> order);

 private:
  std::vector<int32_t> next_;  // Per token: where its next place goes.
};

// RMSNorm and LayerNorm over rows of the residual stream, with the addition to the stream that
// comes before them.

struct NormForwardArguments {
  int64_t rows = 0;
  int64_t width = 0;  // At most kMaxNormWidth.
  float epsilon = 0;
  const __nv_bfloat16* x = nullptr;       // [rows, width]
  const __nv_bfloat16* addend = nullptr;  // [rows, width], or null.
  const __nv_bfloat16* weight = nullptr;  // [width]
  const __nv_bfloat16* bias = nullptr;    // [width] makes it LayerNorm; null: RMSNorm.
  __nv_bfloat16* x_out = nullptr;      // [rows, width] = x + addend, may be x; null if addend is.
  __nv_bfloat16* out = nullptr;        // [rows, width], the norm of x_out as it was rounded.
  float* inverse_deviation = nullptr;  // [rows], 1 / rms or 1 / deviation, for the backward pass.
  float* mean = nullptr;               // [rows], LayerNorm alone.
};
void NormForward(const NormForwardArguments& arguments, cudaStream_t stream);

struct NormBackwardArguments {
  int64_t rows = 0;
  int64_t width = 0;
  const __nv_bfloat16* dout = nullptr;       // [rows, width]
  const __nv_bfloat16* x = nullptr;          // [rows, width], the norm's input.
  const __nv_bfloat16* weight = nullptr;     // [width]
  const __nv_bfloat16* bias = nullptr;       // [width], or null: RMSNorm.
  const float* inverse_deviation = nullptr;  // Kept from the forward pass.
  const float* mean = nullptr;               // The same; LayerNorm alone.
  bool accumulate_dx = false;                // dx += instead of dx =.
  __nv_bfloat16* dx = nullptr;               // [rows, width]
  __nv_bfloat16* out = nullptr;              // [rows, width], the norm's output again, or null.
  bool accumulate_weight = false;            // dweight and dbias += instead of =.
  float* dweight = nullptr;                  // [width]
  float* dbias = nullptr;                    // [width], LayerNorm alone.
  float* scratch = nullptr;                  // NormBackwardScratch(...) values.
};
int64_t NormBackwardScratch(int64_t rows, int64_t width, bool layer_norm);
void NormBackward(const NormBackwardArguments& arguments, cudaStream_t stream);

// The work on queries and keys between projection and attention: optional RMSNorm per head, then
// the rotary embedding, which turns the pairs (i, i + head_dim / 2) by the angles of the position.

// A row of heads is [query_heads + kv_heads, head_dim], at the beginning of a longer one.
struct RotaryShape {
  int64_t tokens = 0;  // All windows together.
  int64_t length = 0;  // Tokens per window: token n has position n % length.
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                         // At most kMaxRotaryHeadDim.
  const __nv_bfloat16* query_weight = nullptr;  // [head_dim]; null: no norm.
  const __nv_bfloat16* key_weight = nullptr;    // The same.
  float epsilon = 0;
  const float* cosine = nullptr;  // [length, head_dim / 2]; null: nothing is turned.
  const float* sine = nullptr;    // The same.
};

struct RotaryForwardArguments {
  RotaryShape shape;
  const __nv_bfloat16* in = nullptr;
  int64_t in_stride = 0;         // Values from one token to the next.
  __nv_bfloat16* out = nullptr;  // May be `in`; only queries and keys are written.
  int64_t out_stride = 0;
};
void RotaryForward(const RotaryForwardArguments& arguments, cudaStream_t stream);

// The gradient of the same, in place.
struct RotaryBackwardArguments {
  RotaryShape shape;
  const __nv_bfloat16* raw = nullptr;  // `in` of the forward pass; may be null without norm.
  int64_t raw_stride = 0;
  __nv_bfloat16* dheads = nullptr;
  int64_t dheads_stride = 0;
  // With norm alone:
  bool accumulate_weight = false;
  float* dquery_weight = nullptr;  // [head_dim]
  float* dkey_weight = nullptr;    // [head_dim]
  float* scratch = nullptr;        // RotaryBackwardScratch(shape) values.
};
int64_t RotaryBackwardScratch(const RotaryShape& shape);
void RotaryBackward(const RotaryBackwardArguments& arguments, cudaStream_t stream);

// The MLP's activations.

// hidden [rows, width] = silu(gate) * up; gate_up is [rows, 2, width].
void SwigluForward(int64_t rows, int64_t width, const __nv_bfloat16* gate_up, __nv_bfloat16* hidden,
                   cudaStream_t stream);
// Replaces gate_up by its gradient. hidden gets the forward pass's output again; it may be dhidden,
// or null.
void SwigluBackward(int64_t rows, int64_t width, const __nv_bfloat16* dhidden,
                    __nv_bfloat16* gate_up, __nv_bfloat16* hidden, cudaStream_t stream);

// hidden = gelu(up), tanh approximation; [rows, width].
void GeluForward(int64_t rows, int64_t width, const __nv_bfloat16* up, __nv_bfloat16* hidden,
                 cudaStream_t stream);
// Replaces up by its gradient; hidden as above.
void GeluBackward(int64_t rows, int64_t width, const __nv_bfloat16* dhidden, __nv_bfloat16* up,
                  __nv_bfloat16* hidden, cudaStream_t stream);

// Biases of projections.

// values[r, :] += bias [width], for rows that are `stride` values apart.
void AddBias(int64_t rows, int64_t width, int64_t stride, const __nv_bfloat16* bias,
             __nv_bfloat16* values, cudaStream_t stream);

// dbias [width] = (or += with accumulate) the sum over the rows of dout, `stride` values apart.
// scratch: BiasBackwardScratch(rows, width) values.
int64_t BiasBackwardScratch(int64_t rows, int64_t width);
void BiasBackward(int64_t rows, int64_t width, int64_t stride, const __nv_bfloat16* dout,
                  bool accumulate, float* dbias, float* scratch, cudaStream_t stream);

// Cross entropy with z-loss, forward and backward in one.

// The targets of one micro-batch, on the device.
struct TargetCount {
  int32_t targets = 0;  // Those that are not negative.
  float factor = 0;     // gradient_scale / targets; 0 if there are none.
};
// Counts all targets of a micro-batch, before its first Classifier. total: below 2^31.
void CountTargets(int64_t total, const int32_t* targets, float gradient_scale, TargetCount* count,
                  cudaStream_t stream);

struct ClassifierArguments {
  int64_t rows = 0;        // Rows of this chunk.
  int64_t vocabulary = 0;  // Logits that count.
  int64_t stride = 0;      // Length of a row, with padding, whose values are never looked at.
  float z_loss = 0;
  bool gradient = false;
  // [rows, stride]; with `gradient`, replaced by d/dlogits of count->factor * (loss + z_loss *
  // log_sum_exp^2), which is 0 in the padding and in rows without a target.
  __nv_bfloat16* logits = nullptr;
  const int32_t* targets = nullptr;    // [rows], in [0, vocabulary), or negative: no target.
  const TargetCount* count = nullptr;  // Read with `gradient` alone.
  float* loss = nullptr;               // [rows], in nats; 0 without a target.
  float* log_sum_exp = nullptr;        // [rows]; 0 without a target.
};
void Classifier(const ClassifierArguments& arguments, cudaStream_t stream);

// Means over a step's micro-batches of means over their targets, in nats per token; on the device.
struct StepLoss {
  double total = 0;          // With z-loss.
  double cross_entropy = 0;  // Without.
  int64_t targets = 0;       // All together.
};
// sum = (or += with accumulate) weight * what a micro-batch of `rows` tokens cost.
void ReduceLoss(int64_t rows, const float* loss, const float* log_sum_exp, float z_loss,
                const TargetCount* count, double weight, bool accumulate, StepLoss* sum,
                cudaStream_t stream);

// The global norm of the gradient and what follows from it, without the host: a sum per GPU, then
// one norm of all sums.

// On the device; the update kernels read it.
struct GradientNorm {
  double norm = 0;     // Before clipping.
  float factor = 0;    // Multiplies the gradient: 1, or clip_norm / norm if that is less.
  int32_t finite = 0;  // 0: the update kernels change nothing.
};

// *sum = (or += with accumulate) the sum of the squares of `size` values, in double. scratch:
// SumOfSquaresScratch(size) doubles.
int64_t SumOfSquaresScratch(int64_t size);
void SumOfSquares(int64_t size, const float* values, bool accumulate, double* sum, double* scratch,
                  cudaStream_t stream);

// Makes the norm of the square root of the sum of `count` >= 1 sums, in their order. clip_norm <=
// 0: no clipping.
void FinishGradientNorm(int count, const double* sums, double clip_norm, GradientNorm* norm,
                        cudaStream_t stream);

// AdamW (common/params/adamw.h) on fp32 weights and moments, with a bf16 copy of the weights for
// the next forward pass: the bits of the CPU's update.

// A run of values that one block updates. Offsets are multiples of 8 values, and so is Muon's size.
struct OptimizerSlice {
  int64_t state = 0;       // Where it begins in the master weights and first moments.
  int64_t second = 0;      // AdamW: in the second moments.
  int64_t gradient = 0;    // In the gradients.
  int64_t weight = 0;      // In the bf16 weights.
  int64_t update = 0;      // Muon: in the updates.
  double shape = 1;        // Muon: sqrt(max(1, rows / cols)) of the matrix.
  float weight_decay = 0;  // AdamW: 0 for what does not decay.
  int32_t size = 0;
};
inline constexpr int64_t kSliceValues = 8192;

// Appends `size` values from the places of `first` on in slices of at most kSliceValues.
void AppendSlices(const OptimizerSlice& first, int64_t size, std::vector<OptimizerSlice>* slices);

struct AdamWArguments {
  int64_t count = 0;                       // Number of slices; they do not overlap.
  const OptimizerSlice* slices = nullptr;  // On the device, as all that follows.
  const AdamWStep<float>* step = nullptr;  // Constants of this step.
  const GradientNorm* norm = nullptr;      // Nothing changes unless it is finite.
  const float* gradient = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  __nv_bfloat16* weight = nullptr;  // master, rounded.
};
void AdamWUpdate(const AdamWArguments& arguments, cudaStream_t stream);

// Muon (worker/backend/cpu/optimizer.h) around its matrix products, for batches of equally shaped
// matrices:
//
//   MuonMomentum   M = momentum * M + G; update = bf16(G + momentum * M)
//   MuonNormalize  every matrix of the update is scaled to Frobenius norm 1
//   (the caller)   five times A = X X^T, P = b A + c A A, X = a X + P X: products with an addend
//   MuonUpdate     W -= lr * decay * W; W -= lr * shape * X
//
// The first and the last work on slices, so that a matrix may lie on several GPUs and be gathered
// in between.

// The constants of one step, on the device.
struct MuonConstants {
  float momentum = 0;
  float learning_rate = 0;
  float weight_decay = 0;
};

struct MuonArguments {
  int64_t count = 0;                         // Number of slices; they do not overlap.
  const OptimizerSlice* slices = nullptr;    // On the device, as all that follows.
  const MuonConstants* constants = nullptr;  // Constants of this step.
  const GradientNorm* norm = nullptr;        // Nothing but updates changes unless it is finite.
};
void MuonMomentum(const MuonArguments& arguments, const float* gradient, float* moment,
                  __nv_bfloat16* updates, cudaStream_t stream);
void MuonUpdate(const MuonArguments& arguments, const __nv_bfloat16* updates, float* master,
                __nv_bfloat16* weight, cudaStream_t stream);

// matrices [count, size] in place: each is multiplied by 1 / (its Frobenius norm + 1e-7). scratch:
// MuonNormalizeScratch(count, size) doubles.
int64_t MuonNormalizeScratch(int64_t count, int64_t size);
void MuonNormalize(int64_t count, int64_t size, __nv_bfloat16* matrices, double* scratch,
                   cudaStream_t stream);

// Casts and sums. `size` is any number here.

void CastToBf16(int64_t size, const float* values, __nv_bfloat16* out, cudaStream_t stream);
// sum += values.
void Add(int64_t size, const float* values, float* sum, cudaStream_t stream);

// Zeros in many short ranges of an array.

struct ClearedRange {
  int64_t begin = 0;
  int64_t size = 0;
};
// `ranges` [count] are on the device.
void ClearRanges(int64_t count, const ClearedRange* ranges, float* values, cudaStream_t stream);

// Values to measure with.

// Values spread evenly over [-scale, scale), the same ones for the same seed: products of equal
// values draw less power, and are faster, than those of a training run.
void FillRandom(int64_t size, uint32_t seed, float scale, __nv_bfloat16* out, cudaStream_t stream);
void FillRandom(int64_t size, uint32_t seed, float scale, float* out, cudaStream_t stream);

// Kernels that only measurements need.

// bytes: a multiple of 16; pointers are aligned to 16.
void CopyBytes(int64_t bytes, const void* from, void* to, cudaStream_t stream);

// mma.sync from registers alone, without a pause. Returns the floating-point operations that it
// enqueued; `sink` takes one value per block of blocks, which nobody reads.
int64_t MultiplyInRegisters(int blocks, int64_t iterations, float* sink, cudaStream_t stream);

}  // namespace causeway::worker::cuda
