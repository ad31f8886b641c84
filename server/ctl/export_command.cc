#include "server/ctl/commands.h"

#include <unistd.h>

#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/client/grpc_exchange.h"
#include "common/files/json.h"
#include "common/files/model_folder.h"
#include "common/params/fragment_plan.h"

ABSL_FLAG(std::string, out, "", "FOLDER: receives the model");
ABSL_FLAG(std::string, dtype, "f32", "f32|bf16: of the weights");
ABSL_FLAG(double, max_file_gb, 5, "above that the weights go into several files");
ABSL_FLAG(absl::Duration, deadline, absl::InfiniteDuration(),
          "TIME: fetches all of it within so long, or fails");
ABSL_FLAG(bool, replace, false, "writes over a model that is in the folder");

namespace causeway::server {
namespace {

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
  ModelFolderOptions options;
  options.bf16 = absl::GetFlag(FLAGS_dtype) == "bf16";
  options.max_file_bytes = static_cast<uint64_t>(absl::GetFlag(FLAGS_max_file_gb) * 1e9);
  return ReplaceModelFolder(status.config(), plan, state.parameters, absl::GetFlag(FLAGS_out),
                            options);
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
  if (absl::GetFlag(FLAGS_deadline) <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--deadline must be more than 0; it is ",
                     absl::FormatDuration(absl::GetFlag(FLAGS_deadline))));
  }
  return CheckModelFolder(out, absl::GetFlag(FLAGS_replace));
}

absl::StatusOr<std::string> ExportCommand(RunAdmin& run, bool json) {
  ASSIGN_OR_RETURN(const v1::RunStatus status, run.GetStatus());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(status.config()));
  Progress progress;
  StatePullOptions pull;
  pull.deadline = absl::Now() + absl::GetFlag(FLAGS_deadline);
  pull.progress = [&](int64_t bytes, int64_t all_bytes) { progress.Show(bytes, all_bytes); };
  const absl::StatusOr<PublishedState> state =
      PullPublishedState(run.channels(), status.run_id(), plan, pull);
  if (!state.ok()) return Explain(state.status(), pull.deadline, progress);
  RETURN_IF_ERROR(Write(status, plan, *state));
  const std::string out = absl::GetFlag(FLAGS_out);
  if (json) {
    const nlohmann::json result = {{"run_id", status.run_id()},
                                   {"run_step", status.run_step()},
                                   {"parameters", plan.parameters()},
                                   {"versions", state->versions},
                                   {"out", out}};
    return absl::StrCat(JsonText(result, 2), "\n");
  }
  return absl::StrCat(plan.parameters(), " parameters of run ", status.run_id(), " at step ",
                      status.run_step(), " are in ", out, "\n");
}

}  // namespace causeway::server
