#include "worker/member/wait_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

std::string WholeSeconds(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Seconds(time), " s");
}

// A wait that goes on for longer is said again at this interval.
constexpr absl::Duration kSayLongEvery = absl::Minutes(10);

std::string Counted(int64_t count, const char* one, const char* several) {
  return absl::StrCat(count, " ", count == 1 ? one : several);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WaitWatch>> WaitWatch::Start(Options options) {
  auto watch = std::unique_ptr<WaitWatch>(new WaitWatch(std::move(options)));
  WaitWatch* const raw = watch.get();
  RETURN_IF_ERROR(watch->thread_.Start(raw->options_.interval, [raw] {
    raw->SayLine();
    return raw->options_.interval;
  }));
  return watch;
}

void WaitWatch::SetAttached(bool attached) {
  absl::MutexLock lock(&mutex_);
  if (attached) {
    away_since_.reset();
    say_away_at_ = -absl::InfiniteDuration();
    refused_.clear();
  } else if (!away_since_.has_value()) {
    away_since_ = options_.clock->Monotonic();
  }
}

void WaitWatch::SetRefused(const std::string& why) {
  absl::MutexLock lock(&mutex_);
  refused_ = why;
}

void WaitWatch::SetSlack(const std::optional<SyncEngine::Slack>& slack) {
  absl::MutexLock lock(&mutex_);
  slack_ = slack;
}

absl::Duration WaitWatch::SetWaiting(const std::optional<SyncEvent>& event) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  const absl::Duration waited = waiting_.has_value() ? now - waiting_->since : absl::ZeroDuration();
  waiting_.reset();
  if (event.has_value()) waiting_ = Waiting{.event = *event, .since = now};
  return waited;
}

void WaitWatch::SetWaitsFor(const std::string& whom) {
  absl::MutexLock lock(&mutex_);
  waits_for_ = whom;
}

void WaitWatch::SetHeld(const std::string& why) {
  absl::MutexLock lock(&mutex_);
  if (held_.empty() && !why.empty()) {
    held_since_ = options_.clock->Monotonic();
    say_held_after_ = kWorthSaying;
  }
  held_ = why;
}

void WaitWatch::SetAllDone() {
  absl::MutexLock lock(&mutex_);
  all_done_ = true;
}

void WaitWatch::Silence() {
  absl::MutexLock lock(&mutex_);
  silent_ = true;
}

std::string WaitWatch::LineAt(absl::Duration now) const {
  absl::MutexLock lock(&mutex_);
  if (silent_) return "";
  const absl::Duration away =
      away_since_.has_value() ? now - *away_since_ : -absl::InfiniteDuration();
  const absl::Duration waited =
      waiting_.has_value() ? now - waiting_->since : -absl::InfiniteDuration();
  const bool is_away = away >= kWorthSaying;
  if (is_away && now < say_away_at_) return "";
  std::string line;
  if (is_away && refused_.empty()) {
    line = absl::StrCat("the coordinator has been away for ", WholeSeconds(away));
  } else if (is_away) {
    line = absl::StrCat("the coordinator has not let this worker in for ", WholeSeconds(away), " (",
                        refused_, ")");
  }
  if (is_away && all_done_) {
    return absl::StrCat(line,
                        "; all steps are done here, and the last answers are missing: if the run "
                        "has ended without this worker, SIGTERM or Ctrl-C lets it leave with what "
                        "it has");
  }
  if (waiting_.has_value() && (is_away || waited >= kWorthSaying)) {
    absl::StrAppend(&line, line.empty() ? "" : "; ", "training has waited ", WholeSeconds(waited),
                    " for round ", waiting_->event.round, " of fragment ",
                    waiting_->event.fragment);
    // What the coordinator said last is old once it is away.
    if (!is_away && !waits_for_.empty()) absl::StrAppend(&line, ": ", waits_for_);
    return line;
  }
  if (!is_away && !held_.empty()) {
    const absl::Duration held = now - held_since_;
    if (held < say_held_after_) return "";
    return absl::StrCat("nothing has been trained for ", WholeSeconds(held), ": ", held_);
  }
  if (waiting_.has_value() || !slack_.has_value()) return line;
  if (slack_->late > 0) {
    absl::StrAppend(&line, line.empty() ? "" : "; ",
                    Counted(slack_->late, "answer is late", "answers are late"));
  }
  if (line.empty()) return line;
  absl::StrAppend(&line, "; training goes on, ", Counted(slack_->steps, "more step", "more steps"),
                  " before it waits");
  return line;
}

void WaitWatch::SayLine() {
  const absl::Duration now = options_.clock->Monotonic();
  const std::string line = LineAt(now);
  if (line.empty()) return;
  options_.say(line);
  absl::MutexLock lock(&mutex_);
  const absl::Duration held = now - held_since_;
  // After 5, 10, 20 s and so on.
  if (!held_.empty()) say_held_after_ = held + std::min(held, kSayLongEvery);
  if (away_since_.has_value() && now - *away_since_ >= kSayLongEvery) {
    say_away_at_ = now + kSayLongEvery;
  }
}

}  // namespace causeway::worker
