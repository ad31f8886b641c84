// Every range and every combination that CompleteRunConfig refuses, with the name of the field.
#include <ostream>
#include <string>

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Refusal {
  const char* text;
  const char* field;              // Start of the message.
  const char* hint = "; it is ";  // Another part of the message.
  const char* preset = "";
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.preset << " " << refusal.text;
}

class RefusedConfig : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, NamesTheField) {
  const Refusal& refusal = GetParam();
  const std::string preset = refusal.preset;
  const v1::RunConfig base = preset.empty() ? v1::RunConfig() : *RunPreset(preset);
  v1::RunConfig config = Parsed(refusal.text, Parsed(kSmallModel, base));
  EXPECT_THAT(
      CompleteRunConfig(config),
      StatusIs(kInvalidArgument, AllOf(StartsWith(refusal.field), HasSubstr(refusal.hint))));
}

INSTANTIATE_TEST_SUITE_P(
    Model, RefusedConfig,
    testing::Values(Refusal{"run_name: 'a b'", "run_name", "\"a b\""},
                    Refusal{"model { preset: 'huge' }", "model.preset", "tiny-1m"},
                    Refusal{"model { vocabulary_size: -1 }", "model.vocabulary_size", "; it is -1"},
                    Refusal{"model { vocabulary_size: 16777217 }", "model.vocabulary_size"},
                    Refusal{"model { layers: 0 }", "model.layers", "in 1 .. 1024; it is 0"},
                    Refusal{"model { layers: 1025 }", "model.layers"},
                    Refusal{"model { width: 0 }", "model.width"},
                    Refusal{"model { width: 65537 }", "model.width"},
                    Refusal{"model { width: 66 }", "model.width", "multiple of model.heads = 4"},
                    Refusal{"model { heads: 0 }", "model.heads"},
                    Refusal{"model { heads: -4 }", "model.heads"},
                    Refusal{"model { heads: 1025 }", "model.heads"},
                    Refusal{"model { kv_heads: 3 }", "model.kv_heads",
                            "divisor of model.heads = 4"},
                    Refusal{"model { kv_heads: 5 }", "model.kv_heads"},
                    Refusal{"model { kv_heads: -1 }", "model.kv_heads"},
                    Refusal{"model { head_dim: 15 }", "model.head_dim", "even"},
                    Refusal{"model { head_dim: 1 }", "model.head_dim"},
                    Refusal{"model { learned_positions: 31 }", "model.learned_positions",
                            "in 32 .. 1048576; it is 31"},
                    Refusal{"model { learned_positions: 32 rope_scaling {} }", "model.rope_scaling",
                            "left out with learned_positions"},
                    Refusal{"model { rope_scaling { factor: 0.5 } }", "model.rope_scaling.factor"},
                    Refusal{"model { rope_scaling { factor: 8 high_frequency_factor: 4 "
                            "low_frequency_factor: 4 original_positions: 8192 } }",
                            "model.rope_scaling.low_frequency_factor"},
                    Refusal{"model { rope_scaling { factor: 8 high_frequency_factor: 4 "
                            "low_frequency_factor: 1 } }",
                            "model.rope_scaling.original_positions"},
                    Refusal{"model { head_dim: 1026 }", "model.head_dim"},
                    Refusal{"model { heads: 64 }", "model.head_dim"},
                    Refusal{"model { mlp_width: 0 }", "model.mlp_width"},
                    Refusal{"model { mlp_width: 1048577 }", "model.mlp_width"},
                    Refusal{"model { mlp: 7 }", "model.mlp", "the number 7"},
                    Refusal{"model { sequence_length: -1 }", "model.sequence_length"},
                    Refusal{"model { sequence_length: 1048577 }", "model.sequence_length"},
                    Refusal{"model { rope_theta: 0.5 }", "model.rope_theta"},
                    Refusal{"model { rope_theta: nan }", "model.rope_theta", "; it is nan"},
                    Refusal{"model { rope_theta: inf }", "model.rope_theta"},
                    Refusal{"model { norm_epsilon: -1 }", "model.norm_epsilon"},
                    Refusal{"model { norm_epsilon: 2 }", "model.norm_epsilon"},
                    Refusal{"model { z_loss: -0.1 }", "model.z_loss"},
                    Refusal{"model { z_loss: nan }", "model.z_loss"}));

