#include "server/service/probe_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

// A measurement costs at least this much, so that very many short ones are no way around.
constexpr absl::Duration kLeastCost = absl::Milliseconds(250);

std::string WholeSeconds(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1))), " s");
}

}  // namespace

ProbeGate::ProbeGate(const Clock& clock, const Limits& limits)
    : clock_(clock), limits_(limits), allowance_(limits.allowance), refilled_(clock.Monotonic()) {}

void ProbeGate::Refill(absl::Duration now) {
  allowance_ = std::min(limits_.allowance, allowance_ + limits_.share * (now - refilled_));
  refilled_ = now;
}

absl::StatusOr<std::unique_ptr<ProbeGate::Stream>> ProbeGate::Enter(uint64_t measurement,
                                                                    const std::string& host) {
  if (measurement == 0) {
    return absl::InvalidArgumentError("a measurement needs a random number other than 0");
  }
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Monotonic();
  if (streams_ == 0) {
    Refill(now);
    if (allowance_ < limits_.time) {  // Room for a whole one.
      return absl::ResourceExhaustedError(
          absl::StrCat("links were measured for long enough lately, so that training goes on "
                       "undisturbed: try again in ",
                       WholeSeconds((limits_.time - allowance_) / limits_.share)));
    }
    measurement_ = measurement;
    host_ = host;
    start_ = now;
    bytes_left_ = limits_.bytes;
  } else if (measurement != measurement_ || host != host_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("another link is being measured: try again in ",
                     WholeSeconds(std::max(absl::Seconds(1), limits_.time - (now - start_)))));
  } else if (streams_ == limits_.streams) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a measurement has at most ", limits_.streams, " streams"));
  } else if (now - start_ >= limits_.time) {
    return absl::ResourceExhaustedError("the measurement's time is over: begin another one");
  }
  ++streams_;
  return std::make_unique<Stream>(*this);
}

bool ProbeGate::Take(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_left_ -= bytes;
  return bytes_left_ >= 0 && clock_.Monotonic() - start_ < limits_.time;
}

void ProbeGate::Leave() {
  absl::MutexLock lock(&mutex_);
  if (--streams_ > 0) return;
  const absl::Duration now = clock_.Monotonic();
  Refill(now);
  allowance_ -= std::max(kLeastCost, now - start_);
}

}  // namespace causeway::server
