// The signals that stop a coordinator.
#ifndef CAUSEWAY_SERVER_STOP_SIGNAL_H_
#define CAUSEWAY_SERVER_STOP_SIGNAL_H_

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "absl/time/time.h"
#include "common/cli/command_line.h"

namespace causeway::server {

// The signals that stop a program (command_line.h), blocked in all threads and taken here, by one
// thread. The second SIGTERM or SIGINT ends the process at once, with status 128 and its number: a
// session that ends hangs up several times, and others then send SIGTERM.
class StopSignal {
 public:
  StopSignal() {
    IgnoreWriteSignals();
    sigemptyset(&set_);
    for (const int number : StopSignals()) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Waits so long. True if one came.
  bool Wait(absl::Duration timeout) {
    const timespec time = absl::ToTimespec(timeout);
    const int first = sigtimedwait(&set_, nullptr, &time);
    if (first < 0) return false;
    static volatile sig_atomic_t asked = 0;
    asked = first == SIGHUP ? 0 : 1;
    // Not by the signal's own action: process 1 of a container has none.
    const auto end = [](int number) {
      if (asked != 0) _exit(128 + number);
      asked = 1;
    };
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGHUP, SIG_IGN);
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    return true;
  }

 private:
  sigset_t set_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STOP_SIGNAL_H_
