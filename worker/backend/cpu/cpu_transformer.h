// The decoder-only transformer on CPU cores: explicit forward and backward passes, no autograd.
//
//   x = embedding[token]
//   per block:  x += o_proj(attention(rope(qk_norm(qkv_proj(rms_norm(x))))))
//               x += down_proj(activation(gate_up_proj(rms_norm(x))))
//   logits = head(rms_norm(x))
//
// Where the model says so, projections have biases, LayerNorm takes RMSNorm's place, and a learned
// embedding of positions RoPE's.
//
// Parameters and gradients are arenas in the layout of the FragmentPlan, owned by the caller, best
// as AlignedVector (large pages are worth 5 % at 124M parameters). What the backward pass needs
// from the forward pass is kept per block: the residual stream before each norm, the rotated
// queries, keys and values, attention's output with its log-sum-exp, and the MLP's input to the
// activation. Norm outputs, the hidden layer and attention's probabilities are computed again.
// Logits exist for a chunk of tokens at a time and are overwritten by their gradient.
//
// Work is cut into tasks by shape alone and every sum has one order: the result has the same bits
// on any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/attention.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/scratch.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker {

// Means over the tokens that have a target, in nats per token.
struct TokenLoss {
  double total = 0;          // Cross entropy and z-loss: what the gradient is of.
  double cross_entropy = 0;  // Alone.
  int64_t tokens = 0;        // That had a target.
};

// T is float or double (for tests). Not thread-safe; uses the pool from the calling thread.
template <typename T>
class CpuTransformer {
 public:
  // `model` must be complete (run_config.h) and `plan` be made from it. Allocates all that any
  // later call needs but for tasks' ThreadScratch, for up to micro_batch_sequences windows of
  // model.sequence_length tokens. `pool` must outlive this.
  CpuTransformer(const v1::ModelConfig& model, const FragmentPlan& plan, int micro_batch_sequences,
                 ThreadPool* pool);
  CpuTransformer(const CpuTransformer&) = delete;
  CpuTransformer& operator=(const CpuTransformer&) = delete;

  // One micro-batch. inputs and targets are [sequences, sequence_length], 1 <= sequences <=
  // micro_batch_sequences; inputs lie in [0, vocabulary_size), targets too, or are negative: such
  // a position has no loss, and the mean is over the others of this call (0 if there are none).
  //
  // With document_starts, of the inputs' shape, a position attends to no token before the one that
  // the value names: the place in its window where its document begins. Values are at most the
  // position, and the same for all positions of a document. Without, to all tokens before it.
  //
  // gradients = gradient_scale * d(total loss) / d(parameters), or += with accumulate. To
  // accumulate k micro-batches of one batch, pass 1 / k and accumulate = false the first time.
  // Without accumulate everything is overwritten; alignment gaps become zeros and stay so.
  // Tokens out of range and spans of a wrong length end the program: the data is checked when it
  // is opened.
  TokenLoss ForwardBackward(std::span<const T> parameters, std::span<const int32_t> inputs,
                            std::span<const int32_t> targets, T gradient_scale, bool accumulate,
                            std::span<T> gradients, std::span<const int32_t> document_starts = {});

  // The mean cross entropy of the same, forward only.
  double Loss(std::span<const T> parameters, std::span<const int32_t> inputs,
              std::span<const int32_t> targets, std::span<const int32_t> document_starts = {});

  // Predicts what follows `tokens` (1 .. sequence_length of them): logits of [vocabulary_size].
  void Logits(std::span<const T> parameters, std::span<const int32_t> tokens,
              std::span<T> last_position_logits);

  int64_t sequence_length() const { return shape_.length; }
  int micro_batch_sequences() const { return max_sequences_; }

  // Seconds since the construction, by kind; the caller may add to them.
  KernelSeconds& kernel_seconds() { return kernel_seconds_; }

 private:
  // Rows per task of the element-wise passes, and per partial sum of the norms' weight gradients.
  // Part of the result's bits.
  static constexpr int64_t kRowsPerTask = 32;

  // Kept from the forward pass, per block.
  struct BlockActivations {
    AlignedVector<T> attention_input;  // [N, width], the residual stream before the norm
    AlignedVector<T> attention_rms;    // [N]
    AlignedVector<T> qkv;              // [N, heads + 2 kv_heads, head_dim], rotated
    AlignedVector<T> raw_qk;           // [N, heads + kv_heads, head_dim] before qk_norm, or empty
    AlignedVector<T> qk_rms;           // [N, heads + kv_heads], or empty
    AlignedVector<T> attention;        // [N, heads, head_dim]
    AlignedVector<T> log_sum_exp;      // [sequences, heads, length]
    AlignedVector<T> mlp_input;        // [N, width], the residual stream before the norm
    AlignedVector<T> mlp_rms;          // [N]
    AlignedVector<T> pre_activation;   // [N, 2, mlp_width] gate, up; or [N, mlp_width]
  };

