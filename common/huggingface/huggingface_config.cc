#include "common/huggingface/huggingface_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/files/json_integer.h"
#include "common/files/json_object.h"
#include "common/params/run_config.h"

namespace causeway {
namespace {

using nlohmann::json;

constexpr int64_t kUsualWindow = 1024;

struct NamedArchitecture {
  Architecture architecture;
  const char* name;
  const char* model_type;
};
constexpr std::array kArchitectures = {
    NamedArchitecture{Architecture::kLlama, "LlamaForCausalLM", "llama"},
    NamedArchitecture{Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    NamedArchitecture{Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
    NamedArchitecture{Architecture::kGpt2, "GPT2LMHeadModel", "gpt2"},
};

const NamedArchitecture& Named(Architecture architecture) {
  return *std::ranges::find(kArchitectures, architecture, &NamedArchitecture::architecture);
}

// Names what was found, for a message.
std::string Excerpt(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 100);
}

// Fields that say nothing about what the model computes: names, tokens, how text is generated, how
// a training began and what it dropped, how the program is to work.
bool SaysNothingOfTheModel(absl::string_view field) {
  static const absl::flat_hash_set<absl::string_view> kFields = absl::StrSplit(
      "architectures model_type transformers_version torch_dtype dtype name_or_path "
      "tokenizer_class unsloth_version unsloth_fixed transformers.js_config "
      "is_llama_config license task_specific_params finetuning_task bos_token_id "
      "eos_token_id pad_token_id sep_token_id unk_token_id cls_token_id mask_token_id "
      "decoder_start_token_id forced_bos_token_id forced_eos_token_id bos_token eos_token "
      "pad_token unk_token max_length min_length max_sequence_length model_max_length "
      "do_sample early_stopping num_beams num_beam_groups num_return_sequences temperature "
      "top_k top_p typical_p diversity_penalty repetition_penalty length_penalty "
      "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids suppress_tokens "
      "begin_suppress_tokens remove_invalid_values exponential_decay_length_penalty "
      "return_dict_in_generate output_scores prefix initializer_range attention_dropout "
      "hidden_dropout resid_pdrop embd_pdrop attn_pdrop dropout use_cache "
      "output_attentions output_hidden_states output_past return_dict torchscript "
      "use_bfloat16 tf_legacy_loss gradient_checkpointing attn_implementation "
      "pretraining_tp chunk_size_feed_forward reorder_and_upcast_attn is_decoder id2label "
      "label2id num_labels problem_type summary_type summary_use_proj summary_activation "
      "summary_proj_to_labels summary_first_dropout n_ctx n_special predict_special_tokens",
      ' ');
  return absl::StartsWith(field, "_") || kFields.contains(field);
}

// Reads fields and keeps the first complaint. A field that is absent takes its default, and so does
// one that is null where transformers takes null for the same.
class Fields {
 public:
  // `place` is where the object stands in the file, as "rope_scaling: ".
  Fields(const json& object, absl::string_view source, absl::string_view place = "")
      : object_(object), source_(source), place_(place) {}

  const absl::Status& status() const { return status_; }

  bool Has(const char* field) {
    known_.insert(field);
    return object_.contains(field) && !object_[field].is_null();
  }

  int Integer(const char* field, std::optional<int> otherwise = std::nullopt) {
    int value = otherwise.value_or(0);
    if (!Has(field)) {
      if (!otherwise.has_value()) Complain(field, "is missing");
    } else if (!ReadInteger(object_[field], value)) {
      Complain(field, absl::StrCat("must be an integer; it is ", Excerpt(object_[field])));
    }
    return value;
  }

  double Number(const char* field, double otherwise) {
    if (!HasOrIsAbsent(field)) return otherwise;
    if (object_[field].is_number()) return object_[field].get<double>();
    Complain(field, absl::StrCat("must be a number; it is ", Excerpt(object_[field])));
    return otherwise;
  }

  bool Flag(const char* field, bool otherwise) {
    if (!HasOrIsAbsent(field)) return otherwise;
    if (object_[field].is_boolean()) return object_[field].get<bool>();
    Complain(field, absl::StrCat("must be true or false; it is ", Excerpt(object_[field])));
    return otherwise;
  }

  std::string Text(const char* field, const char* otherwise) {
    if (!HasOrIsAbsent(field)) return otherwise;
    if (object_[field].is_string()) return object_[field].get<std::string>();
    Complain(field, absl::StrCat("must be text; it is ", Excerpt(object_[field])));
    return otherwise;
  }

  // Refuses what the model would do differently from what this program does.
  void RequireFlag(const char* field, bool must, bool otherwise) {
    if (Flag(field, otherwise) != must) {
      Complain(field, absl::StrCat("is ", must ? "false" : "true", ", which is not supported"));
    }
  }

  // Refuses the first field that nobody has read and that may say something about the model.
  void RefuseUnread() {
    for (const auto& [field, value] : object_.items()) {
      if (known_.contains(field) || value.is_null() || SaysNothingOfTheModel(field)) continue;
      Complain(field.substr(0, 50), absl::StrCat("is ", Excerpt(value),
                                                 ", which is not understood: if the model is the "
                                                 "same without it, remove it"));
    }
  }

  void Complain(absl::string_view field, absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(source_, ": ", place_, field, " ", what));
    }
  }

