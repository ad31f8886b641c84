// The backward pass of CudaTransformer. dresidual_ holds the gradient of the residual stream and
// travels from the last block to the first; every norm adds its share to it.
#include "common/base/status_macros.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace causeway::worker::cuda {

absl::Status CudaTransformer::Backward(const Pass& pass, const StageHooks& hooks,
                                       cudaStream_t stream) {
  const auto layers = static_cast<int>(blocks_.size());
  const auto begins = [&](int stage) {
    return hooks.before_backward == nullptr ? absl::OkStatus() : hooks.before_backward(stage);
  };
  const auto done = [&](int stage) {
    return hooks.after_backward == nullptr ? absl::OkStatus() : hooks.after_backward(stage);
  };
  NormBackwardPass(FinalNorm(), /*accumulate_dx=*/false, pass.accumulate, nullptr, stream);
  RETURN_IF_ERROR(done(0));
  for (int i = layers - 1; i >= 0; --i) {
    Block& block = blocks_[static_cast<size_t>(i)];
    if (options_.recompute == Recompute::kBlocks) {
      RETURN_IF_ERROR(RecomputeBlock(block, pass.tokens.document_starts, stream));
    }
    RETURN_IF_ERROR(begins(layers - i));
    RETURN_IF_ERROR(MlpBackward(block, pass.accumulate, stream));
    RETURN_IF_ERROR(
        AttentionBackwardPass(block, pass.tokens.document_starts, pass.accumulate, stream));
    RETURN_IF_ERROR(done(layers - i));
  }
  RETURN_IF_ERROR(begins(layers + 1));
  RETURN_IF_ERROR(EmbeddingsBackward(pass, stream));
  return done(layers + 1);
}

absl::Status CudaTransformer::RecomputeBlock(Block& block, const int32_t* document_starts,
                                             cudaStream_t stream) {
  BlockActivations& kept = block.kept;
  Norm(AttentionNorm(block), nullptr, nullptr, kept.attention_normed, stream);
  RETURN_IF_ERROR(AttentionForwardPass(block, document_starts, stream));
  NormPlace norm = MlpNorm(block);
  norm.x = kept.attention_input;
  Norm(norm, projected_, kept.mlp_input, kept.mlp_normed, stream);
  // The activation is computed again by its own backward pass.
  return block.mlp_in.Forward(gemm_, tokens_, weights_, kept.mlp_normed,
                              {.data = kept.pre_activation, .stride = shape_.mlp_inputs}, {},
                              stream);
}

absl::Status CudaTransformer::MlpBackward(Block& block, bool accumulate, cudaStream_t stream) {
  BlockActivations& kept = block.kept;
  const bool again = options_.recompute != Recompute::kNone;
  block.down.BackwardBias(tokens_, dresidual_, shape_.width, accumulate, gradients_, scratch_,
                          stream);
  RETURN_IF_ERROR(block.down.BackwardInput(gemm_, tokens_, weights_, dresidual_, shape_.width,
                                           dhidden_, stream));
  const auto activation = shape_.gated ? SwigluBackward : GeluBackward;
  activation(tokens_, shape_.mlp_width, dhidden_, kept.pre_activation,
             again ? kept.hidden : nullptr, stream);
  const __nv_bfloat16* const dpre_activation = kept.pre_activation;
  RETURN_IF_ERROR(block.down.BackwardWeight(gemm_, tokens_, dresidual_, shape_.width, kept.hidden,
                                            accumulate, gradients_, stream));
  block.mlp_in.BackwardBias(tokens_, dpre_activation, shape_.mlp_inputs, accumulate, gradients_,
                            scratch_, stream);
  RETURN_IF_ERROR(block.mlp_in.BackwardInput(gemm_, tokens_, weights_, dpre_activation,
                                             shape_.mlp_inputs, dnormed_, stream));
  NormBackwardPass(MlpNorm(block), /*accumulate_dx=*/true, accumulate,
                   again ? kept.mlp_normed : nullptr, stream);
  return block.mlp_in.BackwardWeight(gemm_, tokens_, dpre_activation, shape_.mlp_inputs,
                                     kept.mlp_normed, accumulate, gradients_, stream);
}

