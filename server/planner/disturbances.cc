#include "server/planner/disturbances.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

absl::Status CheckInterruptions(absl::string_view name, const Interruptions& what) {
  if (!what.any() || what.once_at >= 0) return absl::OkStatus();
  if (what.every.mean > what.length.mean) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be further apart than they are long: they last ", what.length.mean,
                   " s on average, and begin every ", what.every.mean, " s"));
}

}  // namespace

double RandomSeconds::At(double uniform) const {
  switch (shape) {
    case Shape::kFixed:
      return mean;
    case Shape::kUniform:
      return mean + half_width * (2 * uniform - 1);
    case Shape::kExponential:
      return -mean * std::log1p(-uniform);
  }
  return mean;
}

double Disturbances::mean_rate() const {
  const double silent =
      silences.any() && silences.once_at < 0 ? silences.length.mean / silences.every.mean : 0;
  return (least_rate + most_rate) / 2 * (1 - silent);
}

absl::Status CheckDisturbances(const Disturbances& disturbances) {
  RETURN_IF_ERROR(CheckInterruptions("outages", disturbances.outages));
  RETURN_IF_ERROR(CheckInterruptions("silences", disturbances.silences));
  RETURN_IF_ERROR(CheckInterruptions("stragglers", disturbances.stragglers));
  if (!(disturbances.return_seconds >= 0 && disturbances.return_seconds < 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the seconds until workers are back after an outage must be 0 or more and "
                     "below 1e6; they are ",
                     disturbances.return_seconds));
  }
  if (!(disturbances.least_rate >= 0 && disturbances.least_rate <= disturbances.most_rate &&
        disturbances.most_rate > 0 && disturbances.most_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the jitter must be LEAST..MOST, shares of a link's rate with 0 <= LEAST <= "
                     "MOST <= 1 and MOST above 0; it is ",
                     disturbances.least_rate, "..", disturbances.most_rate));
  }
  if (!(disturbances.step_spread >= 0 && disturbances.step_spread <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the steps' spread must be 0 .. 10 times their mean; it is ", disturbances.step_spread));
  }
  return absl::OkStatus();
}

InterruptionTimes::InterruptionTimes(const Interruptions& interruptions, uint64_t seed,
                                     uint64_t stream)
    : interruptions_(interruptions), seed_(seed), stream_(stream) {}

double InterruptionTimes::Uniform() { return RandomUniform(seed_, stream_, drawn_++); }

InterruptionTimes::Stretch InterruptionTimes::Next() {
  const bool first = drawn_ == 0;
  if (!interruptions_.any() || (interruptions_.once_at >= 0 && !first)) return {};
  const double length = interruptions_.length.At(Uniform());
  if (interruptions_.once_at >= 0) {
    return {interruptions_.once_at, interruptions_.once_at + length};
  }
  double after = interruptions_.every.At(Uniform());
  // The run begins somewhere between two.
  if (first && interruptions_.every.shape != RandomSeconds::Shape::kExponential) {
    after *= Uniform();
  }
  last_.begin = std::max(last_.end, last_.begin + after);
  last_.end = last_.begin + length;
  return last_;
}

}  // namespace causeway::server
