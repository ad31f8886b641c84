// The decoder-only transformer on one GPU: CpuTransformer's passes (worker/backend/cpu), of which
// this is the twin, in bf16 with fp32 weight gradients. Calls enqueue on a stream and return.
//
// The level decides what the backward pass keeps and what it computes again; the bits are the same:
//
//   kNone    everything is kept.
//   kNorms   outputs of norms and activations are computed again: about a third less memory.
//   kBlocks  only the input of every block is kept, and its forward pass runs once more: the least
//            memory, a third more time.
//
// Logits exist for a chunk of tokens at a time and are overwritten by their gradient. All memory
// comes from the DeviceMemory given at construction; nothing is allocated later.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/projection.h"
#include "worker/backend/cuda/step_probe.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker::cuda {

enum class Recompute { kNone, kNorms, kBlocks };

// INVALID_ARGUMENT, with the field, what it must be and how to go on, for a shape that the kernels
// do not take.
absl::Status CheckShape(const v1::ModelConfig& model);

// Attention over so many of the model's windows.
AttentionShape AttentionOf(const v1::ModelConfig& model, int sequences);

// A micro-batch on the device, [sequences, length] each.
struct DeviceTokens {
  int32_t* inputs = nullptr;
  int32_t* targets = nullptr;
  int32_t* document_starts = nullptr;  // Null: a document per sequence.
  int32_t* order = nullptr;            // Inputs' order (TokenOrder); the backward pass reads it.
};

// Called while a pass is enqueued, where other streams may join in. Stages are ShardPlan's: 0 is
// head and final norm, 1 .. layers the blocks from the last one down, layers + 1 the embeddings. A
// head that is the embedding has its gradient written from stage 0 on, complete with the last one.
struct StageHooks {
  std::function<absl::Status(int stage)> before_forward;   // The stage's weights are read from now.
  std::function<absl::Status(int stage)> before_backward;  // Its gradients are written from now.
  std::function<absl::Status(int stage)> after_backward;   // They are complete.
};

inline constexpr int64_t kLeastLogitsBytes = int64_t{512} << 20;
// Memory for logits on a device of so much memory. Every chunk of them adds to the gradient of the
// head's weights once, so few are better. Their number decides how sums round, so it must not
// depend on what happens to be free.
int64_t LogitsBytes(size_t device_memory);
// How many of `tokens` have logits, of `row_bytes` each, at a time: the fewest equal chunks that
// fit `budget`, in whole multiples of 64 tokens.
int64_t HeadChunk(int64_t tokens, int64_t row_bytes, int64_t budget);

// Used by one thread. Everything is enqueued on the stream of the call.
class CudaTransformer {
 public:
  struct Options {
    int micro_batch_sequences = 1;
    bool document_masking = false;
    Recompute recompute = Recompute::kNone;
    int64_t logits_bytes = kLeastLogitsBytes;  // At most, of the logits that exist at a time.
    AttentionProvider* attention = nullptr;    // Outlives the transformer. Null: own kernels.
    StepProbe* probe = nullptr;                // The same. Null: none.
  };

  // `weights` [plan.arena_size()] are read by every pass, `gradients`, zeros where no tensor lies,
  // written. What is pointed at outlives the transformer. Errors of CheckShape and of DeviceMemory.
  static absl::StatusOr<std::unique_ptr<CudaTransformer>> Create(
      const v1::ModelConfig& model, const FragmentPlan& plan, const Options& options,
      const __nv_bfloat16* weights, const GradientPlaces& gradients, DeviceMemory* memory,
      Gemm* gemm, cudaStream_t stream);

  // One micro-batch of all windows. gradients = gradient_scale * d(mean loss), or += with
  // accumulate; *loss = loss_weight * the means, or += with accumulate_loss. May be recorded as a
  // graph if there are no hooks.
  struct Pass {
    DeviceTokens tokens;
    float gradient_scale = 1;
    double loss_weight = 1;
    bool accumulate = false;
    bool accumulate_loss = false;
    StepLoss* loss = nullptr;  // On the device.
  };
  absl::Status ForwardBackward(const Pass& pass, const StageHooks& hooks, cudaStream_t stream);

  // Forward only, of 1 .. micro_batch_sequences windows of `length` tokens, at most the model's.
  // The mean goes to *loss; row_losses() has the cross entropy of every position.
  absl::Status Forward(const DeviceTokens& tokens, int sequences, int64_t length, StepLoss* loss,
                       cudaStream_t stream);
  const float* row_losses() const { return row_loss_; }

  int64_t sequence_length() const { return shape_.length; }
  int micro_batch_sequences() const { return options_.micro_batch_sequences; }
  int stages() const { return static_cast<int>(blocks_.size()) + 2; }

 private:
  // One block's activations. Pointers of blocks may be equal where the level lets them share.
  struct BlockActivations {
    __nv_bfloat16* attention_input = nullptr;   // [N, width], the residual stream before the norm
    float* attention_deviation = nullptr;       // [N], 1 / rms or 1 / deviation
    float* attention_mean = nullptr;            // [N], LayerNorm alone
    __nv_bfloat16* attention_normed = nullptr;  // [N, width]
    __nv_bfloat16* raw_qk = nullptr;     // [N, heads + kv_heads, head_dim] before qk_norm, or null
    __nv_bfloat16* qkv = nullptr;        // [N, heads + 2 kv_heads, head_dim], rotated
    __nv_bfloat16* attention = nullptr;  // [N, heads, head_dim]
    float* log_sum_exp = nullptr;        // [sequences, heads, length]
    __nv_bfloat16* mlp_input = nullptr;  // [N, width], the residual stream before the norm
    float* mlp_deviation = nullptr;
    float* mlp_mean = nullptr;
    __nv_bfloat16* mlp_normed = nullptr;      // [N, width]
    __nv_bfloat16* pre_activation = nullptr;  // [N, 2, mlp_width] gate, up; or [N, mlp_width]
    __nv_bfloat16* hidden = nullptr;          // [N, mlp_width]
  };
  struct Block {
    Block(const BlockLayout& at, const CudaTransformer& of);
    BlockLayout at;
    Projection qkv, o, mlp_in, down;
    BlockActivations kept;
  };
  // A place, for NormForward and NormBackward.
  struct NormPlace {
    const __nv_bfloat16* x = nullptr;
    NormLayout layout;
    float* deviation = nullptr;
    float* mean = nullptr;
  };

