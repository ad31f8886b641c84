// Shows what a simulated run's disturbances do to it (disturbances.h).
#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "server/planner/star_run.h"

namespace causeway::server {
namespace {

// One seed for each kind: they know nothing of each other.
constexpr uint64_t kOutageSeed = 0x6f757461;
constexpr uint64_t kSilenceSeed = 0x73696c65;
constexpr uint64_t kPauseSeed = 0x70617573;
constexpr uint64_t kRateSeed = 0x72617465;
constexpr uint64_t kStepSeed = 0x73746570;

constexpr double kRateSeconds = 1;  // Between two draws.

}  // namespace

void StarRun::StartDisturbances() {
  const Disturbances& disturbances = setting_.disturbances;
  outages_ = InterruptionTimes(disturbances.outages, setting_.seed ^ kOutageSeed, 0);
  NextOutage();
  for (int worker = 0; worker < workers(); ++worker) {
    Worker& w = W(worker);
    const auto stream = static_cast<uint64_t>(worker);
    w.silences = InterruptionTimes(disturbances.silences, setting_.seed ^ kSilenceSeed, stream);
    w.pauses = InterruptionTimes(disturbances.stragglers, setting_.seed ^ kPauseSeed, stream);
    w.pause = w.pauses.Next();
    NextSilence(worker);
    if (disturbances.jitters()) DrawRates(worker);
  }
}

void StarRun::NextOutage() {
  outage_ = outages_.Next();
  // The next one may come while workers are not back from the last one.
  if (!std::isinf(outage_.begin)) {
    At(std::max(now_, outage_.begin), {.kind = Event::kOutageBegins});
  }
}

void StarRun::NextSilence(int worker) {
  Worker& w = W(worker);
  w.silence = w.silences.Next();
  if (!std::isinf(w.silence.begin)) {
    At(w.silence.begin, {.kind = Event::kSilenceBegins, .worker = worker});
  }
}

void StarRun::DrawRates(int worker) {
  const Disturbances& disturbances = setting_.disturbances;
  Worker& w = W(worker);
  const double uniform =
      RandomUniform(setting_.seed ^ kRateSeed, static_cast<uint64_t>(worker), w.rates_drawn++);
  w.rate = disturbances.least_rate + uniform * (disturbances.most_rate - disturbances.least_rate);
  SetLimits(worker);
  At(now_ + kRateSeconds, {.kind = Event::kRatesDrawn, .worker = worker});
}

void StarRun::SetLimits(int worker) {
  const Worker& w = W(worker);
  const StarSite& site = setting_.sites[static_cast<size_t>(w.site)];
  const bool there = !away_ && !w.silent && w.rate > 0;
  links_.SetLimit(now_, worker, Way::kUp, there ? w.rate * site.up_bit_per_s : 0);
  links_.SetLimit(now_, worker, Way::kDown, there ? w.rate * site.down_bit_per_s : 0);
}

bool StarRun::HandleDisturbance(const Event& event) {
  const double back = outage_.end + setting_.disturbances.return_seconds;
  switch (event.kind) {
    case Event::kOutageBegins:
      away_ = true;
      At(std::max(now_, back), {.kind = Event::kOutageEnds});
      break;
    case Event::kOutageEnds:
      away_ = false;
      break;
    case Event::kSilenceBegins:
      W(event.worker).silent = true;
      At(W(event.worker).silence.end, {.kind = Event::kSilenceEnds, .worker = event.worker});
      SetLimits(event.worker);
      return true;
    case Event::kSilenceEnds:
      W(event.worker).silent = false;
      SetLimits(event.worker);
      NextSilence(event.worker);
      return true;
    case Event::kRatesDrawn:
      DrawRates(event.worker);
      return true;
    case Event::kDeltaArrived:
    case Event::kPublished:
    case Event::kGraceOver:
    case Event::kLeaseOver:
      // Arrivals at the coordinator and its own work are done when it is back.
      if (away_) At(std::max(now_, back), event);
      return away_;
    default:
      return false;
  }
  for (int worker = 0; worker < workers(); ++worker) SetLimits(worker);
  if (!away_) NextOutage();
  return true;
}

double StarRun::StepSeconds(int worker) {
  Worker& w = W(worker);
  const double spread = setting_.disturbances.step_spread;
  double seconds = setting_.sites[static_cast<size_t>(w.site)].step_seconds;
  if (spread > 0) {
    const double variance = std::log1p(spread * spread);
    const double normal =
        RandomNormal(setting_.seed ^ kStepSeed, static_cast<uint64_t>(worker), w.steps_begun++);
    seconds *= std::exp(std::sqrt(variance) * normal - variance / 2);
  }
  const double work = seconds;
  double time = now_;
  while (w.pause.begin < time + seconds) {
    if (w.pause.begin > time) {
      seconds -= w.pause.begin - time;
      time = w.pause.begin;
    }
    time = std::max(time, w.pause.end);
    w.pause = w.pauses.Next();
  }
  const double all = time + seconds - now_;
  if (counting_) w.lost += all - work;
  return all;
}

}  // namespace causeway::server