 private:
  // Null is no default: transformers would take it for false, or fail.
  bool HasOrIsAbsent(const char* field) {
    if (Has(field)) return true;
    if (object_.contains(field)) Complain(field, "is null");
    return false;
  }

  const json& object_;
  const absl::string_view source_;
  const absl::string_view place_;
  absl::flat_hash_set<std::string> known_;
  absl::Status status_;
};

absl::StatusOr<Architecture> FindArchitecture(const json& config, absl::string_view source) {
  const NamedArchitecture* found = nullptr;
  const auto find = [&](const std::string& name) -> absl::Status {
    const auto known = std::ranges::find_if(kArchitectures, [&](const NamedArchitecture& one) {
      return name == one.name || name == one.model_type;
    });
    if (known == kArchitectures.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, ": the architecture \"", name.substr(0, 100), "\" is not supported; these are: ",
          absl::StrJoin(kArchitectures, ", ", [](std::string* out, const NamedArchitecture& one) {
            absl::StrAppend(out, one.name);
          })));
    }
    if (found != nullptr && found != &*known) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": architectures names ", found->name,
                                                     ", model_type ", known->model_type));
    }
    found = &*known;
    return absl::OkStatus();
  };
  if (config.contains("architectures") && config["architectures"].is_array() &&
      config["architectures"].size() == 1 && config["architectures"][0].is_string()) {
    RETURN_IF_ERROR(find(config["architectures"][0].get<std::string>()));
  }
  if (config.contains("model_type") && config["model_type"].is_string()) {
    RETURN_IF_ERROR(find(config["model_type"].get<std::string>()));
  }
  if (found == nullptr) RETURN_IF_ERROR(find(""));
  return found->architecture;
}

struct Rope {
  double theta = 10000;
  std::optional<v1::Llama3RopeScaling> scaling = std::nullopt;
};

// Reads one of the two objects that can say how positions turn.
Rope ReadRopeObject(const json& object, const char* field, double theta, absl::string_view source,
                    absl::Status& status) {
  Rope result{.theta = theta};
  if (!object.is_object()) {
    status = absl::InvalidArgumentError(absl::StrCat(source, ": ", field, " must be an object"));
    return result;
  }
  const std::string place = absl::StrCat(field, ": ");
  Fields rope(object, source, place);
  result.theta = rope.Number("rope_theta", theta);
  const std::string type = rope.Text("rope_type", "default");
  const std::string former = rope.Text("type", rope.Has("rope_type") ? type.c_str() : "default");
  const std::string& named = rope.Has("rope_type") ? type : former;
  if (former != type && rope.Has("rope_type")) {
    rope.Complain("type", absl::StrCat("is \"", former.substr(0, 50), "\", and rope_type \"",
                                       type.substr(0, 50), "\""));
  }
  if (named == "llama3") {
    v1::Llama3RopeScaling& scaling = result.scaling.emplace();
    scaling.set_factor(rope.Number("factor", 0));
    scaling.set_low_frequency_factor(rope.Number("low_freq_factor", 0));
    scaling.set_high_frequency_factor(rope.Number("high_freq_factor", 0));
    scaling.set_original_positions(rope.Integer("original_max_position_embeddings"));
  } else if (named != "default") {
    rope.Complain("rope_type", absl::StrCat("is \"", named.substr(0, 50),
                                            "\", which is not supported: default and llama3 are"));
  }
  if (rope.Number("partial_rotary_factor", 1) != 1) {
    rope.Complain("partial_rotary_factor", "is not 1, which is not supported");
  }
  // Among them the names of layer types, each with an object of its own.
  rope.RefuseUnread();
  status = rope.status();
  return result;
}

