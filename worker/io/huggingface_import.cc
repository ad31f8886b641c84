#include "worker/io/huggingface_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/files/safetensors.h"
#include "common/huggingface/huggingface_tensors.h"
#include "common/huggingface/tensor_values.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

constexpr char kHead[] = "lm_head.weight";

// Buffers that old files keep beside the parameters; the model derives them.
bool IsDerived(absl::string_view name, bool gpt2) {
  return gpt2 ? absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias")
              : absl::EndsWith(name, ".rotary_emb.inv_freq");
}

// By the names of whole models: files of the model without its head lack the prefix.
using Tensors = std::map<std::string, SafeTensor>;
absl::StatusOr<Tensors> WithPrefix(const Tensors& tensors, bool gpt2, const std::string& folder) {
  const absl::string_view prefix = gpt2 ? "transformer." : "model.";
  Tensors result;
  for (const auto& [name, tensor] : tensors) {
    if (IsDerived(name, gpt2)) continue;
    const bool whole = absl::StartsWith(name, prefix) || name == kHead;
    if (!result.emplace(whole ? name : absl::StrCat(prefix, name), tensor).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, ": the tensor ", absl::StripPrefix(name, prefix).substr(0, 200),
          " is there twice, with and without ", prefix, ": remove the one that is wrong"));
    }
  }
  return result;
}

// A tied model's head is its embedding; transformers unties a model whose file has another one.
absl::Status CheckTiedHead(const Tensors& present, bool gpt2, const std::string& folder) {
  const auto head = present.find(kHead);
  if (head == present.end()) return absl::OkStatus();
  const std::string name = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  const SafeTensor& embedding = present.at(name);
  const SafeTensor& other = head->second;
  if (other.shape == embedding.shape && other.dtype == embedding.dtype &&
      std::ranges::equal(other.bytes, embedding.bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      folder, ": its config.json says tie_word_embeddings, but ", kHead, " (", other.dtype, " ",
      ShapeText(other.shape), ") is not ", name, " (", embedding.dtype, " ",
      ShapeText(embedding.shape), "): remove the head from the file, or say ",
      "\"tie_word_embeddings\": false, as transformers takes it"));
}

// What transformers would load on top of the parameters.
absl::Status CheckNothingOnTop(FileSystem& file_system, const std::string& folder) {
  const std::string adapter = JoinPath(folder, "adapter_config.json");
  if (!file_system.Exists(adapter)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(adapter,
                   " makes the folder an adapter of a model, which is not supported: "
                   "merge it into the model (merge_and_unload of peft), or remove it"));
}

absl::Status CheckTensors(const std::vector<HuggingFaceTensor>& expected, const Tensors& present,
                          bool tied, const std::string& folder) {
  const auto bad = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": ", what...));
  };
  size_t known = tied ? present.count(kHead) : 0;  // A copy of the embedding.
  for (const HuggingFaceTensor& tensor : expected) {
    const auto found = present.find(tensor.name);
    if (found == present.end()) {
      return bad("the tensor ", tensor.name, " ", ShapeText(tensor.shape),
                 " that its config.json asks for is missing");
    }
    if (found->second.shape != tensor.shape) {
      return bad("the tensor ", tensor.name, " is ", ShapeText(found->second.shape),
                 "; its config.json takes ", ShapeText(tensor.shape));
    }
    if (!TensorValues::Reads(found->second.dtype)) {
      return bad("the tensor ", tensor.name, " is ", found->second.dtype,
                 "; F32, BF16 and F16 are read");
    }
    ++known;
  }
  if (known == present.size()) return absl::OkStatus();
  std::map<std::string, bool> names;
  for (const HuggingFaceTensor& tensor : expected) names[tensor.name] = true;
  for (const auto& [name, tensor] : present) {
    if (names.contains(name) || (tied && name == kHead)) continue;
    return bad("the tensor ", name.substr(0, 200), " ", ShapeText(tensor.shape),
               " belongs to nothing that its config.json describes");
  }
  return absl::OkStatus();
}

absl::Status CopyTensor(const HuggingFaceTensor& tensor, const SafeTensor& source,
                        const FragmentPlan& plan, std::span<float> arena,
                        const std::string& folder) {
  const TensorValues values(source);
  for (const TensorPart& part : tensor.parts) {
    float* const out = arena.data() + plan.Find(part.tensor)->offset;
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t c = 0; c < part.cols; ++c) {
        const int64_t from = tensor.transposed ? c * tensor.cols + part.first + r
                                               : (part.first + r) * tensor.cols + c;
        const float value = values.At(from);
        if (!std::isfinite(value)) {
          return absl::InvalidArgumentError(absl::StrCat(folder, ": the tensor ", tensor.name,
                                                         " has the value ", value, " at index ",
                                                         from, "; parameters must be finite"));
        }
        out[r * part.cols + c] = value;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportedModel> ImportHuggingFace(FileSystem& file_system, const std::string& folder,
                                                int sequence_length) {
  ImportedModel result;
  RETURN_IF_ERROR(CheckNothingOnTop(file_system, folder));
  // Goes along with exports, and must be what its name says.
  const std::string generation_path = JoinPath(folder, "generation_config.json");
  if (file_system.Exists(generation_path)) {
    RETURN_IF_ERROR(file_system.ReadFile(generation_path).status());
  }
  const std::string config_path = JoinPath(folder, "config.json");
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(config_path));
  ASSIGN_OR_RETURN(result.description, ReadHuggingFaceConfig(text, config_path, sequence_length));
  const v1::ModelConfig& model = result.description.model;
  *result.config.mutable_model() = model;
  RETURN_IF_ERROR(CompleteRunConfig(result.config).status());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(result.config));

  ASSIGN_OR_RETURN(const SafetensorsFolder files, SafetensorsFolder::Open(file_system, folder));
  const Architecture architecture = result.description.architecture;
  const bool gpt2 = architecture == Architecture::kGpt2;
  ASSIGN_OR_RETURN(const Tensors present, WithPrefix(files.tensors(), gpt2, folder));
  const std::vector<HuggingFaceTensor> expected = HuggingFaceTensors(model, architecture);
  // Before the arena is allocated: it is not larger than what the files hold.
  RETURN_IF_ERROR(CheckTensors(expected, present, !model.untied_head(), folder));
  if (!model.untied_head()) RETURN_IF_ERROR(CheckTiedHead(present, gpt2, folder));
  result.parameters.resize(static_cast<size_t>(plan.arena_size()));
  for (const HuggingFaceTensor& tensor : expected) {
    RETURN_IF_ERROR(CopyTensor(tensor, present.at(tensor.name), plan, result.parameters, folder));
  }
  return result;
}

}  // namespace causeway::worker
