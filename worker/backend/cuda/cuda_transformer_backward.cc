// The backward pass of CudaTransformer. dresidual_ holds the gradient of the residual stream and
// travels from the last block to the first; every norm adds its share to it.
#include "common/base/status_macros.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace causeway::worker::cuda {

absl::Status CudaTransformer::Backward(const StageHooks& hooks) {
  const auto layers = static_cast<int>(blocks_.size());
  const auto begins = [&](int stage) {
    return hooks.before_backward == nullptr ? absl::OkStatus() : hooks.before_backward(stage);
  };
  const auto done = [&](int stage) {
    return hooks.after_backward == nullptr ? absl::OkStatus() : hooks.after_backward(stage);
  };
  RETURN_IF_ERROR(NormBackwardPass(FinalNorm(), /*accumulate_dx=*/false, nullptr));
  RETURN_IF_ERROR(done(0));
  for (int i = layers - 1; i >= 0; --i) {
    Block& block = blocks_[static_cast<size_t>(i)];
    if (options_.recompute == Recompute::kBlocks) {
      RETURN_IF_ERROR(RecomputeBlock(block));
    }
    RETURN_IF_ERROR(begins(layers - i));
    RETURN_IF_ERROR(MlpBackward(block));
    RETURN_IF_ERROR(AttentionBackwardPass(block));
    RETURN_IF_ERROR(done(layers - i));
  }
  RETURN_IF_ERROR(begins(layers + 1));
  RETURN_IF_ERROR(EmbeddingsBackward());
  return done(layers + 1);
}

absl::Status CudaTransformer::RecomputeBlock(Block& block) {
  BlockActivations& kept = block.kept;
  RETURN_IF_ERROR(Norm(AttentionNorm(block), nullptr, nullptr, kept.attention_normed));
  RETURN_IF_ERROR(AttentionForwardPass(block));
  NormPlace norm = MlpNorm(block);
  norm.x = kept.attention_input;
  RETURN_IF_ERROR(Norm(norm, projected_, kept.mlp_input, kept.mlp_normed));
  // The activation is computed again by its own backward pass.
  return block.mlp_in.Forward(pass_, kept.mlp_normed, kept.pre_activation);
}

absl::Status CudaTransformer::MlpBackward(Block& block) {
  BlockActivations& kept = block.kept;
  const bool again = options_.recompute != Recompute::kNone;
  RETURN_IF_ERROR(block.down.BackwardBias(pass_, dresidual_));
  RETURN_IF_ERROR(block.down.BackwardInput(pass_, dresidual_, dhidden_));
  const auto activation = shape_.gated ? SwigluBackward : GeluBackward;
  RETURN_IF_ERROR(Probed(TokenKernel("activation, backward",
                                     2 * shape_.mlp_inputs + shape_.mlp_width, /*in_place=*/true),
                         [&] {
                           activation(pass_.tokens, shape_.mlp_width, dhidden_, kept.pre_activation,
                                      again ? kept.hidden : nullptr, pass_.stream);
                         }));
  const __nv_bfloat16* const dpre_activation = kept.pre_activation;
  RETURN_IF_ERROR(block.down.BackwardWeight(pass_, dresidual_, kept.hidden));
  RETURN_IF_ERROR(block.mlp_in.BackwardBias(pass_, dpre_activation));
  RETURN_IF_ERROR(block.mlp_in.BackwardInput(pass_, dpre_activation, dnormed_));
  RETURN_IF_ERROR(
      NormBackwardPass(MlpNorm(block), /*accumulate_dx=*/true, again ? kept.mlp_normed : nullptr));
  return block.mlp_in.BackwardWeight(pass_, dpre_activation, kept.mlp_normed);
}

