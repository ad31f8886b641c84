#include "server/ctl/export_command.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/client/state_pull.h"
#include "common/files/parameters_file.h"
#include "common/huggingface/huggingface_config.h"
#include "common/huggingface/huggingface_export.h"
#include "common/huggingface/tensor_export.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"

ABSL_FLAG(std::string, out, "", "FOLDER: receives the model; with --format=parameters a file");
ABSL_FLAG(std::string, format, "huggingface",
          "huggingface|parameters: safetensors and config.json, or what a run can start from");
ABSL_FLAG(std::string, dtype, "f32", "f32|bf16: of the weights");
ABSL_FLAG(std::string, tokenizer, "", "FILE|FOLDER: a tokenizer's, to be copied");
ABSL_FLAG(int64_t, max_positions, 0,
          "N: max_position_embeddings of config.json; else the training windows' length");
ABSL_FLAG(double, max_file_gb, 5, "above that the weights go into several files");
ABSL_FLAG(absl::Duration, deadline, absl::InfiniteDuration(),
          "TIME: fetches all of it within so long, or fails");
ABSL_FLAG(bool, replace, false, "writes over a model that is in the folder");

namespace causeway::server {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 30;

bool AsParametersFile() { return absl::GetFlag(FLAGS_format) == "parameters"; }

// Refuses what cannot be written before gigabytes are fetched.
absl::Status CheckModel(const v1::RunConfig& config) {
  if (AsParametersFile()) return absl::OkStatus();
  if (config.has_tensors()) {
    if (absl::GetFlag(FLAGS_tokenizer).empty() && absl::GetFlag(FLAGS_max_positions) == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--tokenizer and --max_positions must be left out: this is a run of tensors, and what is "
        "written is their safetensors alone");
  }
  return Annotate(ChooseArchitecture(config.model()).status(),
                  "this model is none of Hugging Face's (--format=parameters takes any)");
}

// How far it is, on standard error: a line that is written over on a terminal, one now and then
// elsewhere.
class Progress {
 public:
  void Show(int64_t bytes, int64_t all_bytes) {
    shown_bytes_ = bytes;
    all_bytes_ = all_bytes;
    const absl::Time now = absl::Now();
    const bool complete = bytes == all_bytes;
    if (now < next_ && !(complete && terminal_)) return;
    next_ = now + (terminal_ ? absl::Milliseconds(200) : absl::Seconds(30));
    const double seconds = absl::ToDoubleSeconds(now - start_);
    const double megabytes = 1e-6 * static_cast<double>(bytes);
    std::fprintf(stderr, "%s%.1f of %.1f MB, %.1f MB/s%s", terminal_ ? "\r" : "", megabytes,
                 1e-6 * static_cast<double>(all_bytes), seconds > 0 ? megabytes / seconds : 0,
                 terminal_ && !complete ? "  " : "\n");
  }

  // Says how much has come, and of how much.
  std::string Reached() const {
    if (all_bytes_ == 0) return "nothing has come";
    return absl::StrFormat("%.1f of %.1f MB have come", 1e-6 * static_cast<double>(shown_bytes_),
                           1e-6 * static_cast<double>(all_bytes_));
  }

 private:
  int64_t shown_bytes_ = 0;
  int64_t all_bytes_ = 0;  // 0: nothing is known yet.
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const absl::Time start_ = absl::Now();
  absl::Time next_ = start_ + (terminal_ ? absl::ZeroDuration() : absl::Seconds(30));
};

// That --deadline is over, if that is why the fetch failed: what was asked for, and how far it
// came.
absl::Status Explain(const absl::Status& failure, absl::Time deadline, const Progress& progress) {
  if (!IsNoAnswer(failure) || absl::Now() < deadline) return failure;
  return absl::DeadlineExceededError(absl::StrCat(
      "--deadline=", absl::FormatDuration(absl::GetFlag(FLAGS_deadline)), " is over: ",
      progress.Reached(), ", and nothing was written; give it more time, or none to wait for all (",
      failure.message(), ")"));
}

absl::Status Write(const v1::RunStatus& status, const FragmentPlan& plan,
                   const PublishedState& state) {
  const std::string out = absl::GetFlag(FLAGS_out);
  if (AsParametersFile()) {
    return WriteParametersFile(*FileSystem::Real(), out,
                               {{"run_id", status.run_id()}, {"run_step", status.run_step()}},
                               FormatRunConfig(status.config()), state.parameters);
  }
  if (status.config().has_tensors()) {
    const auto max_file_bytes = static_cast<uint64_t>(absl::GetFlag(FLAGS_max_file_gb) * 1e9);
    return ReplaceModel(out, [&](const std::string& folder) {
      return ExportTensors(*FileSystem::Real(), RunTensors(status.config()), plan, state.parameters,
                           absl::GetFlag(FLAGS_dtype) == "bf16", max_file_bytes, folder);
    });
  }
  ExportOptions options;
  options.bf16 = absl::GetFlag(FLAGS_dtype) == "bf16";
  options.max_file_bytes = static_cast<uint64_t>(absl::GetFlag(FLAGS_max_file_gb) * 1e9);
  options.max_positions = absl::GetFlag(FLAGS_max_positions);
  options.tokenizer = absl::GetFlag(FLAGS_tokenizer);
  return ReplaceHuggingFace(status.config().model(), plan, state.parameters, out, options);
}

}  // namespace