  static constexpr int64_t kBf16Bytes = sizeof(__nv_bfloat16);

  CudaTransformer(const v1::ModelConfig& model, const FragmentPlan& plan, const Options& options,
                  const __nv_bfloat16* weights, const GradientPlaces& gradients, Gemm* gemm);
  absl::Status Allocate(DeviceMemory& memory);
  absl::Status AllocateActivations(DeviceMemory& memory);
  absl::Status FillAngles(const v1::ModelConfig& model, DeviceMemory& memory, cudaStream_t stream);

  // Makes so many tokens, in sequences of `length`, the present call's.
  void Begin(const DeviceTokens& tokens, int64_t count, int64_t length, bool accumulate,
             cudaStream_t stream);
  absl::Status ForwardToHead(const StageHooks* hooks);
  absl::Status AttentionForwardPass(Block& block);
  absl::Status MlpForwardPass(Block& block);
  // The block's forward pass again, without its output.
  absl::Status RecomputeBlock(Block& block);
  // Runs the classifier in chunks over normed_; with `pass`, with gradients.
  absl::Status Head(const Pass* pass, StepLoss* loss);
  absl::Status Backward(const StageHooks& hooks);
  absl::Status MlpBackward(Block& block);
  absl::Status AttentionBackwardPass(Block& block);
  absl::Status EmbeddingsBackward();

  // out = the norm of x + addend, which goes to x_out.
  absl::Status Norm(const NormPlace& place, const __nv_bfloat16* addend, __nv_bfloat16* x_out,
                    __nv_bfloat16* out);
  // dresidual_ = (or +=) the gradient; `out` gets the norm's output again unless it is null.
  absl::Status NormBackwardPass(const NormPlace& place, bool accumulate_dx, __nv_bfloat16* out);
  static NormPlace AttentionNorm(const Block& block);
  static NormPlace MlpNorm(const Block& block);
  NormPlace FinalNorm() const;
  RotaryShape Rotary(const Block& block) const;
  // Both passes of a block.
  AttentionCall Attention(const Block& block) const;
  // Describes attention's pass with so many products of a causal half.
  StepKernel AttentionKernel(const char* name, int products) const;
  // Describes what reads and writes so many bf16 values per token.
  StepKernel TokenKernel(const char* name, int64_t values, bool in_place = false) const {
    return MemoryKernel(name, kBf16Bytes * pass_.tokens * values, in_place);
  }
  template <typename Enqueue>
  absl::Status Probed(const StepKernel& kernel, const Enqueue& enqueue) {
    return cuda::Probed(options_.probe, kernel, pass_.stream, enqueue);
  }
  const __nv_bfloat16* Weight(int64_t offset) const {
    return offset < 0 ? nullptr : weights_ + offset;
  }
  float* Gradient(int64_t offset) const { return offset < 0 ? nullptr : gradients_.At(offset); }

  const ParameterLayout layout_;
  const Options options_;
  const __nv_bfloat16* const weights_;
  const GradientPlaces gradients_;
  Gemm& gemm_;
  OwnAttention own_attention_;
  AttentionProvider& attention_;
  const ModelShape shape_;
  const float epsilon_, z_loss_;
  int64_t head_chunk_ = 0;  // Tokens whose logits exist at a time.

  // The present call's.
  ProjectionPass pass_;  // Of N tokens.
  DeviceTokens tokens_;
  int64_t present_length_ = 0;  // Tokens per sequence.

  std::vector<Block> blocks_;
  __nv_bfloat16* final_input_ = nullptr;  // [N, width]
  float* final_deviation_ = nullptr;
  float* final_mean_ = nullptr;
  float* cosine_ = nullptr;  // [length, head_dim / 2]; null with learned positions.
  float* sine_ = nullptr;
  __nv_bfloat16* normed_ = nullptr;     // [N, width]: of the final norm, and what is computed again
  __nv_bfloat16* projected_ = nullptr;  // [N, width]: what is added to the residual stream next
  __nv_bfloat16* logits_ = nullptr;     // [head_chunk, padded vocabulary]
  float* row_loss_ = nullptr;           // [N]
  float* row_lse_ = nullptr;            // [N]
  TargetCount* target_count_ = nullptr;
  __nv_bfloat16* dresidual_ = nullptr;   // [N, width]
  __nv_bfloat16* dnormed_ = nullptr;     // [N, width]
  __nv_bfloat16* dhidden_ = nullptr;     // [N, mlp_width]
  __nv_bfloat16* dattention_ = nullptr;  // [N, heads, head_dim]
  __nv_bfloat16* dqkv_ = nullptr;        // [N, heads + 2 kv_heads, head_dim]
  float* delta_ = nullptr;               // Serves attention's backward pass; as log_sum_exp.
  float* scratch_ = nullptr;             // Partial sums of one kernel at a time.
};

}  // namespace causeway::worker::cuda
