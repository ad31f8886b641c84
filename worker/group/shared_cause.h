// Why a group of ranks has ended: one cause for all of them, the first that anyone has.
#ifndef CAUSEWAY_WORKER_GROUP_SHARED_CAUSE_H_
#define CAUSEWAY_WORKER_GROUP_SHARED_CAUSE_H_

#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace causeway::worker {

// Thread-safe.
class SharedCause {
 public:
  // ABORTED with the rank and its message; keeps the first. `cause` is not OK.
  void Set(int rank, const absl::Status& cause);
  // The same of a cause that says where it comes from.
  void Set(const absl::Status& cause);
  absl::Status Get() const;
  // Waits until there is a cause, at most so long; returns Get().
  absl::Status WaitFor(absl::Duration patience) const;

  // Calls `listener` once, with the cause, on the thread that sets it, or at once if there is one.
  // Until Remove, which waits for a call that is under way; not from inside of one.
  using Listener = std::function<void(const absl::Status&)>;
  int Listen(Listener listener);
  void Remove(int id);

 private:
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex listeners_mutex_;  // Held while they are called.
  std::map<int, Listener> listeners_ ABSL_GUARDED_BY(listeners_mutex_);
  int next_id_ ABSL_GUARDED_BY(listeners_mutex_) = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_GROUP_SHARED_CAUSE_H_