// Newer files have rope_parameters, with the base inside; older ones rope_scaling, or null, and the
// base beside it. Where a file has both, transformers takes some of each: they must say the same.
void ReadRope(const json& config, Fields& fields, absl::string_view source, v1::ModelConfig& model,
              absl::Status& status) {
  const bool has_base = fields.Has("rope_theta");
  Rope rope{.theta = fields.Number("rope_theta", 10000)};
  if (fields.Number("partial_rotary_factor", 1) != 1) {
    fields.Complain("partial_rotary_factor", "is not 1, which is not supported");
  }
  bool found = false;
  for (const char* const field : {"rope_parameters", "rope_scaling"}) {
    if (!fields.Has(field)) continue;
    absl::Status wrong;
    const Rope other = ReadRopeObject(config[field], field, rope.theta, source, wrong);
    if (status.ok()) status = wrong;
    if ((has_base || found) && other.theta != rope.theta) {
      fields.Complain("rope_theta",
                      absl::StrCat("is ", rope.theta, ", and ", other.theta, " in ", field));
    }
    if (found && (other.scaling.has_value() != rope.scaling.has_value() ||
                  (rope.scaling.has_value() &&
                   other.scaling->SerializeAsString() != rope.scaling->SerializeAsString()))) {
      fields.Complain("rope_scaling", "differs from rope_parameters: remove the one that is wrong");
    }
    rope = other;
    found = true;
  }
  model.set_rope_theta(rope.theta);
  if (rope.scaling.has_value()) *model.mutable_rope_scaling() = *rope.scaling;
}

// Reads what Llama, Qwen2 and Qwen3 share.
void ReadLlamaFamily(const json& config, Architecture architecture, Fields& fields,
                     absl::string_view source, HuggingFaceModel& result, absl::Status& status) {
  v1::ModelConfig& model = result.model;
  model.set_width(fields.Integer("hidden_size"));
  model.set_layers(fields.Integer("num_hidden_layers"));
  model.set_heads(fields.Integer("num_attention_heads"));
  const bool llama = architecture == Architecture::kLlama;
  const bool qwen3 = architecture == Architecture::kQwen3;
  // Qwen's own default is 32, which is meant where the field is absent, not where it is null.
  const bool absent = !config.contains("num_key_value_heads");
  model.set_kv_heads(fields.Integer("num_key_value_heads", absent && !llama ? 32 : model.heads()));
  // Qwen3's own default; the others divide.
  const int heads = std::max(1, model.heads());
  model.set_head_dim(fields.Integer("head_dim", qwen3 ? 128 : model.width() / heads));
  if (qwen3 && config.contains("head_dim") && !fields.Has("head_dim")) {
    fields.Complain("head_dim", "is null");
  }
  model.set_mlp_width(fields.Integer("intermediate_size"));
  model.set_mlp(v1::ModelConfig::SWIGLU);
  model.set_norm_epsilon(fields.Number("rms_norm_eps", 1e-6));
  model.set_untied_head(!fields.Flag("tie_word_embeddings", false));
  result.max_positions = fields.Integer("max_position_embeddings", llama ? 2048 : 32768);
  const std::string activation = fields.Text("hidden_act", "silu");
  if (activation != "silu") {
    fields.Complain("hidden_act", absl::StrCat("is \"", activation.substr(0, 50),
                                               "\", which is not supported: silu is"));
  }
  for (const char* const field :
       {"use_sliding_window", "rope_interleaved", "use_mrope", "is_encoder_decoder"}) {
    fields.RequireFlag(field, false, false);
  }
  // Qwen's files have a window that use_sliding_window leaves out.
  const bool windowed = fields.Has("sliding_window");
  if (windowed && llama) fields.Complain("sliding_window", "is given, which is not supported");
  if (!llama) fields.Has("max_window_layers");
  if (fields.Has("layer_types")) {
    const json& types = config["layer_types"];
    if (!types.is_array() || !std::ranges::all_of(types, [](const json& type) {
          return type.is_string() && type.get_ref<const std::string&>() == "full_attention";
        })) {
      fields.Complain("layer_types", "has others than full_attention, which are not supported");
    }
  }
  switch (architecture) {
    case Architecture::kLlama:
      model.set_qkv_bias(fields.Flag("attention_bias", false));
      model.set_output_bias(model.qkv_bias());
      model.set_mlp_bias(fields.Flag("mlp_bias", false));
      break;
    case Architecture::kQwen2:
      model.set_qkv_bias(true);
      break;
    case Architecture::kQwen3:
      model.set_qk_norm(true);
      model.set_qkv_bias(fields.Flag("attention_bias", false));
      model.set_output_bias(model.qkv_bias());
      break;
    case Architecture::kGpt2:
      break;
  }
  ReadRope(config, fields, source, model, status);
}