INSTANTIATE_TEST_SUITE_P(
    Train, RefusedConfig,
    testing::Values(Refusal{"train { steps: -1 }", "train.steps"},
                    Refusal{"train { steps: 2199023255552 }", "train.steps"},
                    Refusal{"train { steps: 99 }", "train.steps", "sync.steps_between_syncs = 100"},
                    Refusal{"train { batch_sequences: -1 }", "train.batch_sequences"},
                    Refusal{"train { batch_sequences: 1048577 }", "train.batch_sequences"},
                    Refusal{"train { micro_batch_sequences: -1 }", "train.micro_batch_sequences"},
                    Refusal{"train { micro_batch_sequences: 9 }", "train.micro_batch_sequences"},
                    Refusal{"train { micro_batch_sequences: 3 }", "train.micro_batch_sequences",
                            "divisor of train.batch_sequences = 8"},
                    Refusal{"train { optimizer: 9 }", "train.optimizer"},
                    Refusal{"train { learning_rate: -1 }", "train.learning_rate"},
                    Refusal{"train { learning_rate: 11 }", "train.learning_rate"},
                    Refusal{"train { learning_rate: nan }", "train.learning_rate"},
                    Refusal{"train { muon_learning_rate: -1 }", "train.muon_learning_rate"},
                    Refusal{"train { muon_momentum: 1 }", "train.muon_momentum"},
                    Refusal{"train { beta1: 1 }", "train.beta1"},
                    Refusal{"train { beta2: 1 }", "train.beta2"},
                    Refusal{"train { beta2: -0.5 }", "train.beta2"},
                    Refusal{"train { epsilon: -1 }", "train.epsilon"},
                    Refusal{"train { epsilon: nan }", "train.epsilon"},
                    Refusal{"train { weight_decay: -0.1 }", "train.weight_decay"},
                    Refusal{"train { clip_norm: inf }", "train.clip_norm", "finite"},
                    Refusal{"train { clip_norm: nan }", "train.clip_norm", "finite"},
                    Refusal{"train { warmup_steps: -1 }", "train.warmup_steps"},
                    Refusal{"train { warmup_steps: 1001 }", "train.warmup_steps"},
                    Refusal{"train { final_learning_rate_fraction: 1.1 }",
                            "train.final_learning_rate_fraction"},
                    Refusal{"train { final_learning_rate_fraction: -0.1 }",
                            "train.final_learning_rate_fraction"},
                    Refusal{"train { constant_fraction: 1.1 }", "train.constant_fraction"},
                    Refusal{"train { evaluate_every_steps: -1 }", "train.evaluate_every_steps"},
                    Refusal{"train { evaluation_sequences: -1 }", "train.evaluation_sequences"}));

INSTANTIATE_TEST_SUITE_P(
    Sync, RefusedConfig,
    testing::Values(
        Refusal{"sync { contribution: 5 }", "sync.contribution"},
        Refusal{"sync { pattern: 5 }", "sync.pattern"},
        Refusal{"sync { codec_up: 50 }", "sync.codec_up"},
        Refusal{"sync { codec_down: 50 }", "sync.codec_down"},
        Refusal{"sync { codec_up: 8 }", "sync.codec_up", "TOPK2 is gone"},
        Refusal{"sync { error_feedback_decay: 0.9 }", "sync.error_feedback_decay", "left out"},
        Refusal{"sync { error_feedback: true error_feedback_decay: 0 }",
                "sync.error_feedback_decay", "above 0 and at most 1"},
        Refusal{"sync { error_feedback: true error_feedback_decay: 1.01 }",
                "sync.error_feedback_decay", "above 0 and at most 1"},
        Refusal{"sync { error_feedback: true error_feedback_decay: nan }",
                "sync.error_feedback_decay", "above 0 and at most 1"},
        Refusal{"sync { codec_up: LM2 }", "sync.error_feedback", "true with codec_up LM2"},
        Refusal{"sync { codec_up: SIGN1 }", "sync.error_feedback", "true with codec_up SIGN1"},
        Refusal{"sync { steps_between_syncs: -1 }", "sync.steps_between_syncs"},
        Refusal{"sync { steps_between_syncs: 1000001 }", "sync.steps_between_syncs"},
        Refusal{"sync { steps_between_syncs: 2 fragments: 2 }", "sync.steps_between_syncs",
                "number of fragments, 3"},
        Refusal{"sync { steps_between_syncs: 7 fragments: 8 pattern: BALANCED }",
                "sync.steps_between_syncs", "number of fragments, 8"},
        Refusal{"sync { mixing: -0.1 }", "sync.mixing"},
        Refusal{"sync { mixing: 1.1 }", "sync.mixing"},
        Refusal{"sync { mixing: nan }", "sync.mixing"},
        Refusal{"sync { keep_in_flight: -0.1 }", "sync.keep_in_flight"},
        Refusal{"sync { keep_in_flight: 1.1 }", "sync.keep_in_flight"},
        Refusal{"sync { keep_in_flight: nan }", "sync.keep_in_flight"},
        Refusal{"sync { overlap_steps: 1 keep_in_flight: 1 mixing: 0.5 }", "sync.keep_in_flight",
                "0 where sync.mixing = 0.5"},
        Refusal{"sync { overlap_steps: 3 max_overlap_steps: 2 }", "sync.max_overlap_steps",
                "at least sync.overlap_steps = 3"},
        Refusal{"sync { max_overlap_steps: -1 }", "sync.max_overlap_steps"},
        Refusal{"sync { max_overlap_steps: 100 }", "sync.max_overlap_steps",
                "below sync.steps_between_syncs = 100"},
        Refusal{"sync { fragments: -1 }", "sync.fragments"},
        Refusal{"sync { fragments: 65537 }", "sync.fragments"},
        Refusal{"sync { fragments: 5 }", "sync.fragments", "model.layers = 4"},
        Refusal{"sync { fragments: 5 pattern: SEQUENTIAL }", "sync.fragments", "BALANCED"},
        Refusal{"sync { fragments: 60000 pattern: BALANCED steps_between_syncs: 60000 } "
                "train { steps: 60000 }",
                "sync.fragments", "use fewer"},
        Refusal{"sync { overlap_steps: -1 }", "sync.overlap_steps"},
        Refusal{"sync { overlap_steps: 100 }", "sync.overlap_steps",
                "below sync.steps_between_syncs = 100"},
        Refusal{"sync { overlap_steps: 1 steps_between_syncs: 1 }", "sync.overlap_steps"}));