  // The forward pass up to the final norm, whose output is left in normed_. Takes `gradients` and
  // `accumulate` for the passes that follow.
  void Forward(std::span<const T> parameters, std::span<const int32_t> inputs, int64_t length,
               T* gradients = nullptr, bool accumulate = false);
  void AttentionForward(size_t block);
  void MlpForward(size_t block);
  // Runs the classifier in chunks over normed_. With gradients, leaves d/d(normed_) in dnormed_
  // and the head's gradient in the arena.
  TokenLoss Head(std::span<const int32_t> targets, T gradient_scale);
  void Backward();
  void MlpBackward(size_t block);
  void AttentionBackward(size_t block);
  void AttentionHeadsBackward(BlockActivations& block);
  void RotateBackward(size_t block);
  void EmbeddingBackward();
  void PositionsBackward();

  // Norms over tokens_ rows; the backward one also recomputes the norm's output into normed_ and
  // writes or adds the gradients of weight and bias.
  void Norm(const T* x_in, const T* addend, const NormLayout& norm, T* x_out, T* inverse_rms);
  void NormBackward(const T* x, const NormLayout& norm, const T* inverse_rms, bool accumulate_dx);
  // out [N, outputs of all slices] = in [N, inputs] W^T + b, and the gradients of in, of W and of
  // b.
  void Project(const ProjectionLayout& projection, int64_t inputs, const T* in, T* out,
               int64_t outputs);
  void ProjectBackwardInput(const ProjectionLayout& projection, int64_t inputs, const T* dout,
                            int64_t outputs, T* din);
  void ProjectBackwardWeight(const ProjectionLayout& projection, int64_t inputs, const T* dout,
                             int64_t outputs, const T* in);
  void ProjectBackwardBias(const ProjectionLayout& projection, const T* dout, int64_t outputs);
  // out [width] (+)= the sum of columns begin .. begin + width of partials_ [chunks, stride], in
  // order of chunk.
  void ReducePartials(int64_t stride, int64_t begin, int64_t width, T* out);
  // Calls task(begin, end) for runs of the present rows.
  void ParallelRows(int64_t rows_per_task, const std::function<void(int64_t, int64_t)>& task);
  // The head of task `task` = sequence * heads + head.
  AttentionHead<T> HeadAt(BlockActivations& block, int64_t task) const;
  // Calls visit(begin, length) for the stretches of the sequence that attend to themselves alone.
  template <typename Visit>
  void ForEachDocument(int64_t sequence, const Visit& visit) const {
    const auto starts = documents_.empty()
                            ? documents_
                            : documents_.subspan(static_cast<size_t>(sequence * present_length_),
                                                 static_cast<size_t>(present_length_));
    for (int64_t begin = 0; begin < present_length_;) {
      int64_t end = starts.empty() ? present_length_ : begin + 1;
      while (end < present_length_ && starts[static_cast<size_t>(end)] == begin) ++end;
      visit(begin, end - begin);
      begin = end;
    }
  }
  void CheckCall(std::span<const T> parameters, std::span<const int32_t> inputs,
                 std::span<const int32_t> targets, int64_t length,
                 std::span<const int32_t> document_starts) const;
  void CheckTokens(std::span<const int32_t> tokens, bool targets) const;

  const ParameterLayout layout_;
  const Kernels<T>& kernels_;
  ThreadPool* const pool_;
  const int max_sequences_;
  const ModelShape shape_;
  const T epsilon_, z_loss_;
  const int64_t head_chunk_;  // Tokens whose logits exist at a time.

  // The present call's.
  const T* parameters_ = nullptr;
  T* gradients_ = nullptr;  // Null: none are asked for.
  bool accumulate_ = false;
  std::span<const int32_t> inputs_;
  int64_t tokens_ = 0;                  // N
  int64_t present_length_ = 0;          // tokens per sequence
  std::span<const int32_t> documents_;  // Where each token's begins; empty: one per sequence.

  std::vector<BlockActivations> blocks_;
  AlignedVector<T> final_input_, final_rms_;
  AlignedVector<T> cosine_, sine_;        // [length, head_dim / 2]
  AlignedVector<T> normed_;               // [N, width]: the present norm's output
  AlignedVector<T> projected_;            // [N, width]: what is added to the residual stream next
  AlignedVector<T> hidden_;               // [N, mlp_width]
  AlignedVector<T> logits_;               // [head_chunk, padded vocabulary]
  AlignedVector<T> row_loss_, row_lse_;   // [N]
  AlignedVector<T> dresidual_, dnormed_;  // [N, width]
  AlignedVector<T> dhidden_;              // [N, mlp_width]
  AlignedVector<T> dattention_;           // [N, heads, head_dim]
  AlignedVector<T> dqkv_;                 // [N, heads + 2 kv_heads, head_dim]
  AlignedVector<T> dkv_per_head_;         // [N, 2, heads, head_dim] with grouped queries, or empty
  AlignedVector<T> partials_;
  KernelSeconds kernel_seconds_{};
};

}  // namespace causeway::worker
