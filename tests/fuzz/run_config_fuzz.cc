// The run's configuration, as text (a file, a checkpoint) and as a message (from a peer). Once
// complete it is stable: completing, printing and parsing change nothing, and its plan covers the
// arena.
//
// Input: a byte (odd: a serialized message, else text), then the configuration.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/params/sync_schedule.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

FragmentPlan CheckedPlan(const v1::RunConfig& config) {
  const auto plan = FragmentPlan::Create(config);
  FUZZ_REQUIRE(plan.ok(), "a complete configuration has a plan");
  int64_t end = 0;
  for (int i = 0; i < plan->fragments(); ++i) {
    const FragmentRange& range = plan->range(i);
    FUZZ_REQUIRE(range.begin == end && range.size() > 0 && range.begin % kArenaAlignment == 0,
                 absl::StrCat("fragment ", i, " is empty or out of place"));
    end = range.end;
  }
  FUZZ_REQUIRE(end == plan->arena_size(), "the fragments do not cover the arena");
  int64_t free = 0;
  for (const PlacedTensor& tensor : plan->tensors()) {
    FUZZ_REQUIRE(tensor.offset >= free && tensor.offset % kArenaAlignment == 0 &&
                     tensor.info.rows > 0 && tensor.info.cols > 0,
                 absl::StrCat(tensor.info.name, " is out of place"));
    free = tensor.offset + tensor.info.size();
  }
  FUZZ_REQUIRE(free <= plan->arena_size() && plan->parameters() <= plan->arena_size(),
               "the tensors do not fit into the arena");
  return *plan;
}

// Every fragment is sent once in each interval, and merged within the run's steps after it.
void CheckSchedule(const v1::RunConfig& config, int fragments) {
  const int interval = config.sync().steps_between_syncs();
  const SyncSchedule schedule(fragments, interval, config.sync().overlap_steps());
  for (int k = 0; k < fragments && k < 64; ++k) {
    const int64_t first = schedule.SendStep(k, 1);
    FUZZ_REQUIRE(first >= 1 && first <= interval, "a fragment is not sent in the first interval");
    FUZZ_REQUIRE(schedule.RoundsSentBy(k, first) == 1 && schedule.RoundsSentBy(k, first - 1) == 0 &&
                     schedule.SendStep(k, 2) == first + interval,
                 "the schedule contradicts itself");
    FUZZ_REQUIRE(schedule.MergeStep(k, 1) < schedule.SendStep(k, 2), "in flight twice");
  }
}

void CheckComplete(const v1::RunConfig& config) {
  v1::RunConfig twice = config;
  const auto warnings = CompleteRunConfig(twice);
  FUZZ_REQUIRE(warnings.ok(), "a complete configuration is refused");
  const std::string text = FormatRunConfig(config);
  FUZZ_REQUIRE(FormatRunConfig(twice) == text, "completing twice changes the configuration");
  FUZZ_REQUIRE(RunConfigHash(twice) == RunConfigHash(config), "the hash is not stable");
  const auto parsed = ParseRunConfig(text, "again");
  FUZZ_REQUIRE(parsed.ok(), std::string(parsed.status().message()));
  FUZZ_REQUIRE(parsed->SerializeAsString() == config.SerializeAsString(),
               "the printed configuration reads as another one");
  CheckSchedule(config, CheckedPlan(config).fragments());
}

void CheckConfig(Input input) {
  const bool message = input.Take<uint8_t>() % 2 == 1;
  const std::string content(input.rest().begin(), input.rest().end());
  v1::RunConfig config;
  if (message) {
    if (!config.ParseFromString(content)) return;
    config.DiscardUnknownFields();
  } else {
    absl::StatusOr<v1::RunConfig> parsed = ParseRunConfig(content, "input");
    if (!parsed.ok()) {
      FUZZ_REQUIRE(absl::IsInvalidArgument(parsed.status()), "bad text is INVALID_ARGUMENT");
      return;
    }
    config = *std::move(parsed);
  }
  const auto warnings = CompleteRunConfig(config);
  if (!warnings.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(warnings.status()), "a bad field is INVALID_ARGUMENT");
    return;
  }
  CheckComplete(config);
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("run_config", CheckConfig)