void ReadGpt2(Fields& fields, HuggingFaceModel& result) {
  v1::ModelConfig& model = result.model;
  model.set_width(fields.Integer("n_embd"));
  model.set_layers(fields.Integer("n_layer"));
  model.set_heads(fields.Integer("n_head"));
  const int64_t usual = int64_t{4} * model.width();
  model.set_mlp_width(
      fields.Integer("n_inner", static_cast<int>(std::clamp<int64_t>(usual, 0, 1 << 30))));
  result.max_positions = fields.Integer("n_positions", 1024);
  model.set_learned_positions(static_cast<int>(result.max_positions));
  model.set_norm_epsilon(fields.Number("layer_norm_epsilon", 1e-5));
  model.set_mlp(v1::ModelConfig::GELU);
  model.set_layer_norm(true);
  model.set_qkv_bias(true);
  model.set_output_bias(true);
  model.set_mlp_bias(true);
  model.set_untied_head(!fields.Flag("tie_word_embeddings", true));
  const std::string activation = fields.Text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.Complain("activation_function", absl::StrCat("is \"", activation.substr(0, 50),
                                                        "\", which is not supported: gelu_new is"));
  }
  fields.RequireFlag("scale_attn_weights", true, true);
  fields.RequireFlag("scale_attn_by_inverse_layer_idx", false, false);
  fields.RequireFlag("add_cross_attention", false, false);
  fields.RequireFlag("is_encoder_decoder", false, false);
}

void AddLlamaFamily(const v1::ModelConfig& model, Architecture architecture, int64_t max_positions,
                    json& config) {
  config["hidden_size"] = model.width();
  config["num_hidden_layers"] = model.layers();
  config["num_attention_heads"] = model.heads();
  config["num_key_value_heads"] = model.kv_heads();
  config["head_dim"] = model.head_dim();
  config["intermediate_size"] = model.mlp_width();
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = model.norm_epsilon();
  config["max_position_embeddings"] = max_positions;
  config["rope_theta"] = model.rope_theta();
  if (architecture != Architecture::kQwen2) config["attention_bias"] = model.qkv_bias();
  if (architecture == Architecture::kLlama) {
    config["mlp_bias"] = model.mlp_bias();
  } else {
    config["use_sliding_window"] = false;
  }
  json rope = {{"rope_type", "default"}};
  if (model.has_rope_scaling()) {
    const v1::Llama3RopeScaling& scaling = model.rope_scaling();
    rope = {{"rope_type", "llama3"},
            {"factor", scaling.factor()},
            {"low_freq_factor", scaling.low_frequency_factor()},
            {"high_freq_factor", scaling.high_frequency_factor()},
            {"original_max_position_embeddings", scaling.original_positions()}};
    config["rope_scaling"] = rope;
  }
  rope["rope_theta"] = model.rope_theta();
  config["rope_parameters"] = rope;
}

void AddGpt2(const v1::ModelConfig& model, json& config) {
  config["n_embd"] = model.width();
  config["n_layer"] = model.layers();
  config["n_head"] = model.heads();
  config["n_inner"] = model.mlp_width();
  config["n_positions"] = model.learned_positions();
  config["n_ctx"] = model.learned_positions();
  config["layer_norm_epsilon"] = model.norm_epsilon();
  config["activation_function"] = "gelu_new";
  config["scale_attn_weights"] = true;
}

}  // namespace

absl::string_view ArchitectureName(Architecture architecture) { return Named(architecture).name; }

