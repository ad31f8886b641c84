// Hugging Face's config.json and our ModelConfig: what each says about the other.
//
//   LlamaForCausalLM   RMSNorm, RoPE, SwiGLU; biases as its attention_bias and mlp_bias say
//   Qwen2ForCausalLM   the same with qkv_bias
//   Qwen3ForCausalLM   the same with qk_norm; biases as its attention_bias says
//   GPT2LMHeadModel    LayerNorm, learned positions, GELU, biases everywhere
#ifndef CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_CONFIG_H_
#define CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_CONFIG_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "common/files/limited_json.h"
#include "nlohmann/json.hpp"

namespace causeway {

// Bounds what is read of config.json and of the JSON files beside it.
inline constexpr JsonLimits kHuggingFaceConfigLimits = {
    .bytes = size_t{4} << 20, .depth = 16, .values = 400'000};

enum class Architecture { kLlama, kQwen2, kQwen3, kGpt2 };

// "LlamaForCausalLM" and so on.
absl::string_view ArchitectureName(Architecture architecture);

struct HuggingFaceModel {
  Architecture architecture = Architecture::kLlama;
  v1::ModelConfig model;      // Complete; its sequence_length is at most max_positions.
  int64_t max_positions = 0;  // max_position_embeddings, or n_positions.
};

// `text` is the content of config.json. INVALID_ARGUMENT, beginning with `source`, names what is
// missing, out of range, or asks for something that this program does not have: an unknown
// architecture, activation or RoPE scaling, quantized weights, a sliding window. sequence_length:
// of the training windows; 0: the smaller of max_positions and 1024.
absl::StatusOr<HuggingFaceModel> ReadHuggingFaceConfig(absl::string_view text,
                                                       absl::string_view source,
                                                       int sequence_length);

// Takes a complete model. INVALID_ARGUMENT, naming the fields, if no architecture has this shape.
absl::StatusOr<Architecture> ChooseArchitecture(const v1::ModelConfig& model);

// config.json for such a model. dtype: "float32" or "bfloat16"; max_positions: 0 takes
// model.sequence_length.
nlohmann::json MakeHuggingFaceConfig(const v1::ModelConfig& model, Architecture architecture,
                                     absl::string_view dtype, int64_t max_positions);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_CONFIG_H_
