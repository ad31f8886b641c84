#include "server/planner/disturbance_text.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

using TwoParts = std::pair<absl::string_view, absl::string_view>;

// From a millisecond to eleven days.
bool ParseSeconds(absl::string_view text, double& seconds) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) return false;
  seconds = absl::ToDoubleSeconds(duration);
  return seconds >= 1e-3 && seconds < 1e6;
}

bool ParseTime(absl::string_view text, RandomSeconds& time) {
  if (absl::ConsumePrefix(&text, "exp:")) {
    time.shape = RandomSeconds::Shape::kExponential;
    return ParseSeconds(text, time.mean);
  }
  const TwoParts ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  if (ends.first.size() == text.size()) return ParseSeconds(text, time.mean);
  double low = 0;
  double high = 0;
  if (!ParseSeconds(ends.first, low) || !ParseSeconds(ends.second, high) || high < low) {
    return false;
  }
  time = {RandomSeconds::Shape::kUniform, (low + high) / 2, (high - low) / 2};
  return true;
}

std::string SecondsText(double seconds) { return absl::FormatDuration(absl::Seconds(seconds)); }

std::string TimeText(const RandomSeconds& time) {
  switch (time.shape) {
    case RandomSeconds::Shape::kFixed:
      return SecondsText(time.mean);
    case RandomSeconds::Shape::kUniform:
      return absl::StrCat(SecondsText(time.mean - time.half_width), " to ",
                          SecondsText(time.mean + time.half_width));
    case RandomSeconds::Shape::kExponential:
      return absl::StrCat(SecondsText(time.mean), " (exponential)");
  }
  return "";
}

std::string InterruptionsText(const Interruptions& what) {
  if (what.once_at >= 0) {
    return absl::StrCat(TimeText(what.length), ", once, after ", SecondsText(what.once_at));
  }
  return absl::StrCat(TimeText(what.length), " every ", TimeText(what.every));
}

}  // namespace

absl::StatusOr<Interruptions> ParseInterruptions(absl::string_view text) {
  if (text.empty()) return Interruptions();
  Interruptions what;
  const TwoParts often = absl::StrSplit(text, absl::MaxSplits('/', 1));
  const TwoParts once = absl::StrSplit(text, absl::MaxSplits('@', 1));
  if (often.first.size() != text.size()) {
    if (ParseTime(often.first, what.length) && ParseTime(often.second, what.every)) return what;
  } else if (once.first.size() != text.size()) {
    if (ParseTime(once.first, what.length) && ParseSeconds(once.second, what.once_at)) return what;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected LENGTH/EVERY or LENGTH@WHEN with times from 1ms to 1e6 s, as in 20s/exp:1h "
      "(exponential), 5s..60s/1h (evenly between) or 20s@2m (once); it is \"",
      text, "\""));
}

absl::Status ParseJitter(absl::string_view text, Disturbances& disturbances) {
  if (text.empty()) return absl::OkStatus();
  const TwoParts ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  if (!absl::SimpleAtod(ends.first, &disturbances.least_rate) ||
      !absl::SimpleAtod(ends.second, &disturbances.most_rate)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected LEAST..MOST, shares of a link's rate, as in 0.1..1; it is \"", text, "\""));
  }
  return CheckDisturbances(disturbances);
}

std::string DisturbancesText(const Disturbances& disturbances) {
  std::vector<std::string> parts;
  if (disturbances.outages.any()) {
    parts.push_back(absl::StrFormat("the coordinator away for %s, workers back %.3g s later",
                                    InterruptionsText(disturbances.outages),
                                    disturbances.return_seconds));
  }
  if (disturbances.silences.any()) {
    parts.push_back(
        absl::StrCat("every link silent for ", InterruptionsText(disturbances.silences)));
  }
  if (disturbances.jitters()) {
    parts.push_back(absl::StrFormat("links at %.3g to %.3g %% of their rate, drawn every second",
                                    100 * disturbances.least_rate, 100 * disturbances.most_rate));
  }
  if (disturbances.stragglers.any()) {
    parts.push_back(absl::StrCat("a step longer by ", InterruptionsText(disturbances.stragglers)));
  }
  if (disturbances.step_spread > 0) {
    parts.push_back(
        absl::StrFormat("steps that spread by %.3g %%", 100 * disturbances.step_spread));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace causeway::server