absl::Status CudaTransformer::AttentionBackwardPass(Block& block, const int32_t* document_starts,
                                                    bool accumulate, cudaStream_t stream) {
  BlockActivations& kept = block.kept;
  const bool again = options_.recompute != Recompute::kNone;
  block.o.BackwardBias(tokens_, dresidual_, shape_.width, accumulate, gradients_, scratch_, stream);
  RETURN_IF_ERROR(block.o.BackwardWeight(gemm_, tokens_, dresidual_, shape_.width, kept.attention,
                                         accumulate, gradients_, stream));
  RETURN_IF_ERROR(block.o.BackwardInput(gemm_, tokens_, weights_, dresidual_, shape_.width,
                                        dattention_, stream));
  RETURN_IF_ERROR(attention_.Backward(Attention(), kept.qkv, document_starts, kept.attention,
                                      kept.log_sum_exp, dattention_, delta_, dqkv_, stream));
  if (shape_.qk_norm || cosine_ != nullptr) {
    RotaryBackward({.shape = Rotary(block),
                    .raw = kept.raw_qk,
                    .raw_stride = shape_.query_width + shape_.kv_width,
                    .dheads = dqkv_,
                    .dheads_stride = shape_.qkv_width,
                    .accumulate_weight = accumulate,
                    .dquery_weight = Gradient(block.at.q_norm),
                    .dkey_weight = Gradient(block.at.k_norm),
                    .scratch = scratch_},
                   stream);
  }
  block.qkv.BackwardBias(tokens_, dqkv_, shape_.qkv_width, accumulate, gradients_, scratch_,
                         stream);
  RETURN_IF_ERROR(
      block.qkv.BackwardInput(gemm_, tokens_, weights_, dqkv_, shape_.qkv_width, dnormed_, stream));
  NormBackwardPass(AttentionNorm(block), /*accumulate_dx=*/true, accumulate,
                   again ? kept.attention_normed : nullptr, stream);
  return block.qkv.BackwardWeight(gemm_, tokens_, dqkv_, shape_.qkv_width, kept.attention_normed,
                                  accumulate, gradients_, stream);
}

absl::Status CudaTransformer::EmbeddingsBackward(const Pass& pass, cudaStream_t stream) {
  float* const dembedding = Gradient(layout_.embedding);
  // A tied embedding already holds the head's gradient.
  if (!layout_.tied && !pass.accumulate) {
    RETURN_IF_ERROR(ClearAsync(dembedding, shape_.padded_vocabulary * shape_.width, stream,
                               "clearing the embedding's gradient"));
  }
  EmbeddingBackward({.tokens = tokens_,
                     .width = shape_.width,
                     .inputs = pass.tokens.inputs,
                     .order = pass.tokens.order,
                     .dout = dresidual_,
                     .dembedding = dembedding,
                     .scratch = scratch_},
                    stream);
  if (layout_.positions >= 0) {
    PositionsBackward({.sequences = tokens_ / present_length_,
                       .length = present_length_,
                       .learned_positions = layout_.learned_positions,
                       .width = shape_.width,
                       .dout = dresidual_,
                       .accumulate = pass.accumulate,
                       .dpositions = Gradient(layout_.positions)},
                      stream);
  }
  return absl::OkStatus();
}

void CudaTransformer::NormBackwardPass(const NormPlace& place, bool accumulate_dx,
                                       bool accumulate_weight, __nv_bfloat16* out,
                                       cudaStream_t stream) {
  NormBackward({.rows = tokens_,
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
                .accumulate_weight = accumulate_weight,
                .dweight = Gradient(place.layout.weight),
                .dbias = Gradient(place.layout.bias),
                .scratch = scratch_},
               stream);
}

}  // namespace causeway::worker::cuda