absl::Status CheckExportFlags() {
  const std::string out = absl::GetFlag(FLAGS_out);
  const double max_file_gb = absl::GetFlag(FLAGS_max_file_gb);
  if (out.empty()) {
    return absl::InvalidArgumentError("--out is required: the folder to write the model into");
  }
  if (!(max_file_gb >= 1e-6 && max_file_gb <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_file_gb must be in 1e-6 .. 1e6; it is ", max_file_gb));
  }
  const int64_t max_positions = absl::GetFlag(FLAGS_max_positions);
  if (max_positions < 0 || max_positions > kMostPositions) {
    return absl::InvalidArgumentError(absl::StrCat("--max_positions must be in 0 .. ",
                                                   kMostPositions, "; it is ", max_positions));
  }
  if (absl::GetFlag(FLAGS_deadline) <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--deadline must be more than 0; it is ",
                     absl::FormatDuration(absl::GetFlag(FLAGS_deadline))));
  }
  FileSystem& file_system = *FileSystem::Real();
  const bool replace = absl::GetFlag(FLAGS_replace);
  if (!AsParametersFile()) {
    RETURN_IF_ERROR(CheckTokenizer(file_system, absl::GetFlag(FLAGS_tokenizer)));
    return CheckModelFolder(out, replace);
  }
  if (file_system.IsFolder(out)) {
    return absl::FailedPreconditionError(absl::StrCat("--out=", out, " is a folder: give a file"));
  }
  if (!file_system.IsFolder(ParentFolder(out))) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out=", out, ": there is no folder ", ParentFolder(out)));
  }
  if (replace || !file_system.Exists(out)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--out=", out, " exists: choose another file, or give --replace to write over it"));
}

absl::StatusOr<std::string> ExportCommand(RunAdmin& run, bool json) {
  ASSIGN_OR_RETURN(const v1::RunStatus status, run.GetStatus());
  RETURN_IF_ERROR(CheckModel(status.config()));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(status.config()));
  Progress progress;
  StatePullOptions pull;
  pull.deadline = absl::Now() + absl::GetFlag(FLAGS_deadline);
  pull.progress = [&](int64_t bytes, int64_t all_bytes) { progress.Show(bytes, all_bytes); };
  const absl::StatusOr<PublishedState> state =
      PullPublishedState(run.channel(), status.run_id(), plan, pull);
  if (!state.ok()) return Explain(state.status(), pull.deadline, progress);
  RETURN_IF_ERROR(Write(status, plan, *state));
  const std::string out = absl::GetFlag(FLAGS_out);
  if (json) {
    const nlohmann::json result = {{"run_id", status.run_id()},
                                   {"run_step", status.run_step()},
                                   {"parameters", plan.parameters()},
                                   {"versions", state->versions},
                                   {"format", status.config().has_tensors() && !AsParametersFile()
                                                  ? "safetensors"
                                                  : absl::GetFlag(FLAGS_format)},
                                   {"out", out}};
    return absl::StrCat(result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
  }
  return absl::StrCat(plan.parameters(), " parameters of run ", status.run_id(), " at step ",
                      status.run_step(), " are in ", out, "\n");
}

}  // namespace causeway::server
