// import and export: checkpoints of Hugging Face in and out.
#include <cstdio>
#include <memory>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/files/parameters_file.h"
#include "common/huggingface/huggingface_export.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "worker/commands/commands.h"
#include "worker/commands/given_model.h"
#include "worker/data/tokenizer.h"
#include "worker/io/huggingface_import.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(bool, replace);
ABSL_DECLARE_FLAG(std::string, tokenizer);
ABSL_FLAG(std::string, from, "", "FOLDER: has config.json and safetensors");
ABSL_FLAG(std::string, dtype, "f32", "f32|bf16: of the weights");
ABSL_FLAG(double, max_file_gb, 5, "above that the weights go into several files");
ABSL_FLAG(int64_t, max_positions, 0,
          "N: max_position_embeddings of config.json; else the training windows' length");

namespace causeway::worker {
namespace {

absl::Status Import() {
  const std::string from = absl::GetFlag(FLAGS_from);
  const std::string out = absl::GetFlag(FLAGS_out);
  if (from.empty() || out.empty()) {
    return absl::InvalidArgumentError(
        "give --from=FOLDER (config.json and safetensors) and --out=FILE (the parameters)");
  }
  ASSIGN_OR_RETURN(const int sequence_length, GivenSequenceLength());
  FileSystem& file_system = *FileSystem::Real();
  ASSIGN_OR_RETURN(const ImportedModel imported,
                   ImportHuggingFace(file_system, from, sequence_length));
  RETURN_IF_ERROR(WriteParametersFile(file_system, out, {{"source", from}},
                                      FormatRunConfig(imported.config), imported.parameters));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(imported.config));
  v1::RunConfig shape;
  *shape.mutable_model() = imported.config.model();
  std::printf("%s", FormatRunConfig(shape).c_str());
  std::fprintf(stderr,
               "%s with %lld parameters is in %s; a run starts from it with\n"
               "  causeway-coordinator serve --initial=%s --config=FILE --run_dir=FOLDER\n",
               std::string(ArchitectureName(imported.description.architecture)).c_str(),
               static_cast<long long>(plan.parameters()), out.c_str(), out.c_str());
  return absl::OkStatus();
}

absl::Status TakeTokenizer(const std::string& name, int64_t vocabulary_size,
                           ExportOptions& options) {
  if (name == "bytes") return absl::OkStatus();  // The default, which has no files.
  options.tokenizer = name;
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(*FileSystem::Real(), name);
  if (absl::IsNotFound(tokenizer.status()) && !FileSystem::Real()->IsFolder(name)) {
    return tokenizer.status();
  }
  if (tokenizer.ok()) {
    if ((*tokenizer)->vocabulary_size() > vocabulary_size) {
      std::fprintf(
          stderr,
          "causeway-worker export: the tokenizer %s has %lld tokens, the model %lld: is it "
          "the one that the model was trained with?\n",
          name.c_str(), static_cast<long long>((*tokenizer)->vocabulary_size()),
          static_cast<long long>(vocabulary_size));
    }
    options.begin_of_text = (*tokenizer)->begin_of_text();
    options.end_of_text = (*tokenizer)->end_of_text();
  } else {
    // Exports need not be of a tokenizer that could make data here.
    std::fprintf(
        stderr,
        "causeway-worker export: %s is copied unread (%s): the eos_token_id in config.json "
        "is what its own config.json says, or null\n",
        name.c_str(), std::string(tokenizer.status().message()).c_str());
  }
  return absl::OkStatus();
}

absl::Status Export() {
  const std::string out = absl::GetFlag(FLAGS_out);
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  const double max_file_gb = absl::GetFlag(FLAGS_max_file_gb);
  if (out.empty()) return absl::InvalidArgumentError("--out is required: the folder to write");
  if (!(max_file_gb >= 1e-6 && max_file_gb <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_file_gb must be in 1e-6 .. 1e6; it is ", max_file_gb));
  }
  const int64_t max_positions = absl::GetFlag(FLAGS_max_positions);
  constexpr int64_t kMostPositions = int64_t{1} << 30;
  if (max_positions < 0 || max_positions > kMostPositions) {
    return absl::InvalidArgumentError(absl::StrCat("--max_positions must be in 0 .. ",
                                                   kMostPositions, "; it is ", max_positions));
  }
  RETURN_IF_ERROR(CheckModelFolder(out, absl::GetFlag(FLAGS_replace)));
  ExportOptions options;
  options.bf16 = dtype == "bf16";
  options.max_file_bytes = static_cast<uint64_t>(max_file_gb * 1e9);
  options.max_positions = max_positions;
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  const v1::ModelConfig& model = stored.config.model();
  RETURN_IF_ERROR(TakeTokenizer(absl::GetFlag(FLAGS_tokenizer), model.vocabulary_size(), options));
  ASSIGN_OR_RETURN(const Architecture architecture, ChooseArchitecture(model));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  RETURN_IF_ERROR(ReplaceHuggingFace(model, plan, stored.parameters, out, options));
  std::printf("%s with %lld parameters of %s is in %s\n",
              std::string(ArchitectureName(architecture)).c_str(),
              static_cast<long long>(plan.parameters()), GivenModelName().c_str(), out.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunImport() {
  const absl::Status status = Import();
  return status.ok() ? 0 : Refuse("causeway-worker import", status);
}

int RunExport() {
  const absl::Status status = Export();
  return status.ok() ? 0 : Refuse("causeway-worker export", status);
}

}  // namespace causeway::worker
