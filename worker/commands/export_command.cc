// export: the published parameters as a folder of safetensors.
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/model_folder.h"
#include "common/params/fragment_plan.h"
#include "worker/commands/commands.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(bool, replace);
ABSL_FLAG(std::string, dtype, "f32", "f32|bf16: of the weights");
ABSL_FLAG(double, max_file_gb, 5, "above that the weights go into several files");

namespace causeway::worker {
namespace {}  // namespace

absl::Status RunExport() {
  const std::string out = absl::GetFlag(FLAGS_out);
  const double max_file_gb = absl::GetFlag(FLAGS_max_file_gb);
  if (out.empty()) return absl::InvalidArgumentError("--out is required: the folder to write");
  if (!(max_file_gb >= 1e-6 && max_file_gb <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_file_gb must be in 1e-6 .. 1e6; it is ", max_file_gb));
  }
  RETURN_IF_ERROR(CheckModelFolder(out, absl::GetFlag(FLAGS_replace)));
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  ModelFolderOptions options;
  options.bf16 = absl::GetFlag(FLAGS_dtype) == "bf16";
  options.max_file_bytes = static_cast<uint64_t>(max_file_gb * 1e9);
  RETURN_IF_ERROR(ReplaceModelFolder(stored.config, plan, stored.parameters, out, options));
  std::printf("%lld parameters of %s are in %s\n", static_cast<long long>(plan.parameters()),
              GivenModelName().c_str(), out.c_str());
  return absl::OkStatus();
}

}  // namespace causeway::worker
