#include "common/params/tensor_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <numbers>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"

namespace causeway {
namespace {

constexpr double kInitialStddev = 0.02;

// The number of the block that a tensor belongs to, by its name; -1 for none.
int64_t BlockNumber(absl::string_view name) {
  constexpr size_t kMostDigits = 9;
  for (absl::string_view part : absl::StrSplit(name, absl::ByAnyChar("./"))) {
    int64_t number = 0;
    if (!part.empty() && part.size() <= kMostDigits &&
        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; }) &&
        absl::SimpleAtoi(part, &number)) {
      return number;
    }
  }
  return -1;
}

void SetShape(std::vector<int64_t> shape, TensorInfo& tensor) {
  tensor.rows = shape.empty() ? 1 : shape[0];
  tensor.cols = 1;
  for (size_t i = 1; i < shape.size(); ++i) tensor.cols *= shape[i];
  tensor.shape = std::move(shape);
}

std::vector<TensorInfo> TensorsOf(const v1::TensorTable& table) {
  std::map<int64_t, int> blocks;  // From a number in a name to TensorInfo::block.
  for (const v1::TensorTable::Tensor& entry : table.tensor()) {
    const int64_t number = BlockNumber(entry.name());
    if (number >= 0) blocks[number] = 0;
  }
  int count = 0;
  for (auto& [number, block] : blocks) block = count++;
  std::vector<TensorInfo> tensors;
  tensors.reserve(static_cast<size_t>(table.tensor_size()));
  for (const v1::TensorTable::Tensor& entry : table.tensor()) {
    TensorInfo& tensor = tensors.emplace_back();
    tensor.name = entry.name();
    SetShape({entry.shape().begin(), entry.shape().end()}, tensor);
    const int64_t number = BlockNumber(entry.name());
    if (number >= 0) tensor.block = blocks[number];
  }
  return tensors;
}

absl::Status CheckTensor(const v1::TensorTable::Tensor& tensor, int64_t& values) {
  const std::string& name = tensor.name();
  if (name.empty() || name.size() > kMaxTensorNameBytes || name == "__metadata__" ||
      Printable(name) != name) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensors: a name must be 1 to ", kMaxTensorNameBytes,
        " bytes of printable UTF-8 and not \"__metadata__\"; it is \"",
        Printable(absl::string_view(name).substr(0, 80)), "\" of ", name.size(), " bytes"));
  }
  if (tensor.shape_size() > kMaxTensorDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("tensors: \"", name, "\" must have at most ",
                                                   kMaxTensorDimensions, " dimensions; it has ",
                                                   tensor.shape_size()));
  }
  int64_t size = 1;
  for (const int64_t dimension : tensor.shape()) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors: \"", name, "\" must have dimensions from 1 on; one is ", dimension,
                       " (leave a tensor without values out)"));
    }
    if (dimension > kMaxTableValues / size) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors: \"", name, "\" must have at most ", kMaxTableValues,
                       " values; its shape [", absl::StrJoin(tensor.shape(), ", "), "] has more"));
    }
    size *= dimension;
  }
  values += size;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensorTable(const v1::TensorTable& table) {
  if (table.tensor_size() < 1 || table.tensor_size() > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat("tensors must be 1 to ", kMaxTensors,
                                                   " tensors; they are ", table.tensor_size()));
  }
  if (table.ByteSizeLong() > kMaxTensorTableBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensors must take at most ",
                                                   kMaxTensorTableBytes,
                                                   " bytes, names and shapes together; they take ",
                                                   table.ByteSizeLong(), " (shorten the names)"));
  }
  absl::flat_hash_set<absl::string_view> names;
  int64_t values = 0;
  for (const v1::TensorTable::Tensor& tensor : table.tensor()) {
    RETURN_IF_ERROR(CheckTensor(tensor, values));
    if (!names.insert(tensor.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors: \"", tensor.name(), "\" must be there once; it is there twice"));
    }
    if (values > kMaxTableValues) {
      return absl::InvalidArgumentError(absl::StrCat("tensors must have at most ", kMaxTableValues,
                                                     " values together; they have more"));
    }
  }
  return absl::OkStatus();
}

std::vector<TensorInfo> RunTensors(const v1::RunConfig& config) {
  return config.has_tensors() ? TensorsOf(config.tensors()) : BuildTensorTable(config.model());
}

v1::TensorTable MakeTensorTable(const std::vector<TensorInfo>& tensors) {
  v1::TensorTable table;
  for (const TensorInfo& tensor : tensors) {
    v1::TensorTable::Tensor& entry = *table.add_tensor();
    entry.set_name(tensor.name);
    entry.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
  return table;
}

int CountBlocks(const std::vector<TensorInfo>& tensors) {
  int blocks = 0;
  for (const TensorInfo& tensor : tensors) blocks = std::max(blocks, tensor.block + 1);
  return blocks;
}

bool NaturalLess(const std::string& a, const std::string& b) {
  return strverscmp(a.c_str(), b.c_str()) < 0;
}

std::string ShapeText(const TensorInfo& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
}

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
  for (TensorInfo& tensor : tensors) {
    tensor.shape = {tensor.rows};
    const bool vector = tensor.role == TensorRole::kFinalNorm || tensor.role == TensorRole::kNorm ||
                        tensor.role == TensorRole::kBias;
    if (!vector) tensor.shape.push_back(tensor.cols);
  }
  return tensors;
}

int64_t CountParameters(const std::vector<TensorInfo>& tensors) {
  int64_t count = 0;
  for (const TensorInfo& tensor : tensors) count += tensor.size();
  return count;
}

namespace {

double Scale(double frequency, const v1::Llama3RopeScaling& scaling) {
  const double turns = scaling.original_positions() * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency_factor()) return frequency / scaling.factor();
  if (turns > scaling.high_frequency_factor()) return frequency;
  const double kept = (turns - scaling.low_frequency_factor()) /
                      (scaling.high_frequency_factor() - scaling.low_frequency_factor());
  return (1 - kept) * frequency / scaling.factor() + kept * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const v1::ModelConfig& model) {
  std::vector<double> frequencies(static_cast<size_t>(model.head_dim() / 2));
  if (model.learned_positions() > 0) return frequencies;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(model.rope_theta(), -2.0 * static_cast<double>(i) / model.head_dim());
    if (model.has_rope_scaling()) frequencies[i] = Scale(frequencies[i], model.rope_scaling());
  }
  return frequencies;
}

}  // namespace causeway
