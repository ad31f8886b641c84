// A run's configuration: parsing, defaults, presets, and the refusal of what cannot work.
//
//   ASSIGN_OR_RETURN(v1::RunConfig config, RunPreset("best"));          // see below
//   ASSIGN_OR_RETURN(config, ParseRunConfig(text, "run.textproto", config));
//   ASSIGN_OR_RETURN(ConfigWarnings warnings, CompleteRunConfig(config));
//
// After CompleteRunConfig every field has its effective value, so that the same bytes mean the
// same run for ever, whatever later versions take as defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"

namespace causeway {

// Settings that work but are known to train badly together, each with the field's name.
using ConfigWarnings = std::vector<std::string>;

// Reads a textproto over `base` (a preset, or empty): what the text says replaces the base's
// fields. INVALID_ARGUMENT, with `source`, line and column, for an unknown field or a malformed
// value.
absl::StatusOr<v1::RunConfig> ParseRunConfig(const std::string& text, absl::string_view source,
                                             const v1::RunConfig& base = {});

// A textproto that ParseRunConfig reads back.
std::string FormatRunConfig(const v1::RunConfig& config);

// Says who gives the model. kGiven: the configuration, by `model` or by `tensors`. kStillToCome: a
// file or a site (`serve --initial`); then it may have neither, and is complete but for that.
enum class ModelIs { kGiven, kStillToCome };

// Fills in every default and checks every range and combination. INVALID_ARGUMENT names the
// field, what it must be and what it is.
absl::StatusOr<ConfigWarnings> CompleteRunConfig(v1::RunConfig& config,
                                                 ModelIs model = ModelIs::kGiven);

// Returns FAILED_PRECONDITION for a run of `tensors`: causeway-worker and the tools that read its
// models have no code for it. The message says who does.
absl::Status CheckOwnModel(const v1::RunConfig& config);

// Steps after its send at which a worker waits for an answer: tau_max, or tau.
int MaxOverlapSteps(const v1::SyncConfig& sync);

// Requires a complete configuration.
uint64_t RunConfigHash(const v1::RunConfig& config);

// "train.steps: 800 -> 900; sync.codec_up: INT4 -> LM2", or "" if they are the same.
std::string ConfigDifference(const v1::RunConfig& from, const v1::RunConfig& to);

// Letters, digits, '-', '_' and '.', 1..64 of them. INVALID_ARGUMENT names `what`.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// A round of fewer contributions has no values to spare: TRIMMED_MEAN takes all of them.
inline constexpr int kFewestToTrim = 5;

// Named model shapes and named sets of training and synchronization settings.

// Shape fields only. INVALID_ARGUMENT lists the names.
absl::StatusOr<v1::ModelConfig> ModelPreset(absl::string_view name);
std::vector<std::string> ModelPresetNames();

// Train, sync and outer settings. INVALID_ARGUMENT lists the names.
//   paper          Streaming DiLoCo as in 2501.18512: AdamW inside, e3m0 both ways, lr 0.4, mu 0.9
//   best           what measured best here: Muon inside, lm2 both ways, lr 1, no momentum
//   streaming      another name of best
//   diloco         one fragment, no overlap, fp32 both ways (2311.08105)
//   data-parallel  gradients at every step, AdamW at the coordinator, bf16 both ways
absl::StatusOr<v1::RunConfig> RunPreset(absl::string_view name);
std::vector<std::string> RunPresetNames();

// Fills in the shape that model.preset names, and then every default that is the same in all runs.
// CompleteRunConfig calls it. INVALID_ARGUMENT for an unknown preset.
absl::Status FillInDefaults(v1::RunConfig& config);

}  // namespace causeway
