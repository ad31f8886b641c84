#include "common/huggingface/huggingface_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/bf16.h"
#include "common/files/json_object.h"
#include "common/files/replace_folder.h"
#include "common/files/safetensors_writer.h"
#include "common/huggingface/huggingface_config.h"
#include "common/huggingface/huggingface_tensors.h"

namespace causeway {
namespace {

using nlohmann::json;

constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", kTokenizerConfig, "tokenizer.model",   "special_tokens_map.json",
    "vocab.json",     "merges.txt",     "added_tokens.json", "chat_template.jinja"};
constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr char kGenerationConfig[] = "generation_config.json";

uint16_t ToBf16(float value) { return std::isnan(value) ? uint16_t{0x7fc0} : Bf16Nearest(value); }

// Value `index` of a tensor of theirs, from the arena.
class Elements {
 public:
  Elements(const HuggingFaceTensor& tensor, const FragmentPlan& plan,
           std::span<const float> parameters)
      : tensor_(tensor) {
    for (const TensorPart& part : tensor.parts) {
      begins_.push_back(parameters.data() + plan.Find(part.tensor)->offset);
    }
  }

  float At(int64_t index) const {
    const int64_t row = index / tensor_.cols;
    const int64_t col = index % tensor_.cols;
    const int64_t place = tensor_.transposed ? col : row;
    size_t i = 0;
    while (place >= tensor_.parts[i].first + tensor_.parts[i].rows) ++i;
    const TensorPart& part = tensor_.parts[i];
    return begins_[i][(place - part.first) * part.cols + (tensor_.transposed ? row : col)];
  }

 private:
  const HuggingFaceTensor tensor_;
  std::vector<const float*> begins_;
};

TensorSource MakeSource(const HuggingFaceTensor& tensor, const FragmentPlan& plan,
                        std::span<const float> parameters, bool bf16) {
  const uint64_t value_bytes = bf16 ? 2 : 4;
  return {.name = tensor.name,
          .dtype = bf16 ? "BF16" : "F32",
          .shape = tensor.shape,
          .bytes = static_cast<uint64_t>(tensor.size()) * value_bytes,
          .read = [elements = Elements(tensor, plan, parameters), value_bytes](
                      uint64_t begin, std::span<uint8_t> out) {
            auto index = static_cast<int64_t>(begin / value_bytes);
            for (size_t at = 0; at < out.size(); at += value_bytes, ++index) {
              const float value = elements.At(index);
              if (value_bytes == 4) {
                std::memcpy(out.data() + at, &value, sizeof(value));
              } else {
                const uint16_t bits = ToBf16(value);
                std::memcpy(out.data() + at, &bits, sizeof(bits));
              }
            }
          }};
}

absl::Status CopyFile(FileSystem& file_system, const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const std::string content, file_system.ReadFile(from));
  return WriteFileAtomically(file_system, to, absl::string_view(content));
}

absl::StatusOr<json> ReadJson(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  return ParseJsonObject(text, path, kHuggingFaceConfigLimits);
}

// Adds the name to `copied`.
absl::Status CopyIfThere(FileSystem& file_system, const std::string& from, const char* name,
                         const std::string& to, std::set<std::string>& copied) {
  if (!file_system.Exists(JoinPath(from, name))) return absl::OkStatus();
  copied.insert(name);
  return CopyFile(file_system, JoinPath(from, name), JoinPath(to, name));
}

absl::Status CopyTokenizerFile(FileSystem& file_system, const std::string& source,
                               const std::string& folder, std::set<std::string>& copied) {
  const std::string name = absl::EndsWith(source, ".json") ? "tokenizer.json" : "tokenizer.model";
  RETURN_IF_ERROR(CopyFile(file_system, source, JoinPath(folder, name)));
  copied.insert(name);
  return CopyIfThere(file_system, ParentFolder(source), kTokenizerConfig, folder, copied);
}

// Copies what belongs to the tokenizer, and adds its token ids to the configuration.
absl::Status CopyTokenizerFolder(FileSystem& file_system, const std::string& source,
                                 const std::string& folder, json& config,
                                 std::set<std::string>& copied) {
  for (const char* name : kTokenizerFiles) {
    RETURN_IF_ERROR(CopyIfThere(file_system, source, name, folder, copied));
  }
  const std::string config_path = JoinPath(source, "config.json");
  if (file_system.Exists(config_path)) {
    ASSIGN_OR_RETURN(const json other, ReadJson(file_system, config_path));
    for (const char* id : kTokenIds) {
      if (other.contains(id)) config[id] = other[id];
    }
  }
  return CopyIfThere(file_system, source, kGenerationConfig, folder, copied);
}

// Removes what the former model's tokenizer left.
absl::Status RemoveOtherTokenizer(FileSystem& file_system, const std::string& folder,
                                  const std::set<std::string>& copied) {
  std::vector<std::string> names(std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  names.push_back(kGenerationConfig);
  for (const std::string& name : names) {
    const std::string path = JoinPath(folder, name);
    if (copied.contains(name) || !file_system.Exists(path)) continue;
    RETURN_IF_ERROR(file_system.Remove(path));
  }
  return absl::OkStatus();
}

// Without a class, transformers takes the vocabulary of tokenizer.json for a tokenizer of the kind
// that the architecture usually has: other tokens for the same text.
absl::Status NameTokenizerClass(FileSystem& file_system, const std::string& folder,
                                const json& config) {
  const std::string path = JoinPath(folder, kTokenizerConfig);
  json content = json::object();
  if (file_system.Exists(path)) {
    absl::StatusOr<json> copied = ReadJson(file_system, path);
    // Copies as it is what cannot be read.
    if (!copied.ok() || copied->contains("tokenizer_class")) return absl::OkStatus();
    content = *std::move(copied);
  }
  content["tokenizer_class"] = "PreTrainedTokenizerFast";
  ASSIGN_OR_RETURN(const std::string text,
                   file_system.ReadFile(JoinPath(folder, "tokenizer.json")));
  const absl::StatusOr<json> tokenizer = ParseLimitedJson(text);
  const json added =
      tokenizer.ok() && tokenizer->is_object() ? tokenizer->value("added_tokens", json()) : json();
  for (const json& token : added) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content")) continue;
    for (const auto& [name, id] :
         {std::pair("bos_token", "bos_token_id"), std::pair("eos_token", "eos_token_id")}) {
      if (!content.contains(name) && config.at(id) == token["id"]) content[name] = token["content"];
    }
  }
  return WriteFileAtomically(file_system, path, absl::string_view(content.dump(2) + "\n"));
}

