#include "common/files/model_folder.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "common/base/text.h"
#include "common/codec/codec_layout.h"
#include "common/files/replace_folder.h"
#include "common/params/run_config.h"

namespace causeway {
namespace {

// Without the rows that pad the vocabulary.
TensorInfo WithoutPadding(TensorInfo tensor, const v1::RunConfig& config) {
  const bool padded = tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kHead;
  if (config.has_tensors() || !padded) return tensor;
  tensor.rows = config.model().vocabulary_size();
  tensor.shape[0] = tensor.rows;
  return tensor;
}

uint16_t ToBf16(float value) { return std::isnan(value) ? uint16_t{0x7fc0} : Bf16Nearest(value); }

TensorSource MakeSource(const TensorInfo& tensor, std::span<const float> values, bool bf16) {
  const uint64_t value_bytes = bf16 ? 2 : 4;
  return {.name = tensor.name,
          .dtype = bf16 ? "BF16" : "F32",
          .shape = tensor.shape,
          .bytes = values.size() * value_bytes,
          .read = [values, bf16](uint64_t begin, std::span<uint8_t> out) {
            if (!bf16) {
              std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(values.data()) + begin,
                          out.size());
              return;
            }
            for (size_t at = 0; at < out.size(); at += 2) {
              const uint16_t bits = ToBf16(values[(static_cast<size_t>(begin) + at) / 2]);
              std::memcpy(out.data() + at, &bits, sizeof(bits));
            }
          }};
}

absl::Status CopyTensor(const SafeTensor& from, const TensorInfo& to, const std::string& path,
                        std::span<float> out) {
  if (from.shape != to.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the tensor ", to.name, " is ", ShapeText(to), " in the run's model, but ",
        ShapeText(from.shape), " in the given parameters"));
  }
  const TensorValues values(from);
  for (int64_t i = 0; i < to.size(); ++i) {
    const float value = values.At(i);
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the tensor ", to.name,
                                                     " has the value ", value, " at index ", i,
                                                     "; parameters must be finite"));
    }
    out[static_cast<size_t>(i)] = value;
  }
  return absl::OkStatus();
}

// `tensors`: what the files must hold, in the plan's order.
absl::Status CopyAll(const SafetensorsFolder& files, const std::string& path,
                     const FragmentPlan& plan, const std::vector<TensorInfo>& tensors,
                     std::span<float> arena) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    RETURN_IF_ERROR(CopyTensor(files.tensors().at(tensors[i].name), tensors[i], path,
                               arena.subspan(static_cast<size_t>(plan.tensors()[i].offset))));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const SafetensorsFolder& files, const std::string& path,
                        const FragmentPlan& plan) {
  std::set<std::string> left;
  for (const auto& [name, tensor] : files.tensors()) left.insert(name);
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (left.erase(tensor.info.name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": the run's model has a tensor ", tensor.info.name, " ", ShapeText(tensor.info),
          ", the given parameters have none (a checkpoint of Hugging Face's becomes one of "
          "Causeway's by python3 -m causeway.huggingface import)"));
    }
  }
  if (left.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": the given parameters have a tensor ",
                                                 *left.begin(), ", the run's model has none"));
}