INSTANTIATE_TEST_SUITE_P(
    OuterAndMembership, RefusedConfig,
    testing::Values(Refusal{"outer { optimizer: 9 }", "outer.optimizer"},
                    Refusal{"outer { learning_rate: -0.1 }", "outer.learning_rate"},
                    Refusal{"outer { learning_rate: 10.1 }", "outer.learning_rate"},
                    Refusal{"outer { learning_rate: nan }", "outer.learning_rate"},
                    Refusal{"outer { momentum: 1 }", "outer.momentum"},
                    Refusal{"outer { momentum: -0.1 }", "outer.momentum"},
                    Refusal{"outer { optimizer: SGD momentum: 0.5 }", "outer.momentum", "NESTEROV"},
                    Refusal{"outer { optimizer: ADAMW }", "outer.optimizer", "PARAMETER_DELTA"},
                    Refusal{"outer { optimizer: ADAM momentum: 0.5 }", "outer.momentum"},
                    Refusal{"outer { optimizer: ADAM beta1: 1 }", "outer.beta1", "in 0 .. "},
                    Refusal{"outer { optimizer: ADAM beta2: -0.1 }", "outer.beta2"},
                    Refusal{"outer { optimizer: ADAM epsilon: 0 }", "outer.epsilon"},
                    Refusal{"outer { beta2: 0.9 }", "outer.beta1, outer.beta2", "ADAM"},
                    Refusal{"outer { merge: 9 }", "outer.merge"},
                    Refusal{"outer { clip_factor: 0.5 }", "outer.clip_factor"},
                    Refusal{"outer { clip_factor: -1 }", "outer.clip_factor"},
                    Refusal{"outer { clip_factor: nan }", "outer.clip_factor"},
                    Refusal{"outer { clip_factor: inf }", "outer.clip_factor"},
                    Refusal{"outer { trim: 1 }", "outer.trim", "TRIMMED_MEAN"},
                    Refusal{"outer { merge: TRIMMED_MEAN trim: 4 }", "outer.trim", "in 0 .. 3"},
                    Refusal{"outer { merge: TRIMMED_MEAN trim: -1 }", "outer.trim"},
                    Refusal{"outer { merge: TRIMMED_MEAN } membership { max_workers: 4 }",
                            "outer.merge", "membership.max_workers = 4"},
                    Refusal{"membership { start_workers: -1 }", "membership.start_workers"},
                    Refusal{"membership { start_workers: 9 max_workers: 8 }",
                            "membership.start_workers"},
                    Refusal{"membership { max_workers: 4097 }", "membership.max_workers"},
                    Refusal{"membership { max_workers: -1 }", "membership.max_workers"},
                    Refusal{"membership { quorum: -1 }", "membership.quorum"},
                    Refusal{"membership { quorum: 9 }", "membership.quorum"},
                    Refusal{"membership { lease_ms: 99 }", "membership.lease_ms"},
                    Refusal{"membership { lease_ms: 3600001 }", "membership.lease_ms"},
                    Refusal{"membership { grace_ms: -1 }", "membership.grace_ms"},
                    Refusal{"membership { grace_ms: 3600001 }", "membership.grace_ms"},
                    Refusal{"membership { max_pace: 0.5 }", "membership.max_pace"},
                    Refusal{"membership { max_pace: -1 }", "membership.max_pace"},
                    Refusal{"membership { max_pace: nan }", "membership.max_pace"},
                    Refusal{"membership { max_pace: 5.1 } sync { steps_between_syncs: 8 "
                            "overlap_steps: 3 }",
                            "membership.max_pace", "overlap_steps = 5"},
                    Refusal{"membership { max_pace: 2.1 } sync { steps_between_syncs: 8 "
                            "overlap_steps: 3 max_overlap_steps: 6 }",
                            "membership.max_pace", "max_overlap_steps = 2"},
                    Refusal{"membership { outlier_factor: 0.9 }", "membership.outlier_factor"},
                    Refusal{"membership { outlier_factor: inf }", "membership.outlier_factor"},
                    Refusal{"membership { norm_cap: 0.5 }", "membership.norm_cap"},
                    Refusal{"membership { norm_cap: nan }", "membership.norm_cap"},
                    Refusal{"train { tokens: -1 }", "train.tokens"},
                    Refusal{"membership { weighting: 9 }", "membership.weighting"}));