absl::Status AddTokenizer(FileSystem& file_system, const ExportOptions& options,
                          const std::string& folder, bool replaces, json& config) {
  std::set<std::string> copied;
  if (file_system.IsFolder(options.tokenizer)) {
    RETURN_IF_ERROR(CopyTokenizerFolder(file_system, options.tokenizer, folder, config, copied));
  } else if (!options.tokenizer.empty()) {
    RETURN_IF_ERROR(CopyTokenizerFile(file_system, options.tokenizer, folder, copied));
  }
  if (replaces && !copied.empty()) {
    RETURN_IF_ERROR(RemoveOtherTokenizer(file_system, folder, copied));
  }
  for (const auto& [id, token] : {std::pair("bos_token_id", options.begin_of_text),
                                  std::pair("eos_token_id", options.end_of_text)}) {
    if (token.has_value() && config[id].is_null()) config[id] = *token;
  }
  if (copied.contains("tokenizer.json")) {
    RETURN_IF_ERROR(NameTokenizerClass(file_system, folder, config));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTokenizer(FileSystem& file_system, const std::string& source) {
  if (source.empty()) return absl::OkStatus();
  if (file_system.IsFolder(source)) {
    for (const char* name : kTokenizerFiles) {
      if (file_system.Exists(JoinPath(source, name))) return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat(
        source, " has no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.json"));
  }
  if (!absl::EndsWith(source, ".json") && !absl::EndsWith(source, ".model")) {
    return absl::InvalidArgumentError(
        absl::StrCat(source,
                     " is no tokenizer: expected a tokenizer.json (*.json), a SentencePiece "
                     "*.model, or a folder with one"));
  }
  if (file_system.Exists(source)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no tokenizer ", source));
}

absl::Status ExportHuggingFace(FileSystem& file_system, const v1::ModelConfig& model,
                               const FragmentPlan& plan, std::span<const float> parameters,
                               const std::string& folder, const ExportOptions& options) {
  ASSIGN_OR_RETURN(const Architecture architecture, ChooseArchitecture(model));
  RETURN_IF_ERROR(CheckTokenizer(file_system, options.tokenizer));
  RETURN_IF_ERROR(CreateFoldersDurably(file_system, folder));
  const bool replaces = file_system.Exists(JoinPath(folder, "config.json"));
  std::vector<TensorSource> sources;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model, architecture)) {
    sources.push_back(MakeSource(tensor, plan, parameters, options.bf16));
  }
  RETURN_IF_ERROR(WriteSafetensors(file_system, folder, sources, options.max_file_bytes));
  json config = MakeHuggingFaceConfig(model, architecture, options.bf16 ? "bfloat16" : "float32",
                                      options.max_positions);
  RETURN_IF_ERROR(AddTokenizer(file_system, options, folder, replaces, config));
  const std::string generation = JoinPath(folder, kGenerationConfig);
  if (!file_system.Exists(generation)) {
    json content = {{"_from_model_config", true}};
    for (const char* id : kTokenIds) {
      if (!config[id].is_null()) content[id] = config[id];
    }
    RETURN_IF_ERROR(
        WriteFileAtomically(file_system, generation, absl::string_view(content.dump(2) + "\n")));
  }
  return WriteFileAtomically(file_system, JoinPath(folder, "config.json"),
                             absl::string_view(config.dump(2) + "\n"));
}

absl::Status ReplaceHuggingFace(const v1::ModelConfig& model, const FragmentPlan& plan,
                                std::span<const float> parameters, const std::string& folder,
                                const ExportOptions& options) {
  return ReplaceModel(folder, [&](const std::string& path) {
    return ExportHuggingFace(*FileSystem::Real(), model, plan, parameters, path, options);
  });
}

absl::Status ReplaceModel(const std::string& folder,
                          const std::function<absl::Status(const std::string& path)>& write) {
  // Without one, config.json, which comes last, makes it a model.
  if (CheckNoModel(*FileSystem::Real(), folder).ok()) return write(folder);
  const auto is_kept = [](absl::string_view name) {
    return !(absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors")) &&
           name != "model.safetensors.index.json";
  };
  return ReplaceFolder(folder, is_kept, write);
}

absl::Status CheckModelFolder(const std::string& folder, bool replace) {
  FileSystem& file_system = *FileSystem::Real();
  if (file_system.Exists(folder) && !file_system.IsFolder(folder)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out=", folder, " is a file: give a folder"));
  }
  const absl::Status none = CheckNoModel(file_system, folder);
  return none.ok() || !replace ? none : CheckReplaceable(folder);
}

absl::Status CheckNoModel(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
  for (const std::string& name : names) {
    if (name != "config.json" && !absl::EndsWith(name, ".safetensors")) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--out=", folder, " holds a model already (", name,
                     "): choose another folder, or give --replace to write over it"));
  }
  return absl::OkStatus();
}

}  // namespace causeway
