#include "common/params/run_config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/config_checks.h"

namespace causeway {

absl::Status CompleteOuter(const v1::TrainConfig& train, v1::OuterConfig& outer) {
  if (outer.optimizer() == v1::OuterConfig::OPTIMIZER_UNSPECIFIED) {
    outer.set_optimizer(v1::OuterConfig::NESTEROV);
  }
  RETURN_IF_ERROR(CheckEnum(
      "outer.optimizer", v1::OuterConfig::Optimizer_IsValid(outer.optimizer()), outer.optimizer()));
  if (outer.merge() == v1::OuterConfig::MERGE_UNSPECIFIED) outer.set_merge(v1::OuterConfig::MEAN);
  RETURN_IF_ERROR(
      CheckEnum("outer.merge", v1::OuterConfig::Merge_IsValid(outer.merge()), outer.merge()));
  const bool trims = outer.merge() == v1::OuterConfig::TRIMMED_MEAN;
  if (!trims && outer.has_trim()) {
    return Bad("outer.trim", "left out unless outer.merge is TRIMMED_MEAN", "given");
  }
  if (trims && !outer.has_trim()) outer.set_trim(1);
  // 0 stays 0, so that a configuration of before this setting keeps its hash.
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

absl::Status CheckMergeRule(const v1::OuterConfig& outer, const v1::MembershipConfig& membership) {
  if (outer.merge() != v1::OuterConfig::TRIMMED_MEAN || outer.trim() == 0) return absl::OkStatus();
  if (membership.max_workers() < kFewestToTrim) {
    return Bad("outer.merge",
               absl::StrCat("another one than TRIMMED_MEAN where membership.max_workers = ",
                            membership.max_workers(), " is below ", kFewestToTrim),
               "TRIMMED_MEAN");
  }
  return CheckRange("outer.trim", outer.trim(), 0, (membership.max_workers() - 1) / 2);
}

void AddMergeWarnings(const v1::OuterConfig& outer, const v1::MembershipConfig& membership,
                      ConfigWarnings& warnings) {
  if (outer.merge() == v1::OuterConfig::TRIMMED_MEAN) {
    if (outer.trim() == 0) {
      warnings.push_back("outer.merge TRIMMED_MEAN with outer.trim = 0 is MEAN");
    } else if (membership.quorum() < kFewestToTrim) {
      warnings.push_back(absl::StrCat(
          "outer.merge TRIMMED_MEAN with membership.quorum = ", membership.quorum(),
          ": rounds of fewer than ", kFewestToTrim, " contributions are merged as MEAN does"));
    }
  }
  if (outer.clip_factor() != 0 && membership.quorum() < 3) {
    warnings.push_back(absl::StrCat(
        "outer.clip_factor = ", outer.clip_factor(),
        " with membership.quorum = ", membership.quorum(),
        ": in a round of two contributions the shorter one says how long the longer one may be"));
  }
}

}  // namespace causeway
