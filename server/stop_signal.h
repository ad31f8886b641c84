// The signals that stop a coordinator.
#ifndef CAUSEWAY_SERVER_STOP_SIGNAL_H_
#define CAUSEWAY_SERVER_STOP_SIGNAL_H_

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "absl/time/time.h"

namespace causeway::server {

// SIGTERM and SIGINT, blocked in all threads and taken here, by one thread. After the first one a
// second one ends the process at once, with status 128 and its number.
class StopSignal {
 public:
  StopSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Waits so long. True if one came.
  bool Wait(absl::Duration timeout) {
    const timespec time = absl::ToTimespec(timeout);
    if (sigtimedwait(&set_, nullptr, &time) < 0) return false;
    // Not by the signal's own action: process 1 of a container has none.
    const auto end = [](int number) { _exit(128 + number); };
    signal(SIGTERM, end);
    signal(SIGINT, end);
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    return true;
  }

 private:
  sigset_t set_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STOP_SIGNAL_H_
