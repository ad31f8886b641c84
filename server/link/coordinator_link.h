// A coordinator's link to the one above it: a region's to its parent, a copy's to its original. It
// attaches, follows, and goes on where it was, as often as the connection breaks.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace causeway::server {

class CoordinatorLink {
 public:
  CoordinatorLink() = default;
  virtual ~CoordinatorLink() = default;
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Whether it has ended by itself, with a final error.
  bool ended() const { return ended_; }

 protected:
  // Follows on a thread of its own, until StopFollowing or a final error.
  absl::Status StartFollowing();
  // Ends it and waits for it: before the derived class is destroyed, any number of times. The final
  // error, or OK.
  absl::Status StopFollowing();
  bool stopping() const;
  // Waits for that long. True: it is to end.
  bool AwaitStop(absl::Duration timeout);

  // Attaches and follows. Returns the error with which the connection broke, or OK once it is to
  // end. On the link's thread.
  virtual absl::Status Follow() = 0;
  // Lets Follow return soon. By any thread, when stopping() is true.
  virtual void Interrupt() {}
  // Whether Follow is tried again after that error.
  virtual bool Passes(const absl::Status& error) const = 0;
  // Says why Follow is tried again.
  virtual std::string Line(const absl::Status& why) = 0;
  // The error is final.
  virtual void Ended(const absl::Status& /*why*/) {}

 private:
  void Run();

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status result_;  // Once the thread has ended.
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace causeway::server
