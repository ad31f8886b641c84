#include "tests/reference/trace_configurations.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"

namespace causeway {
namespace {

// A vocabulary that needs padding, grouped queries, three blocks.
constexpr char kCommon[] = R"(
  model { vocabulary_size: 61 layers: 3 width: 16 heads: 4 kv_heads: 2 mlp_width: 24
          qk_norm: true sequence_length: 12 }
  train { steps: 26 learning_rate: 3e-3 warmup_steps: 5 clip_norm: 0.8 weight_decay: 0.1 }
  outer { optimizer: NESTEROV learning_rate: 0.7 momentum: 0.8 }
  membership { start_workers: 3 max_workers: 3 quorum: 3 lease_ms: 3600000 }
)";

struct NamedText {
  const char* name;
  const char* text;
};

constexpr NamedText kConfigurations[] = {
    // Four fragments, one sent every other step, three steps out.
    {"int4-int4", R"(
      sync { pattern: STRIDED fragments: 3 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: INT4 codec_down: INT4 }
      train { seed: 1 })"},
    {"e3m0-e3m0-feedback", R"(
      sync { pattern: STRIDED fragments: 2 steps_between_syncs: 6 overlap_steps: 4 mixing: 0.5
             codec_up: E3M0 codec_down: E3M0 error_feedback: true }
      train { seed: 2 })"},
    // Fragments of equal size, cut between rows.
    {"e2m1-bf16-feedback", R"(
      sync { pattern: BALANCED fragments: 5 steps_between_syncs: 7 overlap_steps: 4 mixing: 0.5
             codec_up: E2M1 codec_down: BF16 error_feedback: true }
      train { seed: 3 })"},
    // The other model: plain MLP, a head of its own, z-loss, no normalization of queries and keys.
    {"int8-fp32-gelu", R"(
      model { mlp: GELU untied_head: true z_loss: 1e-3 qk_norm: false }
      sync { pattern: BALANCED fragments: 4 steps_between_syncs: 6 overlap_steps: 5 mixing: 0.5
             codec_up: INT8 codec_down: FP32 }
      train { seed: 4 clip_norm: -1 })"},
    // 2 bits both ways, fragments of several codec chunks.
    {"lm2-feedback", R"(
      model { width: 32 mlp_width: 48 }
      sync { pattern: BALANCED fragments: 2 steps_between_syncs: 8 overlap_steps: 5 mixing: 0.5
             codec_up: LM2 codec_down: LM2 error_feedback: true }
      outer { momentum: 0.6 }
      train { seed: 5 })"},
    // 1 bit both ways.
    {"sign1-feedback", R"(
      model { width: 24 mlp_width: 20 }
      sync { pattern: BALANCED fragments: 2 steps_between_syncs: 4 overlap_steps: 2 mixing: 0
             codec_up: SIGN1 codec_down: SIGN1 error_feedback: true }
      outer { optimizer: SGD learning_rate: 1 momentum: 0 }
      train { seed: 18 })"},
    {"bf16-e2m1", R"(
      sync { pattern: SEQUENTIAL fragments: 2 steps_between_syncs: 7 overlap_steps: 4 mixing: 0.25
             codec_up: BF16 codec_down: E2M1 }
      train { seed: 6 })"},
    {"int4-int8-feedback", R"(
      sync { pattern: BALANCED fragments: 6 steps_between_syncs: 8 overlap_steps: 7 mixing: 0.5
             codec_up: INT4 codec_down: INT8 error_feedback: true }
      train { seed: 7 })"},
    // Nothing that a codec could hide; the other inner optimizer.
    {"fp32-fp32-muon", R"(
      sync { pattern: STRIDED fragments: 3 steps_between_syncs: 8 overlap_steps: 4 mixing: 0.5
             codec_up: FP32 codec_down: FP32 }
      outer { momentum: 0.6 }
      train { seed: 9 optimizer: MUON muon_learning_rate: 0.01 })"},
    // The other outer optimizer, and the merge of norms and directions, over several codec chunks.
    {"int4-int4-adam", R"(
      sync { pattern: STRIDED fragments: 3 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: INT4 codec_down: INT4 }
      outer { optimizer: ADAM learning_rate: 2e-3 momentum: 0 }
      train { seed: 10 })"},
    {"e3m0-int4-norm-and-direction", R"(
      model { width: 32 mlp_width: 48 }
      sync { pattern: BALANCED fragments: 2 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: E3M0 codec_down: INT4 error_feedback: true }
      outer { merge: NORM_AND_DIRECTION momentum: 0.6 }
      train { seed: 11 })"},
    // Longer deltas count as if they were as long as the median, in order of worker id as ever.
    {"int4-fp32-clipped", R"(
      model { width: 32 mlp_width: 48 }
      sync { pattern: BALANCED fragments: 2 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: INT4 codec_down: FP32 }
      outer { clip_factor: 1 }
      train { seed: 14 })"},
    {"int8-int4-clipped-direction", R"(
      sync { pattern: STRIDED fragments: 3 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: INT8 codec_down: INT4 }
      outer { merge: NORM_AND_DIRECTION clip_factor: 1 momentum: 0.6 }
      train { seed: 15 })"},
    // Five workers, of which two are left out at every value.
    {"e3m0-int4-trimmed", R"(
      sync { pattern: STRIDED fragments: 2 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: E3M0 codec_down: INT4 error_feedback: true }
      outer { merge: TRIMMED_MEAN momentum: 0.6 }
      membership { start_workers: 5 max_workers: 5 quorum: 5 }
      train { seed: 16 })"},
    {"int4-int8-trimmed-clipped", R"(
      model { width: 32 mlp_width: 48 }
      sync { pattern: BALANCED fragments: 2 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5
             codec_up: INT4 codec_down: INT8 }
      outer { merge: TRIMMED_MEAN trim: 2 clip_factor: 1 optimizer: ADAM learning_rate: 2e-3
              momentum: 0 }
      membership { start_workers: 5 max_workers: 5 quorum: 5 }
      train { seed: 17 })"},
    // Training in flight is kept: all of it, and most of it.
    {"int4-int4-keep", R"(
      sync { pattern: STRIDED fragments: 3 steps_between_syncs: 8 overlap_steps: 5
             keep_in_flight: 1 codec_up: INT4 codec_down: INT4 error_feedback: true }
      train { seed: 12 })"},
    {"fp32-int8-keep", R"(
      sync { pattern: BALANCED fragments: 4 steps_between_syncs: 6 overlap_steps: 2
             keep_in_flight: 0.7 codec_up: FP32 codec_down: INT8 }
      train { seed: 13 optimizer: MUON muon_learning_rate: 0.01 })"},
    // Plain DiLoCo: one fragment, no overlap, nothing local kept, nothing left out.
    {"fp32-fp32-diloco", R"(
      sync { fragments: 1 steps_between_syncs: 6 overlap_steps: 0 mixing: 0
             codec_up: FP32 codec_down: FP32 }
      train { seed: 8 })"},
};

}  // namespace

std::vector<std::string> TraceConfigurationNames() {
  std::vector<std::string> names;
  for (const NamedText& configuration : kConfigurations) names.emplace_back(configuration.name);
  return names;
}

absl::StatusOr<v1::RunConfig> TraceConfiguration(absl::string_view name) {
  for (const NamedText& configuration : kConfigurations) {
    if (name != configuration.name) continue;
    ASSIGN_OR_RETURN(v1::RunConfig config, ParseRunConfig(kCommon, "common"));
    ASSIGN_OR_RETURN(config, ParseRunConfig(configuration.text, configuration.name, config));
    RETURN_IF_ERROR(CompleteRunConfig(config).status());
    return config;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no configuration \"", name,
                   "\"; known: ", absl::StrJoin(TraceConfigurationNames(), ", ")));
}

}  // namespace causeway
