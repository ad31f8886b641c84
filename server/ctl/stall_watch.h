// Cancels a call in which nothing moves any more.
#ifndef CAUSEWAY_SERVER_CTL_STALL_WATCH_H_
#define CAUSEWAY_SERVER_CTL_STALL_WATCH_H_

#include <grpcpp/client_context.h>

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace causeway::server {

// Thread-safe.
class StallWatch {
 public:
  // The call outlives the watch, which cancels it after `patience` without Moved.
  StallWatch(grpc::ClientContext& call, absl::Duration patience);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  void Moved();
  // Whether that was the end of the call.
  bool stalled() const;

 private:
  void Run();

  grpc::ClientContext& call_;
  const absl::Duration patience_;
  mutable absl::Mutex mutex_;
  bool moved_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_STALL_WATCH_H_
