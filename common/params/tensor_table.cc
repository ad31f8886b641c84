#include "common/params/tensor_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace causeway {
namespace {

constexpr double kInitialStddev = 0.02;

}  // namespace

int64_t PaddedVocabulary(const v1::ModelConfig& model) {
  return (int64_t{model.vocabulary_size()} + 127) / 128 * 128;
}

std::vector<TensorInfo> BuildTensorTable(const v1::ModelConfig& model) {
  const int64_t width = model.width();
  const int64_t queries = int64_t{model.heads()} * model.head_dim();
  const int64_t keys = int64_t{model.kv_heads()} * model.head_dim();
  // Projections into the residual stream start smaller, so that its variance does not grow with
  // depth (Radford et al., 2019).
  const double residual_stddev = kInitialStddev / std::sqrt(2.0 * model.layers());

  std::vector<TensorInfo> tensors;
  tensors.push_back({.name = "model.embed_tokens.weight",
                     .rows = PaddedVocabulary(model),
                     .cols = width,
                     .role = TensorRole::kEmbedding,
                     .initial_stddev = kInitialStddev});
  if (model.learned_positions() > 0) {
    tensors.push_back({.name = "model.embed_positions.weight",
                       .rows = model.learned_positions(),
                       .cols = width,
                       .role = TensorRole::kPositions,
                       .initial_stddev = kInitialStddev});
  }
  for (int block = 0; block < model.layers(); ++block) {
    const std::string prefix = absl::StrCat("model.layers.", block, ".");
    const auto matrix = [&](absl::string_view name, int64_t rows, int64_t cols, double stddev) {
      tensors.push_back({.name = absl::StrCat(prefix, name),
                         .rows = rows,
                         .cols = cols,
                         .block = block,
                         .role = TensorRole::kMatrix,
                         .initial_stddev = stddev});
    };
    const auto norm = [&](absl::string_view name, int64_t size) {
      tensors.push_back({.name = absl::StrCat(prefix, name),
                         .rows = size,
                         .block = block,
                         .role = TensorRole::kNorm});
    };
    const auto bias = [&](bool present, absl::string_view name, int64_t size) {
      if (!present) return;
      tensors.push_back({.name = absl::StrCat(prefix, name),
                         .rows = size,
                         .block = block,
                         .role = TensorRole::kBias});
    };
    norm("input_layernorm.weight", width);
    bias(model.layer_norm(), "input_layernorm.bias", width);
    matrix("self_attn.q_proj.weight", queries, width, kInitialStddev);
    matrix("self_attn.k_proj.weight", keys, width, kInitialStddev);
    matrix("self_attn.v_proj.weight", keys, width, kInitialStddev);
    bias(model.qkv_bias(), "self_attn.q_proj.bias", queries);
    bias(model.qkv_bias(), "self_attn.k_proj.bias", keys);
    bias(model.qkv_bias(), "self_attn.v_proj.bias", keys);
    if (model.qk_norm()) {
      norm("self_attn.q_norm.weight", model.head_dim());
      norm("self_attn.k_norm.weight", model.head_dim());
    }
    matrix("self_attn.o_proj.weight", width, queries, residual_stddev);
    bias(model.output_bias(), "self_attn.o_proj.bias", width);
    norm("post_attention_layernorm.weight", width);
    bias(model.layer_norm(), "post_attention_layernorm.bias", width);
    const bool gated = model.mlp() == v1::ModelConfig::SWIGLU;
    if (gated) matrix("mlp.gate_proj.weight", model.mlp_width(), width, kInitialStddev);
    matrix("mlp.up_proj.weight", model.mlp_width(), width, kInitialStddev);
    bias(model.mlp_bias() && gated, "mlp.gate_proj.bias", model.mlp_width());
    bias(model.mlp_bias(), "mlp.up_proj.bias", model.mlp_width());
    matrix("mlp.down_proj.weight", width, model.mlp_width(), residual_stddev);
    bias(model.mlp_bias(), "mlp.down_proj.bias", width);
  }
  tensors.push_back({.name = "model.norm.weight", .rows = width, .role = TensorRole::kFinalNorm});
  if (model.layer_norm()) {
    tensors.push_back({.name = "model.norm.bias", .rows = width, .role = TensorRole::kBias});
  }
  if (model.untied_head()) {
    tensors.push_back({.name = "lm_head.weight",
                       .rows = PaddedVocabulary(model),
                       .cols = width,
                       .role = TensorRole::kHead,
                       .initial_stddev = kInitialStddev});
  }
  return tensors;
}

int64_t CountParameters(const std::vector<TensorInfo>& tensors) {
  int64_t count = 0;
  for (const TensorInfo& tensor : tensors) count += tensor.size();
  return count;
}

}  // namespace causeway
