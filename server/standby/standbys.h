// Knows who follows this coordinator and how far each copy is, and so what may be told to workers.
//
// With --durability=replicated a fact is told (a delta acknowledged, a round published, a member
// welcomed) only when a copy has it. Commits are copied in order, so a copy at commit n has all
// facts up to n, and whoever serves the copy with the most commits has every fact that was told.
//
// All that is told follows a Save of the run's store, so that is the one place that a leader passes
// before it tells anything: RunDirectoryStore::set_before_telling with WaitUntilHeld.
//
// Without a registry (leadership.h) any one copy must have it. With one, every copy of the in-sync
// set must, because each of them may take over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/telemetry/event_log.h"

namespace causeway::server {

// A copy that lacks no more commits than these has kept up: they are on their way.
inline constexpr int64_t kCommitsOnTheirWay = 100;

// Thread-safe.
class Standbys {
 public:
  struct Options {
    const Clock* clock = nullptr;
    EventLog* events = NullEventLog();
    // Copies that make no step for so long are said to keep everybody waiting.
    absl::Duration patience = absl::Seconds(1);
  };
  explicit Standbys(const Options& options) : options_(options) {}

  // --- The copies, as they say themselves ---
  // A copy at that commit follows. Returns a number for this stream of it; an older one of the same
  // name counts no more.
  int64_t Attach(const std::string& name, int64_t commits);
  void Acknowledge(int64_t stream, int64_t commits);
  void Detach(int64_t stream);
  struct Copy {
    std::string name;
    int64_t commits = 0;
    absl::Duration heard = absl::ZeroDuration();  // Clock::Monotonic of its last word.
    // It has everything but what is on its way; with a registry: it is asked for what is told.
    bool in_sync = false;
  };
  std::vector<Copy> Following() const;
  // In words, for one that begins to follow under `name`: which others do, and what follows from it
  // for whoever takes over by hand. Empty: none, or a registry says who may.
  std::string AmongOthers(const std::string& name) const;

  // --- What is asked of them ---
  // From now on the copies of these names must have what is told, in place of any one copy. An
  // empty set: no copy must. `alone`: none of them is known to have everything yet.
  void Require(std::set<std::string> names, bool alone);
  // Forbids to tell anything from `end` on, by Clock::Monotonic.
  void LeadUntil(absl::Duration end);
  // Names the required copies that made no step for so long, while somebody waits for them.
  std::set<std::string> Late(absl::Duration patience) const;
  // Forbids to tell anything before the copies have this commit: what the coordinator found when it
  // started was perhaps never told.
  void Begin(int64_t commits);

  // Whether somebody waits for a copy, and has for `patience`.
  bool missing() const;
  // The furthest commit that was ever waited for, Begin's included: all that was told is in it.
  int64_t furthest() const;

  // Returns when that commit may be told; or the error of Close.
  absl::Status WaitUntilHeld(int64_t commits);
  // True if WaitUntilHeld would return at once, by what copies have.
  bool IsHeld(int64_t commits) const;
  // OK if something may be told now. Else the error of Close, or UNAVAILABLE before Begin's commit
  // is held.
  absl::Status MayTell() const;
  // Forbids to tell anything from now on. The first reason counts.
  void Close(const absl::Status& why);
  absl::Status closed() const;
  // The coordinator stops: it closes once nobody follows, so that no call waits for ever.
  void Stop();
  // Says that everybody waits, and that this is over. Call it a few times a second.
  void Tick();

 private:
  bool Held(int64_t commits) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Maps a name to what its copy is known to have.
  int64_t CommitsOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it has everything but the newest commits, which are on their way.
  bool IsNear(const Copy& copy) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why nothing may be told any more, whatever the copies have.
  absl::Status Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SomebodyWaits() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_.ok() && (waiting_ > 0 || !Held(begin_));
  }
  void CloseIfDeserted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, Copy> streams_ ABSL_GUARDED_BY(mutex_);
  int64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  // The most that any copy has said to have on its disk, and each by its name.
  int64_t most_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> commits_ ABSL_GUARDED_BY(mutex_);
  bool by_names_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> required_ ABSL_GUARDED_BY(mutex_);
  bool alone_ ABSL_GUARDED_BY(mutex_) = true;  // By names.
  int64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration lead_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waited_for_ ABSL_GUARDED_BY(mutex_) = 0;  // The last commit that somebody waits for.
  absl::Duration waiting_since_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool said_ ABSL_GUARDED_BY(mutex_) = false;
};

// Keeps what a standby knows of itself, for those who ask it: probes and metrics.

// Thread-safe.
class StandbyNotes {
 public:
  struct View {
    std::string doing;                // In words: "follows 10.0.0.1:7070".
    bool following = false;           // A coordinator sends what it commits.
    int64_t commits = 0;              // Commits that the copy has.
    int64_t coordinator_commits = 0;  // And the coordinator, when last heard.
    // With a registry: whether the copy is in the set, and so has all that workers were told.
    std::optional<bool> in_sync;
    bool leads = false;  // It follows no more: it opens its folder to serve it.

    int64_t behind() const { return std::max<int64_t>(0, coordinator_commits - commits); }
  };

  View Get() const {
    absl::MutexLock lock(&mutex_);
    return view_;
  }
  // OK if it could take over: it follows, lacks nothing but what is on its way and, with a
  // registry, is in the set. UNAVAILABLE with what it does instead.
  absl::Status Ready() const;

  template <typename Value>
  void Set(Value View::*fact, std::type_identity_t<Value> value) {
    absl::MutexLock lock(&mutex_);
    view_.*fact = std::move(value);
  }
  void SetLeads();
  void Doing(std::string what) { Set(&View::doing, std::move(what)); }

 private:
  mutable absl::Mutex mutex_;
  View view_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
