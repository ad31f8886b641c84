// Ends connections whose request, or the reading of its answer, takes too long.
#ifndef CAUSEWAY_COMMON_HTTP_CONNECTION_TIMER_H_
#define CAUSEWAY_COMMON_HTTP_CONNECTION_TIMER_H_

#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace causeway {

// Thread-safe. A key is whatever names a connection to the one who owns it.
class ConnectionTimer {
 public:
  // Every `look_interval` of real time, as long as there are connections, those that have had
  // `timeout` by the clock are shut down: whoever owns them sees their end and closes them.
  ConnectionTimer(absl::Duration timeout, absl::Duration look_interval, const Clock* clock);
  ~ConnectionTimer();
  ConnectionTimer(const ConnectionTimer&) = delete;
  ConnectionTimer& operator=(const ConnectionTimer&) = delete;

  void Opened(const void* key, int descriptor);
  // An answer is complete: the time begins anew.
  void Answered(const void* key);
  // Before the descriptor is closed, and may become another's.
  void Closing(const void* key);

 private:
  struct Connection {
    int descriptor;
    absl::Duration since;
  };

  void Run();
  void EndOverdue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !connections_.empty();
  }

  const absl::Duration timeout_;
  const absl::Duration look_interval_;
  const Clock* const clock_;
  absl::Mutex mutex_;
  std::map<const void*, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_HTTP_CONNECTION_TIMER_H_
