// The signals that stop a program which serves or trains, in order.
#ifndef CAUSEWAY_COMMON_CLI_STOP_SIGNALS_H_
#define CAUSEWAY_COMMON_CLI_STOP_SIGNALS_H_

#include <signal.h>

#include <vector>

namespace causeway {

// SIGTERM, SIGINT and SIGHUP; the last one not where it was ignored at the start, as by nohup.
inline std::vector<int> StopSignals() {
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  std::vector<int> numbers = {SIGTERM, SIGINT};
  if (hangup.sa_handler != SIG_IGN) numbers.push_back(SIGHUP);
  return numbers;
}

// What cannot be written is an error where it is written, and no signal: a log whose reader is gone
// is done without, a file may outgrow `ulimit -f`.
inline void IgnoreWriteSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLI_STOP_SIGNALS_H_
