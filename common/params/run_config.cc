#include "common/params/run_config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/config_checks.h"
#include "common/params/fragment_plan.h"

namespace causeway {
namespace {

// A codec of former releases, by number and by name.
constexpr int kTopK2 = 8;
constexpr char kTopK2Name[] = "\"TOPK2\"";
constexpr char kTopK2IsGone[] =
    "TOPK2 is gone (it cost 0.3 to 0.9 nats): take SIGN1 or LM2, the smallest, or INT4; a run that "
    "began with it goes on with the release that began it";

// Keeps the first complaint of the parser, which names the cause; later ones follow from it.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (message_.empty()) {
      message_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
      if (absl::StrContains(message, kTopK2Name)) absl::StrAppend(&message_, "; ", kTopK2IsGone);
    }
  }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// Refuses numbers that no enumerator has, in `message` and those within it. `path` ends with a dot,
// or is empty.
absl::Status CheckEnums(const google::protobuf::Message& message, const std::string& path) {
  const google::protobuf::Reflection& of = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string name = absl::StrCat(path, field.name());
    if (field.is_repeated()) continue;
    if (field.message_type() != nullptr) {
      RETURN_IF_ERROR(CheckEnums(of.GetMessage(message, &field), absl::StrCat(name, ".")));
    } else if (field.enum_type() != nullptr) {
      const int value = of.GetEnumValue(message, &field);
      if (name == "sync.codec_up" && value == kTopK2) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": ", kTopK2IsGone));
      }
      if (field.enum_type()->FindValueByNumber(value) != nullptr) continue;
      return Bad(name, "one of the names in proto/causeway/v1/config.proto",
                 absl::StrCat("the number ", value));
    }
  }
  return absl::OkStatus();
}

// A codec that says of no value that it did not change.
bool HasNoZero(v1::Codec codec) { return codec == v1::LM2 || codec == v1::SIGN1; }

absl::Status CheckRopeScaling(const v1::ModelConfig& model) {
  if (!model.has_rope_scaling()) return absl::OkStatus();
  const v1::Llama3RopeScaling& scaling = model.rope_scaling();
  RETURN_IF_ERROR(CheckRange("model.rope_scaling.factor", scaling.factor(), 1.0, 1e6));
  RETURN_IF_ERROR(CheckRange("model.rope_scaling.high_frequency_factor",
                             scaling.high_frequency_factor(), 1e-6, 1e6));
  RETURN_IF_ERROR(CheckRange("model.rope_scaling.low_frequency_factor",
                             scaling.low_frequency_factor(), 1e-9,
                             0.999999 * scaling.high_frequency_factor()));
  return CheckRange("model.rope_scaling.original_positions", scaling.original_positions(), 1,
                    1 << 30);
}