INSTANTIATE_TEST_SUITE_P(
    DataParallel, RefusedConfig,
    testing::Values(
        Refusal{"membership { max_pace: 2 }", "membership.max_pace", "GRADIENT", "data-parallel"},
        Refusal{"outer { optimizer: NESTEROV }", "outer.optimizer", "GRADIENT", "data-parallel"},
        Refusal{"sync { steps_between_syncs: 2 }", "sync.steps_between_syncs", "GRADIENT",
                "data-parallel"},
        Refusal{"sync { fragments: 2 pattern: BALANCED }", "sync.", "; it is ", "data-parallel"},
        Refusal{"outer { optimizer: ADAM }", "outer.optimizer", "GRADIENT", "data-parallel"},
        Refusal{"outer { merge: NORM_AND_DIRECTION }", "outer.merge", "GRADIENT", "data-parallel"},
        Refusal{"sync { mixing: 0.5 }", "sync.mixing", "GRADIENT", "data-parallel"},
        Refusal{"sync { keep_in_flight: 1 }", "sync.keep_in_flight", "GRADIENT", "data-parallel"},
        Refusal{"sync { max_overlap_steps: 1 }", "sync.max_overlap_steps", "; it is 1",
                "data-parallel"},
        Refusal{"sync { overlap_steps: 1 }", "sync.overlap_steps", "; it is 1", "data-parallel"},
        Refusal{"sync { error_feedback: true }", "sync.error_feedback", "GRADIENT",
                "data-parallel"},
        Refusal{"sync { codec_up: INT4 }", "sync.codec_up", "FP32 or BF16", "data-parallel"},
        Refusal{"sync { codec_down: INT8 }", "sync.codec_down", "FP32 or BF16", "data-parallel"},
        Refusal{"train { optimizer: MUON }", "train.optimizer", "GRADIENT", "data-parallel"}));

TEST(AcceptedConfig, TheEdgesOfTheRangesAreInside) {
  for (const char* text : {"sync { overlap_steps: 99 mixing: 1 }",
                           "sync { fragments: 4 }",
                           "sync { overlap_steps: 99 keep_in_flight: 1 }",
                           "sync { overlap_steps: 2 max_overlap_steps: 2 }",
                           "sync { overlap_steps: 2 max_overlap_steps: 99 }",
                           "sync { fragments: 1 steps_between_syncs: 1 }",
                           "sync { fragments: 4 steps_between_syncs: 5 }",
                           "train { steps: 100 }",
                           "train { warmup_steps: 1000 }",
                           "train { clip_norm: -1 }",
                           "outer { learning_rate: 0 }",
                           "outer { learning_rate: 10 }",
                           "outer { clip_factor: 1 }",
                           "outer { merge: TRIMMED_MEAN trim: 3 }",
                           "outer { merge: TRIMMED_MEAN trim: 0 } membership { max_workers: 4 }",
                           "membership { start_workers: 8 quorum: 8 }",
                           "membership { start_workers: 4096 }",
                           "membership { lease_ms: 100 grace_ms: 3600000 }",
                           "model { head_dim: 2 }",
                           "model { kv_heads: 1 }",
                           "model { vocabulary_size: 1 }"}) {
    Completed(std::string(kSmallModel) + text);
  }
}

}  // namespace
}  // namespace causeway
