#include "common/params/run_config.h"

#include <google/protobuf/text_format.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

struct NamedShape {
  const char* name;
  int vocabulary_size;  // 0: bytes.
  int layers, width, heads, mlp_width, sequence_length;
  v1::ModelConfig::Mlp mlp;
  bool qk_norm;
  const char* rest = "";  // Fields that the others leave at their defaults.
};

// The shapes of other people's models are those of their config.json, except for the window.
// The paper's shapes are those of its table 4 (Chinchilla-like, plain MLP, vocabulary 32,000,
// sequences of 1,024 tokens).
constexpr NamedShape kShapes[] = {
    {"tiny-1m", 256, 6, 128, 4, 320, 256, v1::ModelConfig::SWIGLU, true},
    {"small-10m", 256, 8, 320, 5, 864, 512, v1::ModelConfig::SWIGLU, true},
    {"gpt2-124m-shape", 50257, 12, 768, 12, 3072, 1024, v1::ModelConfig::GELU, false},
    {"paper-35m", 32000, 6, 512, 8, 2048, 1024, v1::ModelConfig::GELU, true},
    {"paper-100m", 32000, 9, 768, 12, 3072, 1024, v1::ModelConfig::GELU, true},
    {"paper-200m", 32000, 12, 1024, 16, 4096, 1024, v1::ModelConfig::GELU, true},
    {"paper-300m", 32000, 15, 1280, 20, 5120, 1024, v1::ModelConfig::GELU, true},
    {"paper-500m", 32000, 18, 1536, 24, 6144, 1024, v1::ModelConfig::GELU, true},
    {"paper-1b", 32000, 24, 2048, 32, 8192, 1024, v1::ModelConfig::GELU, true},
    {"paper-4b", 32000, 36, 3072, 48, 12288, 1024, v1::ModelConfig::GELU, true},
    {"qwen2.5-0.5b-shape", 151936, 24, 896, 14, 4864, 1024, v1::ModelConfig::SWIGLU, false,
     "kv_heads: 2 qkv_bias: true rope_theta: 1e6 norm_epsilon: 1e-6"},
    {"qwen2.5-1.5b-shape", 151936, 28, 1536, 12, 8960, 1024, v1::ModelConfig::SWIGLU, false,
     "kv_heads: 2 qkv_bias: true rope_theta: 1e6 norm_epsilon: 1e-6"},
    {"llama-3.2-1b-shape", 128256, 16, 2048, 32, 8192, 2048, v1::ModelConfig::SWIGLU, false,
     "kv_heads: 8 rope_theta: 500000 rope_scaling { factor: 32 low_frequency_factor: 1 "
     "high_frequency_factor: 4 original_positions: 8192 }"},
};

struct NamedRun {
  const char* name;
  const char* text;
};

constexpr char kBest[] = R"(
  train { optimizer: MUON }
  sync { pattern: STRIDED fragments: 3 steps_between_syncs: 16 overlap_steps: 2 mixing: 0
         codec_up: LM2 codec_down: LM2 error_feedback: true }
  outer { optimizer: SGD learning_rate: 1 })";

constexpr NamedRun kRuns[] = {
    {"paper", R"(
  train { optimizer: ADAMW }
  sync { pattern: STRIDED fragments: 3 steps_between_syncs: 100 overlap_steps: 1 mixing: 0.5
         codec_up: E3M0 codec_down: E3M0 }
  outer { optimizer: NESTEROV learning_rate: 0.4 momentum: 0.9 })"},
    {"best", kBest},
    {"streaming", kBest},
    {"diloco", R"(
  train { optimizer: MUON }
  sync { fragments: 1 steps_between_syncs: 30 overlap_steps: 0 mixing: 0
         codec_up: FP32 codec_down: FP32 }
  outer { optimizer: NESTEROV learning_rate: 0.7 momentum: 0.6 })"},
    {"data-parallel", R"(
  train { optimizer: ADAMW }
  sync { contribution: GRADIENT fragments: 1 steps_between_syncs: 1 overlap_steps: 0 mixing: 0
         codec_up: BF16 codec_down: BF16 }
  outer { optimizer: ADAMW })"},
};

