#include "common/client/link_meter.h"

namespace causeway {
namespace {

// Weight of the newest object in the smoothed rate.
constexpr double kNewest = 0.25;

}  // namespace

void LinkMeter::Begin(Direction direction) {
  absl::MutexLock lock(&mutex_);
  Way& to = way(direction);
  if (to.under_way++ == 0) to.busy_since = clock_->Monotonic();
}

void LinkMeter::Add(Direction direction, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  Way& to = way(direction);
  to.bytes += bytes;
  to.sample_bytes += bytes;
}

LinkMeter::Sample LinkMeter::End(Direction direction, bool whole) {
  absl::MutexLock lock(&mutex_);
  Way& of = way(direction);
  const absl::Duration now = clock_->Monotonic();
  of.sample_time += now - of.busy_since;
  of.busy_since = now;
  --of.under_way;
  if (!whole) return {};
  const Sample sample = {.bytes = of.sample_bytes, .time = of.sample_time};
  of.sample_bytes = 0;
  of.sample_time = absl::ZeroDuration();
  if (sample.bytes > 0 && sample.time > absl::ZeroDuration()) {
    const double rate = static_cast<double>(sample.bytes) / absl::ToDoubleSeconds(sample.time);
    of.goodput = of.goodput == 0 ? rate : (1 - kNewest) * of.goodput + kNewest * rate;
  }
  return sample;
}

void LinkMeter::AddResent(int64_t chunks) {
  absl::MutexLock lock(&mutex_);
  resent_chunks_ += chunks;
}

void LinkMeter::AddResume() {
  absl::MutexLock lock(&mutex_);
  ++resumes_;
}

void LinkMeter::AddBlocked(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  blocked_ += time;
}

int64_t LinkMeter::bytes(Direction direction) const {
  absl::MutexLock lock(&mutex_);
  return ways_[static_cast<size_t>(direction)].bytes;
}

double LinkMeter::goodput_bytes_per_second(Direction direction) const {
  absl::MutexLock lock(&mutex_);
  return ways_[static_cast<size_t>(direction)].goodput;
}

void LinkMeter::Report(v1::LinkReport& report) const {
  absl::MutexLock lock(&mutex_);
  report.set_goodput_up_bytes_per_second(ways_[0].goodput);
  report.set_goodput_down_bytes_per_second(ways_[1].goodput);
  report.set_resent_chunks(resent_chunks_);
  report.set_resumes(resumes_);
  report.set_send_blocked_seconds(absl::ToDoubleSeconds(blocked_));
}

}  // namespace causeway