absl::Status CheckNoModel(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
  for (const std::string& name : names) {
    if (name != kModelFile && name != "config.json" && !absl::EndsWith(name, ".safetensors")) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("--out=", folder, " holds a model already (", name,
                     "): choose another folder, or give --replace to write over it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteModelFolder(FileSystem& file_system, const v1::RunConfig& config,
                              const FragmentPlan& plan, std::span<const float> parameters,
                              const std::string& folder, const ModelFolderOptions& options) {
  std::vector<TensorSource> sources;
  for (const TensorInfo& tensor : RunTensors(config)) {
    const TensorInfo stored = WithoutPadding(tensor, config);
    const auto offset = static_cast<size_t>(plan.Find(tensor.name)->offset);
    sources.push_back(MakeSource(
        stored, parameters.subspan(offset, static_cast<size_t>(stored.size())), options.bf16));
  }
  RETURN_IF_ERROR(CreateFoldersDurably(file_system, folder));
  RETURN_IF_ERROR(WriteSafetensors(file_system, folder, sources, options.max_file_bytes));
  if (config.has_tensors()) return absl::OkStatus();
  v1::RunConfig shape;
  *shape.mutable_model() = config.model();
  return WriteFileAtomically(file_system, JoinPath(folder, kModelFile),
                             absl::string_view(FormatRunConfig(shape)));
}

absl::Status ReplaceModelFolder(const v1::RunConfig& config, const FragmentPlan& plan,
                                std::span<const float> parameters, const std::string& folder,
                                const ModelFolderOptions& options) {
  const auto write = [&](const std::string& path) {
    return WriteModelFolder(*FileSystem::Real(), config, plan, parameters, path, options);
  };
  if (CheckNoModel(*FileSystem::Real(), folder).ok()) return write(folder);
  const auto is_kept = [](absl::string_view name) {
    return !(absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors")) &&
           name != kSafetensorsIndexFile && name != kModelFile;
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

bool IsModelFolder(FileSystem& file_system, const std::string& path) {
  return file_system.IsFolder(path) && file_system.Exists(JoinPath(path, kModelFile));
}

absl::StatusOr<v1::RunConfig> ReadModelFile(FileSystem& file_system, const std::string& folder) {
  const std::string path = JoinPath(folder, kModelFile);
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  ASSIGN_OR_RETURN(v1::RunConfig config, ParseRunConfig(text, path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(config).status(), path));
  if (config.has_tensors()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " must hold a model; it has tensors"));
  }
  return config;
}

absl::StatusOr<ModelFolder> ReadModelFolder(FileSystem& file_system, const std::string& folder) {
  ModelFolder read;
  ASSIGN_OR_RETURN(read.config, ReadModelFile(file_system, folder));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(read.config));
  ASSIGN_OR_RETURN(const SafetensorsFolder files, OpenWeights(file_system, folder));
  // Before the arena is allocated: the files hold as many values.
  RETURN_IF_ERROR(CheckNames(files, folder, plan));
  std::vector<TensorInfo> stored;
  for (const PlacedTensor& tensor : plan.tensors()) {
    stored.push_back(WithoutPadding(tensor.info, read.config));
    const SafeTensor& found = files.tensors().at(tensor.info.name);
    if (found.shape == stored.back().shape) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": the tensor ", tensor.info.name, " is ", ShapeText(found.shape),
                     "; its ", kModelFile, " takes ", ShapeText(stored.back())));
  }
  read.values.resize(static_cast<size_t>(plan.arena_size()));
  RETURN_IF_ERROR(CopyAll(files, folder, plan, stored, read.values));
  return read;
}

absl::StatusOr<SafetensorsFolder> OpenWeights(FileSystem& file_system, const std::string& path) {
  absl::StatusOr<SafetensorsFolder> files =
      file_system.IsFolder(path) ? SafetensorsFolder::Open(file_system, path)
      : absl::EndsWith(path, kSafetensorsIndexFile)
          ? SafetensorsFolder::Open(file_system, ParentFolder(path))
          : SafetensorsFolder::OpenFile(file_system, path);
  if (!files.ok()) return files;
  for (const auto& [name, tensor] : files->tensors()) {
    if (TensorValues::Reads(tensor.dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the tensor \"", Printable(name.substr(0, 200)), "\" is ", tensor.dtype,
        "; F32, BF16 and F16 are read (leave out of the file what is not trained)"));
  }
  return files;
}

absl::StatusOr<std::vector<float>> ReadWeights(FileSystem& file_system, const std::string& path,
                                               const FragmentPlan& plan) {
  ASSIGN_OR_RETURN(const SafetensorsFolder files, OpenWeights(file_system, path));
  RETURN_IF_ERROR(CheckNames(files, path, plan));
  std::vector<TensorInfo> tensors;
  for (const PlacedTensor& tensor : plan.tensors()) tensors.push_back(tensor.info);
  std::vector<float> arena(static_cast<size_t>(plan.arena_size()));
  RETURN_IF_ERROR(CopyAll(files, path, plan, tensors, arena));
  return arena;
}

namespace {

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {  // Zero, or below the normal range.
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign == 0 ? magnitude : -magnitude;
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace

float TensorValues::At(int64_t index) const {
  if (wide_) {
    float value = 0;
    std::memcpy(&value, bytes_ + index * 4, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes_ + index * 2, sizeof(bits));
  return half_ ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

}  // namespace causeway
