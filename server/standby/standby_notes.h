// Keeps what a standby knows of itself, for those who ask it: probes and metrics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

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
