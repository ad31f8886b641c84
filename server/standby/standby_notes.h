// Keeps what a standby knows of itself, for those who ask it: probes and metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace causeway::server {

// A copy that lacks no more commits than these has kept up: they are on their way.
inline constexpr int64_t kCommitsOnTheirWay = 100;

// Thread-safe.
class StandbyNotes {
 public:
  struct View {
    std::string doing;       // In words: "follows 10.0.0.1:7070".
    bool following = false;  // A coordinator sends what it commits.
    int64_t commits = 0;     // Commits that the copy has.
    int64_t behind = 0;      // Commits that the coordinator had beyond them, when last heard.
    // With a registry: whether the copy is in the set, and so has all that workers were told.
    std::optional<bool> in_sync;
    bool leads = false;  // It follows no more: it opens its folder to serve it.
  };

  View Get() const;
  // OK if it could take over: it follows, lacks nothing but what is on its way and, with a
  // registry, is in the set. UNAVAILABLE with what it does instead.
  absl::Status Ready() const;

  void Doing(std::string what);
  // Not following: what was known of the coordinator stays.
  void SetFollowing(bool following);
  void SetCommits(int64_t commits);
  void SetCoordinatorCommits(int64_t commits);
  void SetInSync(bool in_sync);
  void SetLeads();

 private:
  mutable absl::Mutex mutex_;
  View view_ ABSL_GUARDED_BY(mutex_);
  int64_t coordinator_commits_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