absl::StatusOr<HuggingFaceModel> ReadHuggingFaceConfig(absl::string_view text,
                                                       absl::string_view source,
                                                       int sequence_length) {
  ASSIGN_OR_RETURN(const json config, ParseJsonObject(text, source, kHuggingFaceConfigLimits));
  HuggingFaceModel result;
  ASSIGN_OR_RETURN(result.architecture, FindArchitecture(config, source));
  Fields fields(config, source);
  if (fields.Has("quantization_config")) {
    fields.Complain("quantization_config", "is given: quantized weights are not supported");
  }
  v1::ModelConfig& model = result.model;
  model.set_vocabulary_size(fields.Integer("vocab_size"));
  absl::Status rope;
  if (result.architecture == Architecture::kGpt2) {
    ReadGpt2(fields, result);
  } else {
    ReadLlamaFamily(config, result.architecture, fields, source, result, rope);
  }
  fields.RefuseUnread();
  RETURN_IF_ERROR(rope);
  RETURN_IF_ERROR(fields.status());
  if (result.max_positions < 1 || sequence_length > result.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": the model takes ",
                                                   result.max_positions, " positions; windows of ",
                                                   sequence_length, " tokens were asked for"));
  }
  // A zero would mean a default where the file means zero.
  for (const auto& [field, value] :
       {std::pair("vocab_size", model.vocabulary_size()), std::pair("head_dim", model.head_dim()),
        std::pair("the number of key-value heads", model.kv_heads())}) {
    const bool derived = result.architecture == Architecture::kGpt2 && value == 0;
    if (value < 1 && (!derived || model.vocabulary_size() < 1)) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": ", field, " is ", value));
    }
  }
  if (!(model.norm_epsilon() > 0) ||
      (result.architecture != Architecture::kGpt2 && !(model.rope_theta() > 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": the norm's epsilon and the RoPE base must be positive; they are ",
                     model.norm_epsilon(), " and ", model.rope_theta()));
  }
  model.set_sequence_length(sequence_length > 0
                                ? sequence_length
                                : static_cast<int>(std::min(result.max_positions, kUsualWindow)));
  v1::RunConfig run;
  *run.mutable_model() = model;
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(run).status(), source));
  model = run.model();
  return result;
}

absl::StatusOr<Architecture> ChooseArchitecture(const v1::ModelConfig& model) {
  const bool even_heads = int64_t{model.heads()} * model.head_dim() == model.width();
  const bool all_biases = model.qkv_bias() && model.output_bias() && model.mlp_bias();
  const bool gated = model.mlp() == v1::ModelConfig::SWIGLU;
  const bool llama_family = gated && !model.layer_norm() && model.learned_positions() == 0;
  const bool paired = model.qkv_bias() == model.output_bias();
  if (llama_family && !model.qk_norm() && paired) return Architecture::kLlama;
  if (llama_family && !model.mlp_bias()) {
    if (model.qk_norm() && paired) return Architecture::kQwen3;
    if (!model.qk_norm() && model.qkv_bias() && even_heads) return Architecture::kQwen2;
  }
  if (!gated && model.layer_norm() && model.learned_positions() > 0 && all_biases && even_heads &&
      !model.qk_norm() && model.kv_heads() == model.heads()) {
    return Architecture::kGpt2;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no architecture of Hugging Face has this model's shape: mlp ",
      v1::ModelConfig::Mlp_Name(model.mlp()), ", layer_norm ", model.layer_norm(),
      ", learned_positions ", model.learned_positions(), ", qk_norm ", model.qk_norm(),
      ", qkv_bias ", model.qkv_bias(), ", output_bias ", model.output_bias(), ", mlp_bias ",
      model.mlp_bias(), ", heads * head_dim ", int64_t{model.heads()} * model.head_dim(),
      " for width ", model.width(), "; docs/data.md lists those that have one"));
}

json MakeHuggingFaceConfig(const v1::ModelConfig& model, Architecture architecture,
                           absl::string_view dtype, int64_t max_positions) {
  const NamedArchitecture& named = Named(architecture);
  json config = {{"architectures", {named.name}},
                 {"model_type", named.model_type},
                 {"vocab_size", model.vocabulary_size()},
                 {"tie_word_embeddings", !model.untied_head()},
                 {"initializer_range", 0.02},
                 {"use_cache", true},
                 // Otherwise the classes' defaults, which are other tokenizers'.
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"pad_token_id", nullptr},
                 {"torch_dtype", dtype},
                 {"dtype", dtype}};
  if (architecture == Architecture::kGpt2) {
    AddGpt2(model, config);
  } else {
    AddLlamaFamily(model, architecture, max_positions > 0 ? max_positions : model.sequence_length(),
                   config);
  }
  return config;
}

}  // namespace causeway
