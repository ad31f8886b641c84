#include "common/huggingface/huggingface_tensors.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/params/tensor_table.h"

namespace causeway {
namespace {

// Ours behind "model.layers.N." and GPT-2's behind "transformer.h.N."; three of ours are one there.
const std::map<std::string, std::string>& Gpt2Names() {
  static const std::map<std::string, std::string> kNames = {
      {"input_layernorm.weight", "ln_1.weight"},
      {"input_layernorm.bias", "ln_1.bias"},
      {"self_attn.q_proj.weight", "attn.c_attn.weight"},
      {"self_attn.k_proj.weight", "attn.c_attn.weight"},
      {"self_attn.v_proj.weight", "attn.c_attn.weight"},
      {"self_attn.q_proj.bias", "attn.c_attn.bias"},
      {"self_attn.k_proj.bias", "attn.c_attn.bias"},
      {"self_attn.v_proj.bias", "attn.c_attn.bias"},
      {"self_attn.o_proj.weight", "attn.c_proj.weight"},
      {"self_attn.o_proj.bias", "attn.c_proj.bias"},
      {"post_attention_layernorm.weight", "ln_2.weight"},
      {"post_attention_layernorm.bias", "ln_2.bias"},
      {"mlp.up_proj.weight", "mlp.c_fc.weight"},
      {"mlp.up_proj.bias", "mlp.c_fc.bias"},
      {"mlp.down_proj.weight", "mlp.c_proj.weight"},
      {"mlp.down_proj.bias", "mlp.c_proj.bias"},
  };
  return kNames;
}

std::string Gpt2Name(const TensorInfo& tensor) {
  if (tensor.block >= 0) {
    const std::string prefix = absl::StrCat("model.layers.", tensor.block, ".");
    return absl::StrCat("transformer.h.", tensor.block, ".",
                        Gpt2Names().at(std::string(absl::StripPrefix(tensor.name, prefix))));
  }
  switch (tensor.role) {
    case TensorRole::kEmbedding:
      return "transformer.wte.weight";
    case TensorRole::kPositions:
      return "transformer.wpe.weight";
    case TensorRole::kFinalNorm:
      return "transformer.ln_f.weight";
    case TensorRole::kBias:
      return "transformer.ln_f.bias";
    default:
      return tensor.name;  // lm_head.weight
  }
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const v1::ModelConfig& model,
                                                  Architecture architecture) {
  const bool gpt2 = architecture == Architecture::kGpt2;
  std::vector<HuggingFaceTensor> result;
  for (const TensorInfo& tensor : BuildTensorTable(model)) {
    const bool padded = tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kHead;
    TensorPart part = {.tensor = tensor.name,
                       .rows = padded ? model.vocabulary_size() : tensor.rows,
                       .cols = tensor.cols};
    std::string name = gpt2 ? Gpt2Name(tensor) : tensor.name;
    if (!result.empty() && result.back().name == name) {
      HuggingFaceTensor& whole = result.back();
      (whole.transposed ? whole.cols : whole.rows) += part.rows;
      part.first = whole.parts.back().first + whole.parts.back().rows;
      whole.parts.push_back(std::move(part));
      continue;
    }
    const bool transposed = gpt2 && tensor.role == TensorRole::kMatrix;
    const bool vector = tensor.role == TensorRole::kNorm || tensor.role == TensorRole::kFinalNorm ||
                        tensor.role == TensorRole::kBias;
    HuggingFaceTensor whole = {.name = std::move(name),
                               .shape = std::vector<int64_t>(vector ? 1 : 2),
                               .rows = transposed ? part.cols : part.rows,
                               .cols = transposed ? part.rows : part.cols,
                               .transposed = transposed,
                               .parts = {part}};
    result.push_back(std::move(whole));
  }
  for (HuggingFaceTensor& tensor : result) {
    tensor.shape[0] = tensor.rows;
    if (tensor.shape.size() > 1) tensor.shape[1] = tensor.cols;
  }
  return result;
}

}  // namespace causeway
