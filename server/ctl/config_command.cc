#include "server/ctl/commands.h"

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/files/json.h"
#include "common/params/run_config.h"

namespace causeway::server {

absl::StatusOr<v1::RunConfig> LoadCompleteConfig(const std::string& file, const std::string& preset,
                                                 ModelIs model) {
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
  const absl::StatusOr<ConfigWarnings> warnings = CompleteRunConfig(config, model);
  RETURN_IF_ERROR(Annotate(warnings.status(), source));
  for (const std::string& warning : *warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return config;
}

absl::StatusOr<std::string> PresetsText(const std::string& name, bool json) {
  if (!name.empty()) {
    ASSIGN_OR_RETURN(const v1::RunConfig config,
                     LoadCompleteConfig("", name, ModelIs::kStillToCome));
    return json ? ConfigJson(config) : FormatRunConfig(config);
  }
  if (json) {
    const nlohmann::json names = {{"runs", RunPresetNames()}, {"models", ModelPresetNames()}};
    return absl::StrCat(names.dump(2), "\n");
  }
  std::string text = "runs (--preset=NAME, or causewayctl config presets NAME to see one):\n";
  for (const std::string& preset : RunPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  text += "models (model { preset: \"NAME\" }):\n";
  for (const std::string& preset : ModelPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  return text;
}

std::string ConfigJson(const v1::RunConfig& config) {
  return absl::StrCat(MessageToJson(config).dump(2), "\n");
}

std::string DifferenceText(const std::string& difference, bool json) {
  const std::vector<std::string> lines = absl::StrSplit(difference, "; ", absl::SkipEmpty());
  if (json) {
    const nlohmann::json differences = {{"differences", lines}};
    return absl::StrCat(differences.dump(2), "\n");
  }
  return lines.empty() ? std::string() : absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

}  // namespace causeway::server