// What a field that is left out takes, unless the code below says otherwise: of a message that is
// there. Elsewhere 0 stays 0, so that a configuration from before a field keeps its hash.
constexpr char kDefaults[] = R"(
  run_name: "run"
  model { vocabulary_size: 256 sequence_length: 256 mlp: SWIGLU qk_norm: false rope_theta: 10000
          norm_epsilon: 1e-5 }
  train { steps: 1000 batch_sequences: 8 optimizer: ADAMW learning_rate: 1e-3
          muon_learning_rate: 0.02 muon_momentum: 0.95 beta1: 0.9 beta2: 0.99 epsilon: 1e-8
          clip_norm: 1 final_learning_rate_fraction: 0.1 evaluation_sequences: 32 }
  sync { contribution: PARAMETER_DELTA pattern: STRIDED fragments: 1 steps_between_syncs: 100
         codec_up: FP32 codec_down: FP32 }
  outer { optimizer: NESTEROV merge: MEAN }
  membership { start_workers: 2 quorum: 1 lease_ms: 10000 weighting: TOKENS })";

// Replaces of `base` what `config` gives: what is not zero or, where zero means something, what is
// there.
template <typename Message>
void FillIn(Message base, Message& config) {
  base.MergeFrom(config);
  config = std::move(base);
}

}  // namespace

std::vector<std::string> ModelPresetNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<v1::ModelConfig> ModelPreset(absl::string_view name) {
  for (const NamedShape& shape : kShapes) {
    if (name != shape.name) continue;
    v1::ModelConfig model;
    if (!google::protobuf::TextFormat::ParseFromString(shape.rest, &model)) {
      return absl::InternalError(absl::StrCat("preset ", shape.name, " does not parse"));
    }
    model.set_preset(shape.name);
    model.set_vocabulary_size(shape.vocabulary_size);
    model.set_layers(shape.layers);
    model.set_width(shape.width);
    model.set_heads(shape.heads);
    model.set_mlp_width(shape.mlp_width);
    model.set_sequence_length(shape.sequence_length);
    model.set_mlp(shape.mlp);
    model.set_qk_norm(shape.qk_norm);
    return model;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("model.preset: there is no \"", name,
                   "\"; known: ", absl::StrJoin(ModelPresetNames(), ", ")));
}

std::vector<std::string> RunPresetNames() {
  std::vector<std::string> names;
  for (const NamedRun& run : kRuns) names.emplace_back(run.name);
  return names;
}

absl::StatusOr<v1::RunConfig> RunPreset(absl::string_view name) {
  for (const NamedRun& run : kRuns) {
    if (name != run.name) continue;
    v1::RunConfig config;
    if (!google::protobuf::TextFormat::ParseFromString(run.text, &config)) {
      return absl::InternalError(absl::StrCat("preset ", run.name, " does not parse"));
    }
    return config;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "preset: there is no \"", name, "\"; known: ", absl::StrJoin(RunPresetNames(), ", ")));
}

absl::Status FillInDefaults(v1::RunConfig& config) {
  if (!config.model().preset().empty()) {
    ASSIGN_OR_RETURN(v1::ModelConfig shape, ModelPreset(config.model().preset()));
    FillIn(std::move(shape), *config.mutable_model());
  }
  v1::RunConfig defaults;
  if (!google::protobuf::TextFormat::ParseFromString(kDefaults, &defaults)) {
    return absl::InternalError("the defaults do not parse");
  }
  if (!config.has_model()) defaults.clear_model();
  FillIn(std::move(defaults), config);
  return absl::OkStatus();
}

}  // namespace causeway
