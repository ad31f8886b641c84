#include "server/ctl/config_command.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/params/fragment_plan.h"
#include "common/params/presets.h"
#include "common/params/run_config.h"

namespace causeway::server {

absl::StatusOr<v1::RunConfig> LoadCompleteConfig(const std::string& file,
                                                 const std::string& preset) {
  if (file.empty() && preset.empty()) {
    return absl::InvalidArgumentError("give a configuration file, --preset=NAME, or both");
  }
  v1::RunConfig config;
  if (!preset.empty()) {
    ASSIGN_OR_RETURN(config, RunPreset(preset));
  }
  if (!file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, FileSystem::Real()->ReadFile(file));
    ASSIGN_OR_RETURN(config, ParseRunConfig(text, file, config));
  }
  const std::string source = file.empty() ? preset : file;
  const absl::StatusOr<ConfigWarnings> warnings = CompleteRunConfig(config);
  RETURN_IF_ERROR(Annotate(warnings.status(), source));
  RETURN_IF_ERROR(Annotate(FragmentPlan::Create(config.model(), config.sync()).status(), source));
  for (const std::string& warning : *warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return config;
}

absl::StatusOr<std::string> PresetsText(const std::string& name) {
  if (!name.empty()) {
    ASSIGN_OR_RETURN(const v1::RunConfig config, LoadCompleteConfig("", name));
    return FormatRunConfig(config);
  }
  std::string text = "runs (--preset=NAME, or causewayctl config presets NAME to see one):\n";
  for (const std::string& preset : RunPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  text += "models (model { preset: \"NAME\" }):\n";
  for (const std::string& preset : ModelPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  return text;
}

}  // namespace causeway::server
