// Tells a worker's terminal what goes on while the coordinator is away, answers are late, or
// training waits: a line every few seconds, also while the training thread stands still.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/params/sync_schedule.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

// Thread-safe.
class WaitWatch {
 public:
  // A shorter wait is not worth a line, nor an event.
  static constexpr absl::Duration kWorthSaying = absl::Seconds(5);

  struct Options {
    Clock* clock = Clock::Real();  // Outlives the watch.
    absl::Duration interval = kWorthSaying;
    // Called by the watch's own thread, with lines that are not empty.
    std::function<void(const std::string& line)> say;
  };
  // RESOURCE_EXHAUSTED if there is no thread for it.
  static absl::StatusOr<std::unique_ptr<WaitWatch>> Start(Options options);
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  // Whether the session with the coordinator stands; it does at the start.
  void SetAttached(bool attached);
  // Why the last try to attach was turned away; empty: nobody answered. Until the session stands.
  void SetRefused(const std::string& why);
  // After an inner step; nothing: training is not under way.
  void SetSlack(const std::optional<SyncEngine::Slack>& slack);
  // Training waits for the answer of that round from now on; nothing: no more. Returns how long it
  // had waited until now.
  absl::Duration SetWaiting(const std::optional<SyncEvent>& event);
  // Whom the coordinator waits for, in its own words, while training waits; empty: not known.
  void SetWaitsFor(const std::string& whom);
  // Nothing is to be trained now, for that reason; empty: something is.
  void SetHeld(const std::string& why);
  // Every step is done, and the last answers are missing alone.
  void SetAllDone();
  // Nothing is said any more.
  void Silence();

  // The line to print now; empty: none.
  std::string Line() const { return LineAt(options_.clock->Monotonic()); }

 private:
  struct Waiting {
    SyncEvent event;
    absl::Duration since;
  };

  explicit WaitWatch(Options options) : options_(std::move(options)) {}
  std::string LineAt(absl::Duration now) const;
  void SayLine();

  const Options options_;
  mutable absl::Mutex mutex_;
  std::optional<absl::Duration> away_since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration say_away_at_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();  // Not before.
  std::string refused_ ABSL_GUARDED_BY(mutex_);
  std::optional<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<SyncEngine::Slack> slack_ ABSL_GUARDED_BY(mutex_);
  std::string waits_for_ ABSL_GUARDED_BY(mutex_);
  std::string held_ ABSL_GUARDED_BY(mutex_);
  absl::Duration held_since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration say_held_after_ ABSL_GUARDED_BY(mutex_);  // Since then.
  bool all_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  PeriodicThread thread_;
};

}  // namespace causeway::worker