absl::Status CompleteModel(v1::ModelConfig& model) {
  RETURN_IF_ERROR(CheckRange("model.vocabulary_size", model.vocabulary_size(), 1, 1 << 24));
  RETURN_IF_ERROR(CheckRange("model.layers", model.layers(), 1, 1024));
  RETURN_IF_ERROR(CheckRange("model.width", model.width(), 1, 1 << 16));
  RETURN_IF_ERROR(CheckRange("model.heads", model.heads(), 1, 1024));
  RETURN_IF_ERROR(CheckRange("model.mlp_width", model.mlp_width(), 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange("model.sequence_length", model.sequence_length(), 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange("model.rope_theta", model.rope_theta(), 1.0, 1e12));
  RETURN_IF_ERROR(CheckRange("model.norm_epsilon", model.norm_epsilon(), 1e-12, 1.0));
  RETURN_IF_ERROR(CheckRange("model.z_loss", model.z_loss(), 0.0, 1.0));
  if (model.kv_heads() == 0) model.set_kv_heads(model.heads());
  RETURN_IF_ERROR(CheckRange("model.kv_heads", model.kv_heads(), 1, model.heads()));
  if (model.heads() % model.kv_heads() != 0) {
    return Bad("model.kv_heads", absl::StrCat("a divisor of model.heads = ", model.heads()),
               absl::StrCat(model.kv_heads()));
  }
  if (model.head_dim() == 0) {
    if (model.width() % model.heads() != 0) {
      return Bad("model.width",
                 absl::StrCat("a multiple of model.heads = ", model.heads(),
                              " where model.head_dim is left out"),
                 absl::StrCat(model.width()));
    }
    model.set_head_dim(model.width() / model.heads());
  }
  RETURN_IF_ERROR(CheckRange("model.head_dim", model.head_dim(), 2, 1024));
  if (model.head_dim() % 2 != 0) {
    return Bad("model.head_dim", "even (RoPE turns pairs)", absl::StrCat(model.head_dim()));
  }
  if (model.learned_positions() != 0) {
    RETURN_IF_ERROR(CheckRange("model.learned_positions", model.learned_positions(),
                               model.sequence_length(), 1 << 20));
    if (model.has_rope_scaling()) {
      return Bad("model.rope_scaling", "left out with learned_positions, which replace RoPE",
                 "given");
    }
  }
  return CheckRopeScaling(model);
}

absl::Status CompleteTrain(v1::TrainConfig& train) {
  if (train.micro_batch_sequences() == 0) {
    train.set_micro_batch_sequences(train.batch_sequences());
  }
  if (!train.has_weight_decay()) {
    train.set_weight_decay(train.optimizer() == v1::TrainConfig::MUON ? 0.01 : 0.1);
  }
  if (!train.has_warmup_steps()) train.set_warmup_steps(train.steps() / 20);

  RETURN_IF_ERROR(CheckRange("train.steps", train.steps(), int64_t{1}, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckRange("train.tokens", train.tokens(), int64_t{0}, int64_t{1} << 60));
  RETURN_IF_ERROR(CheckRange("train.batch_sequences", train.batch_sequences(), 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange("train.micro_batch_sequences", train.micro_batch_sequences(), 1,
                             train.batch_sequences()));
  if (train.batch_sequences() % train.micro_batch_sequences() != 0) {
    return Bad("train.micro_batch_sequences",
               absl::StrCat("a divisor of train.batch_sequences = ", train.batch_sequences()),
               absl::StrCat(train.micro_batch_sequences()));
  }
  RETURN_IF_ERROR(CheckRange("train.learning_rate", train.learning_rate(), 0.0, 10.0));
  RETURN_IF_ERROR(CheckRange("train.muon_learning_rate", train.muon_learning_rate(), 0.0, 10.0));
  RETURN_IF_ERROR(CheckRange("train.muon_momentum", train.muon_momentum(), 0.0, 0.9999));
  RETURN_IF_ERROR(CheckRange("train.beta1", train.beta1(), 0.0, 0.999999));
  RETURN_IF_ERROR(CheckRange("train.beta2", train.beta2(), 0.0, 0.999999));
  RETURN_IF_ERROR(CheckRange("train.epsilon", train.epsilon(), 1e-20, 1.0));
  RETURN_IF_ERROR(CheckRange("train.weight_decay", train.weight_decay(), 0.0, 10.0));
  if (!std::isfinite(train.clip_norm())) {
    return Bad("train.clip_norm", "a finite number", absl::StrCat(train.clip_norm()));
  }
  RETURN_IF_ERROR(
      CheckRange("train.warmup_steps", train.warmup_steps(), int64_t{0}, train.steps()));
  RETURN_IF_ERROR(CheckRange("train.final_learning_rate_fraction",
                             train.final_learning_rate_fraction(), 0.0, 1.0));
  RETURN_IF_ERROR(CheckRange("train.constant_fraction", train.constant_fraction(), 0.0, 1.0));
  RETURN_IF_ERROR(CheckRange("train.evaluate_every_steps", train.evaluate_every_steps(), int64_t{0},
                             int64_t{1} << 40));
  return CheckRange("train.evaluation_sequences", train.evaluation_sequences(), 1, 1 << 20);
}

// Refuses what a trainer with code of its own cannot be asked for.
absl::Status CheckForeignTrainer(const v1::RunConfig& config) {
  const auto must = [](const char* field, absl::string_view value, absl::string_view is) {
    return Bad(field, absl::StrCat(value, " in a run of tensors, whose trainer is not Causeway's"),
               is);
  };
  if (config.train().document_masking()) {
    return must("train.document_masking", "false", "true");
  }
  if (config.train().evaluate_every_steps() != 0) {
    return must("train.evaluate_every_steps", "0",
                absl::StrCat(config.train().evaluate_every_steps()));
  }
  if (config.sync().contribution() != v1::SyncConfig::PARAMETER_DELTA) {
    return must("sync.contribution", "PARAMETER_DELTA",
                v1::SyncConfig::Contribution_Name(config.sync().contribution()));
  }
  return absl::OkStatus();
}

// `blocks` of the model, which `where` says; fewer than 0: not known yet.
absl::Status CompleteSync(int blocks, absl::string_view where, v1::SyncConfig& sync) {
  RETURN_IF_ERROR(CheckRange("sync.steps_between_syncs", sync.steps_between_syncs(), 1, 1'000'000));
  RETURN_IF_ERROR(CheckRange("sync.mixing", sync.mixing(), 0.0, 1.0));
  RETURN_IF_ERROR(CheckRange("sync.fragments", sync.fragments(), 1, 65536));
  const int tau = sync.overlap_steps();
  const int interval = sync.steps_between_syncs();
  if (tau < 0 || tau >= interval) {
    return Bad("sync.overlap_steps",
               absl::StrCat("at least 0 and below sync.steps_between_syncs = ", interval,
                            " (a fragment is in flight once)"),
               absl::StrCat(tau));
  }
  const int latest = sync.max_overlap_steps();
  if (latest != 0 && (latest < tau || latest >= interval)) {
    return Bad("sync.max_overlap_steps",
               absl::StrCat("0, or at least sync.overlap_steps = ", tau,
                            " and below sync.steps_between_syncs = ", interval,
                            " (a fragment is in flight once)"),
               absl::StrCat(latest));
  }
  RETURN_IF_ERROR(CheckRange("sync.keep_in_flight", sync.keep_in_flight(), 0.0, 1.0));
  if (sync.keep_in_flight() > 0 && sync.mixing() > 0) {
    return Bad("sync.keep_in_flight",
               absl::StrCat("0 where sync.mixing = ", sync.mixing(),
                            " (one rule says what of the local values stays)"),
               absl::StrCat(sync.keep_in_flight()));
  }
  const bool whole_blocks = sync.fragments() > 1 && sync.pattern() != v1::SyncConfig::BALANCED;
  if (whole_blocks && blocks >= 0 && sync.fragments() > blocks) {
    return Bad("sync.fragments",
               absl::StrCat("at most ", where, " = ", blocks,
                            " with this pattern (or choose pattern BALANCED)"),
               absl::StrCat(sync.fragments()));
  }
  const int total = sync.fragments() + (whole_blocks ? 1 : 0);
  if (total > interval) {
    return Bad("sync.steps_between_syncs",
               absl::StrCat("at least the number of fragments, ", total,
                            " (each is sent after a step of its own)"),
               absl::StrCat(interval));
  }
  if (HasNoZero(sync.codec_up()) && !sync.error_feedback()) {
    return Bad("sync.error_feedback",
               absl::StrCat("true with codec_up ", v1::Codec_Name(sync.codec_up()),
                            " (so few bits diverge without it)"),
               "false");
  }
  if (sync.error_feedback() && !sync.has_error_feedback_decay()) {
    sync.set_error_feedback_decay(1);
  }
  if (sync.has_error_feedback_decay()) {
    const double decay = sync.error_feedback_decay();
    if (!sync.error_feedback()) {
      return Bad("sync.error_feedback_decay", "left out where sync.error_feedback is false",
                 absl::StrCat(decay));
    }
    if (!(decay > 0 && decay <= 1)) {
      return Bad("sync.error_feedback_decay", "above 0 and at most 1", absl::StrCat(decay));
    }
  }
  return absl::OkStatus();
}

// `train` is complete.
absl::Status CompleteOuter(const v1::TrainConfig& train, v1::OuterConfig& outer) {
  const bool trims = outer.merge() == v1::OuterConfig::TRIMMED_MEAN;
  if (!trims && outer.has_trim()) {
    return Bad("outer.trim", "left out unless outer.merge is TRIMMED_MEAN", "given");
  }
  if (trims && !outer.has_trim()) outer.set_trim(1);
  if (outer.clip_factor() != 0) {
    RETURN_IF_ERROR(CheckRange("outer.clip_factor", outer.clip_factor(), 1.0, 1e6));
  }
  const bool adam = outer.optimizer() == v1::OuterConfig::ADAM;
  if (!outer.has_learning_rate()) {
    outer.set_learning_rate(outer.optimizer() == v1::OuterConfig::ADAMW ? train.learning_rate()
                            : adam                                      ? 1e-3
                                                                        : 0.4);
  }
  if (!adam && (outer.has_beta1() || outer.has_beta2() || outer.has_epsilon())) {
    return Bad("outer.beta1, outer.beta2 and outer.epsilon",
               "left out unless outer.optimizer is ADAM", "given");
  }
  if (adam) {
    if (!outer.has_beta1()) outer.set_beta1(0.9);
    if (!outer.has_beta2()) outer.set_beta2(0.99);
    if (!outer.has_epsilon()) outer.set_epsilon(1e-6);
    RETURN_IF_ERROR(CheckRange("outer.beta1", outer.beta1(), 0.0, 0.999999));
    RETURN_IF_ERROR(CheckRange("outer.beta2", outer.beta2(), 0.0, 0.999999));
    RETURN_IF_ERROR(CheckRange("outer.epsilon", outer.epsilon(), 1e-20, 1.0));
  }
  if (!outer.has_momentum()) {
    outer.set_momentum(outer.optimizer() == v1::OuterConfig::NESTEROV ? 0.9 : 0.0);
  }
  RETURN_IF_ERROR(CheckRange("outer.learning_rate", outer.learning_rate(), 0.0, 10.0));
  RETURN_IF_ERROR(CheckRange("outer.momentum", outer.momentum(), 0.0, 0.999999));
  if (outer.optimizer() != v1::OuterConfig::NESTEROV && outer.momentum() != 0) {
    return Bad("outer.momentum", "0 or left out unless outer.optimizer is NESTEROV",
               absl::StrCat(outer.momentum()));
  }
  return absl::OkStatus();
}

absl::Status CompleteMembership(v1::MembershipConfig& membership) {
  if (membership.max_workers() == 0) {
    membership.set_max_workers(std::max(8, membership.start_workers()));
  }
  RETURN_IF_ERROR(CheckRange("membership.max_workers", membership.max_workers(), 1, 4096));
  RETURN_IF_ERROR(CheckRange("membership.start_workers", membership.start_workers(), 1,
                             membership.max_workers()));
  RETURN_IF_ERROR(
      CheckRange("membership.quorum", membership.quorum(), 1, membership.max_workers()));
  RETURN_IF_ERROR(
      CheckRange("membership.lease_ms", membership.lease_ms(), int64_t{100}, int64_t{3'600'000}));
  RETURN_IF_ERROR(
      CheckRange("membership.grace_ms", membership.grace_ms(), int64_t{0}, int64_t{3'600'000}));
  if (membership.max_pace() != 0) {
    RETURN_IF_ERROR(CheckRange("membership.max_pace", membership.max_pace(), 1.0, 1000.0));
  }
  if (membership.norm_cap() != 0) {
    RETURN_IF_ERROR(CheckRange("membership.norm_cap", membership.norm_cap(), 1.0, 1e30));
  }
  if (membership.outlier_factor() != 0) {
    RETURN_IF_ERROR(CheckRange("membership.outlier_factor", membership.outlier_factor(), 1.0, 1e6));
  }
  return absl::OkStatus();
}

// Checks what must hold between the parts.
absl::Status CheckTogether(const v1::RunConfig& config) {
  const v1::SyncConfig& sync = config.sync();
  const bool gradient = sync.contribution() == v1::SyncConfig::GRADIENT;
  const bool outer_adamw = config.outer().optimizer() == v1::OuterConfig::ADAMW;
  if (gradient != outer_adamw) {
    return Bad("outer.optimizer",
               gradient ? "ADAMW where sync.contribution is GRADIENT"
                        : "NESTEROV, SGD or ADAM where sync.contribution is PARAMETER_DELTA",
               v1::OuterConfig::Optimizer_Name(config.outer().optimizer()));
  }
  if (gradient) {
    const auto must = [](const char* field, absl::string_view value, absl::string_view is) {
      return Bad(field, absl::StrCat(value, " where sync.contribution is GRADIENT"), is);
    };
    if (sync.steps_between_syncs() != 1) {
      return must("sync.steps_between_syncs", "1", absl::StrCat(sync.steps_between_syncs()));
    }
    if (sync.fragments() != 1) return must("sync.fragments", "1", absl::StrCat(sync.fragments()));
    if (config.outer().merge() == v1::OuterConfig::NORM_AND_DIRECTION) {
      return must("outer.merge", "MEAN or TRIMMED_MEAN",
                  v1::OuterConfig::Merge_Name(config.outer().merge()));
    }
    if (sync.mixing() != 0) return must("sync.mixing", "0", absl::StrCat(sync.mixing()));
    if (sync.keep_in_flight() != 0) {
      return must("sync.keep_in_flight", "0", absl::StrCat(sync.keep_in_flight()));
    }
    if (sync.error_feedback()) return must("sync.error_feedback", "false", "true");
    for (const auto& [field, codec] : {std::pair("sync.codec_up", sync.codec_up()),
                                       std::pair("sync.codec_down", sync.codec_down())}) {
      if (codec != v1::FP32 && codec != v1::BF16) {
        return must(field, "FP32 or BF16", v1::Codec_Name(codec));
      }
    }
    if (config.train().optimizer() != v1::TrainConfig::ADAMW) {
      return must("train.optimizer", "ADAMW",
                  v1::TrainConfig::Optimizer_Name(config.train().optimizer()));
    }
    if (config.membership().max_pace() > 1) {
      return must("membership.max_pace", "0 or 1", absl::StrCat(config.membership().max_pace()));
    }
  } else if (std::ceil(config.membership().max_pace()) >
             std::max(1, sync.steps_between_syncs() - MaxOverlapSteps(sync))) {
    return Bad("membership.max_pace",
               absl::StrCat("at most sync.steps_between_syncs - sync.",
                            sync.max_overlap_steps() != 0 ? "max_overlap_steps" : "overlap_steps",
                            " = ", sync.steps_between_syncs() - MaxOverlapSteps(sync),
                            " (a fragment's answer is merged before its next delta is taken)"),
               absl::StrCat(config.membership().max_pace()));
  } else if (config.train().steps() < sync.steps_between_syncs()) {
    return Bad("train.steps",
               absl::StrCat("at least sync.steps_between_syncs = ", sync.steps_between_syncs(),
                            " (else some fragments are never synchronized)"),
               absl::StrCat(config.train().steps()));
  }
  const v1::OuterConfig& outer = config.outer();
  if (outer.merge() != v1::OuterConfig::TRIMMED_MEAN || outer.trim() == 0) return absl::OkStatus();
  const int most = config.membership().max_workers();
  if (most < kFewestToTrim) {
    return Bad("outer.merge",
               absl::StrCat("another one than TRIMMED_MEAN where membership.max_workers = ", most,
                            " is below ", kFewestToTrim),
               "TRIMMED_MEAN");
  }
  return CheckRange("outer.trim", outer.trim(), 0, (most - 1) / 2);
}

ConfigWarnings Warnings(const v1::RunConfig& config) {
  ConfigWarnings warnings;
  const v1::SyncConfig& sync = config.sync();
  const auto warn = [&](auto... parts) { warnings.push_back(absl::StrCat(parts...)); };
  if (HasNoZero(sync.codec_up())) {
    if (sync.error_feedback_decay() < 0.5) {
      warn("sync.error_feedback_decay = ", sync.error_feedback_decay(), " with codec_up ",
           v1::Codec_Name(sync.codec_up()),
           " forgets most of what so few bits leave out: training may diverge; take 0.9 to 1");
    }
    if (config.outer().merge() == v1::OuterConfig::TRIMMED_MEAN && config.outer().trim() > 0) {
      warn("outer.merge TRIMMED_MEAN with codec_up ", v1::Codec_Name(sync.codec_up()),
           " sorts values of ", sync.codec_up() == v1::LM2 ? "two magnitudes" : "one magnitude",
           " per block and worker: what it leaves out is often an honest sign; take INT4");
    }
  }
  if (sync.error_feedback() && sync.codec_up() == v1::FP32) {
    warn("sync.error_feedback has no effect with codec_up FP32, which leaves nothing out");
  }
  if (sync.mixing() >= 0.9) {
    warn("sync.mixing = ", sync.mixing(),
         " keeps almost all of the local value: the workers hardly learn of each other");
  }
  if (config.outer().optimizer() == v1::OuterConfig::ADAM && config.outer().learning_rate() > 0.1) {
    warn("outer.learning_rate = ", config.outer().learning_rate(),
         " with outer.optimizer ADAM moves every parameter by about that much per round");
  }
  if (config.outer().learning_rate() > 1 && config.outer().optimizer() != v1::OuterConfig::ADAMW) {
    warn("outer.learning_rate = ", config.outer().learning_rate(),
         " overshoots the workers' own mean; 0.4 to 1 is what trains well");
  }
  if (config.train().optimizer() == v1::TrainConfig::MUON && config.outer().momentum() > 0.8) {
    warn("outer.momentum = ", config.outer().momentum(),
         " with train.optimizer MUON: 0.6 measured better (docs/algorithm.md)");
  }
  if (sync.contribution() == v1::SyncConfig::PARAMETER_DELTA &&
      sync.overlap_steps() > sync.steps_between_syncs() / 2) {
    warn("sync.overlap_steps = ", sync.overlap_steps(),
         " is more than half of H = ", sync.steps_between_syncs(),
         ": answers are stale when they are merged");
  }
  if (config.membership().quorum() > config.membership().start_workers()) {
    warn("membership.quorum = ", config.membership().quorum(),
         " is above start_workers = ", config.membership().start_workers(),
         ": rounds wait until so many have joined");
  }
  const v1::OuterConfig& outer = config.outer();
  const int quorum = config.membership().quorum();
  if (outer.merge() == v1::OuterConfig::TRIMMED_MEAN && outer.trim() == 0) {
    warn("outer.merge TRIMMED_MEAN with outer.trim = 0 is MEAN");
  } else if (outer.merge() == v1::OuterConfig::TRIMMED_MEAN && quorum < kFewestToTrim) {
    warn("outer.merge TRIMMED_MEAN with membership.quorum = ", quorum, ": rounds of fewer than ",
         kFewestToTrim, " contributions are merged as MEAN does");
  }
  if (outer.clip_factor() != 0 && quorum < 3) {
    warn("outer.clip_factor = ", outer.clip_factor(), " with membership.quorum = ", quorum,
         ": in a round of two contributions the shorter one says how long the longer one may be");
  }
  if (config.membership().adaptive_grace() && config.membership().grace_ms() == 0) {
    warn("membership.adaptive_grace has no effect with grace_ms 0, which waits for every member");
  }
  if (sync.keep_in_flight() > 0 && MaxOverlapSteps(sync) == 0) {
    warn("sync.keep_in_flight = ", sync.keep_in_flight(),
         " has no effect with sync.overlap_steps 0: nothing is trained in flight");
  }
  if (sync.max_overlap_steps() > sync.overlap_steps() &&
      config.train().steps() <=
          sync.steps_between_syncs() / sync.fragments() + int64_t{sync.max_overlap_steps()}) {
    warn("sync.max_overlap_steps = ", sync.max_overlap_steps(),
         " with train.steps = ", config.train().steps(),
         ": the run ends before an answer could be so late");
  }
  if (config.membership().adaptive_grace() && MaxOverlapSteps(sync) == 0) {
    warn(
        "membership.adaptive_grace with sync.overlap_steps 0: every answer is needed at once, so "
        "a round closes as soon as it has its quorum");
  }
  if (config.membership().max_pace() > 1 &&
      MaxOverlapSteps(sync) < std::ceil(config.membership().max_pace())) {
    warn("membership.max_pace = ", config.membership().max_pace(), " is more than sync.",
         sync.max_overlap_steps() != 0 ? "max_overlap_steps" : "overlap_steps", " = ",
         MaxOverlapSteps(sync),
         ": a slow worker sends up to max_pace steps late, and the others wait for it");
  }
  return warnings;
}

}  // namespace

absl::StatusOr<v1::RunConfig> ParseRunConfig(const std::string& text, absl::string_view source,
                                             const v1::RunConfig& base) {
  v1::RunConfig config = base;
  FirstError errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (!parser.MergeFromString(text, &config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ":", errors.message(),
        " (expected a textproto of RunConfig; proto/causeway/v1/config.proto has the fields)"));
  }
  return config;
}

std::string FormatRunConfig(const v1::RunConfig& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return text;
}

absl::StatusOr<ConfigWarnings> CompleteRunConfig(v1::RunConfig& config, ModelIs model) {
  RETURN_IF_ERROR(FillInDefaults(config));
  RETURN_IF_ERROR(CheckName("run_name", config.run_name()));
  RETURN_IF_ERROR(CheckEnums(config, ""));
  const bool own = config.has_model();
  const bool known = own || config.has_tensors();
  if (own && config.has_tensors()) {
    return Bad("model", "left out where tensors say what is trained", "given beside them");
  }
  if (!known && model == ModelIs::kGiven) {
    return Bad("model, or tensors,", "given: one of them says what is trained", "left out");
  }
  if (own) RETURN_IF_ERROR(CompleteModel(*config.mutable_model()));
  if (config.has_tensors()) RETURN_IF_ERROR(CheckTensorTable(config.tensors()));
  RETURN_IF_ERROR(CompleteTrain(*config.mutable_train()));
  const int blocks = own ? config.model().layers() : known ? CountBlocks(RunTensors(config)) : -1;
  RETURN_IF_ERROR(CompleteSync(blocks,
                               own ? "model.layers" : "the blocks that tensors' names number",
                               *config.mutable_sync()));
  RETURN_IF_ERROR(CompleteOuter(config.train(), *config.mutable_outer()));
  RETURN_IF_ERROR(CompleteMembership(*config.mutable_membership()));
  if (!own) RETURN_IF_ERROR(CheckForeignTrainer(config));
  RETURN_IF_ERROR(CheckTogether(config));
  if (known) RETURN_IF_ERROR(FragmentPlan::Create(config).status());
  return Warnings(config);
}

int MaxOverlapSteps(const v1::SyncConfig& sync) {
  return std::max(sync.overlap_steps(), sync.max_overlap_steps());
}

absl::Status CheckOwnModel(const v1::RunConfig& config) {
  if (!config.has_tensors()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this is a run of tensors (", config.tensors().tensor_size(), " of them, first \"",
      config.tensors().tensor(0).name(),
      "\"), and causeway-worker has code for models of Causeway's own alone: train with "
      "the Python package, and read the model with causewayctl export "
      "(docs/pytorch.md)"));
}

uint64_t RunConfigHash(const v1::RunConfig& config) { return Checksum64(FormatRunConfig(config)); }

std::string ConfigDifference(const v1::RunConfig& from, const v1::RunConfig& to) {
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  differencer.Compare(from, to);
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(report, '\n', absl::SkipEmpty())) {
    absl::ConsumePrefix(&line, "modified: ");
    lines.emplace_back(line);
  }
  return absl::StrJoin(lines, "; ");
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  const bool fits =
      // Names become files: not "." and "..".
      name.find_first_not_of('.') != absl::string_view::npos && name.size() <= 64 &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
               c == '.';
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must be 1 to 64 letters, digits, '-', '_' or '.'; it is \"",
                   name.substr(0, 80), "\""));
}

}  // namespace causeway