absl::Status CudaTransformer::AttentionBackwardPass(Block& block) {
  BlockActivations& kept = block.kept;
  const bool again = options_.recompute != Recompute::kNone;
  RETURN_IF_ERROR(block.o.BackwardBias(pass_, dresidual_));
  RETURN_IF_ERROR(block.o.BackwardWeight(pass_, dresidual_, kept.attention));
  RETURN_IF_ERROR(block.o.BackwardInput(pass_, dresidual_, dattention_));
  RETURN_IF_ERROR(Probed(AttentionKernel("attention, backward", 5),
                         [&] { return attention_.Backward(Attention(block), pass_.stream); }));
  if (shape_.qk_norm || cosine_ != nullptr) {
    RETURN_IF_ERROR(
        Probed(TokenKernel("QK-norm, RoPE, backward",
                           (shape_.qk_norm ? 3 : 2) * (shape_.query_width + shape_.kv_width),
                           /*in_place=*/true),
               [&] {
                 RotaryBackward({.shape = Rotary(block),
                                 .raw = kept.raw_qk,
                                 .raw_stride = shape_.query_width + shape_.kv_width,
                                 .dheads = dqkv_,
                                 .dheads_stride = shape_.qkv_width,
                                 .accumulate_weight = pass_.accumulate,
                                 .dquery_weight = Gradient(block.at.q_norm),
                                 .dkey_weight = Gradient(block.at.k_norm),
                                 .scratch = scratch_},
                                pass_.stream);
               }));
  }
  RETURN_IF_ERROR(block.qkv.BackwardBias(pass_, dqkv_));
  RETURN_IF_ERROR(block.qkv.BackwardInput(pass_, dqkv_, dnormed_));
  RETURN_IF_ERROR(NormBackwardPass(AttentionNorm(block), /*accumulate_dx=*/true,
                                   again ? kept.attention_normed : nullptr));
  return block.qkv.BackwardWeight(pass_, dqkv_, kept.attention_normed);
}

absl::Status CudaTransformer::EmbeddingsBackward() {
  float* const dembedding = Gradient(layout_.embedding);
  // A tied embedding already holds the head's gradient.
  if (!layout_.tied && !pass_.accumulate) {
    RETURN_IF_ERROR(ClearAsync(dembedding, shape_.padded_vocabulary * shape_.width, pass_.stream,
                               "clearing the embedding's gradient"));
  }
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  const int64_t rows = std::min(pass_.tokens, shape_.vocabulary);
  const int64_t bytes =
      kBf16Bytes * pass_.tokens * shape_.width + 2 * float_bytes * rows * shape_.width;
  RETURN_IF_ERROR(Probed(MemoryKernel("embedding, backward", bytes), [&] {
    EmbeddingBackward({.tokens = pass_.tokens,
                       .width = shape_.width,
                       .inputs = tokens_.inputs,
                       .order = tokens_.order,
                       .dout = dresidual_,
                       .dembedding = dembedding,
                       .scratch = scratch_},
                      pass_.stream);
  }));
  if (layout_.positions >= 0) {
    PositionsBackward({.sequences = pass_.tokens / present_length_,
                       .length = present_length_,
                       .learned_positions = layout_.learned_positions,
                       .width = shape_.width,
                       .dout = dresidual_,
                       .accumulate = pass_.accumulate,
                       .dpositions = Gradient(layout_.positions)},
                      pass_.stream);
  }
  return absl::OkStatus();
}

absl::Status CudaTransformer::NormBackwardPass(const NormPlace& place, bool accumulate_dx,
                                               __nv_bfloat16* out) {
  const int64_t rows = 3 + (accumulate_dx ? 1 : 0) + (out == nullptr ? 0 : 1);
  return Probed(TokenKernel("norm, backward", rows * shape_.width, accumulate_dx), [&] {
    NormBackward({.rows = pass_.tokens,
                  .width = shape_.width,
                  .dout = dnormed_,
                  .x = place.x,
                  .weight = Weight(place.layout.weight),
                  .bias = Weight(place.layout.bias),
                  .inverse_deviation = place.deviation,
                  .mean = place.mean,
                  .accumulate_dx = accumulate_dx,
                  .dx = dresidual_,
                  .out = out,
                  .accumulate_weight = pass_.accumulate,
                  .dweight = Gradient(place.layout.weight),
                  .dbias = Gradient(place.layout.bias),
                  .scratch = scratch_},
                 pass_.stream);
  });
}

}  // namespace causeway::worker::cuda
