// Knows who follows this coordinator and how far each copy is, and so what may be told to workers.
//
// With --durability=replicated a fact is told (a delta acknowledged, a round published, a member
// welcomed) only when a copy has it. Commits are copied in order, so a copy at commit n has all
// facts up to n, and whoever serves the copy with the most commits has every fact that was told.
//
// Without a registry (leadership.h) any one copy must have it. With one, every copy of the in-sync
// set must, because each of them may take over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/telemetry/event_log.h"
#include "server/store/run_directory_store.h"
#include "server/store/store.h"

namespace causeway::server {

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

// The store of --durability=replicated: a fact is saved once copies have it, too.
//
// All that is told to workers follows a Save of this store, so here is the one place that a leader
// passes before it tells anything: it waits for copies, and is closed once it leads no more.
//
// Thread-safe. An error of Standbys::Close is final, as every error of a Save.
class ReplicatedStore final : public Store {
 public:
  // Both outlive the store.
  ReplicatedStore(RunDirectoryStore& store, Standbys& standbys)
      : store_(store), standbys_(standbys) {}

  absl::StatusOr<std::optional<RecoveredRun>> Recover() override { return store_.Recover(); }
  // Nobody is told of these: what follows them waits for them, too.
  absl::Status BeginRun(const v1::RunIdentity& identity) override {
    return store_.BeginRun(identity);
  }
  absl::StatusOr<int64_t> TakeOver() override { return store_.TakeOver(); }
  absl::Status SaveSnapshot(const FragmentView& fragment) override {
    return store_.SaveSnapshot(fragment);
  }
  absl::Status DropSnapshot(int fragment, int64_t version) override {
    return store_.DropSnapshot(fragment, version);
  }
  absl::Status SaveSummary(const nlohmann::json& summary) override {
    return store_.SaveSummary(summary);
  }
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override {
    return store_.ForgetAnswers(fragment, before_round);
  }

  absl::Status CheckRoom(uint64_t bytes) override { return store_.CheckRoom(bytes); }
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override {
    const absl::Status saved = store_.SaveContribution(record, object);
    if (!saved.ok()) return saved;
    const absl::Status held = Held();
    return held.ok() ? held : absl::CancelledError(held.message());
  }
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override {
    return Replicated(store_.SaveRound(record, answer));
  }
  absl::Status SaveMembers(std::span<const v1::Member> members) override {
    return Replicated(store_.SaveMembers(members));
  }
  absl::Status SaveRunState(const v1::State& state) override {
    return Replicated(store_.SaveRunState(state));
  }

  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override {
    return store_.ReadContribution(fragment, round, worker_id);
  }
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override {
    return store_.ReadAnswer(fragment, round);
  }
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override {
    return store_.ReadSnapshot(fragment, version);
  }

 private:
  absl::Status Replicated(const absl::Status& saved) { return saved.ok() ? Held() : saved; }
  absl::Status Held() { return standbys_.WaitUntilHeld(store_.Position().commits()); }

  RunDirectoryStore& store_;
  Standbys& standbys_;
};

}  // namespace causeway::server
