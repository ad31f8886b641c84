// The command line of Causeway's programs: PROGRAM COMMAND [--flag=value ...], Abseil flags.
//
// Exit status of every program: 0 done, 1 failed on the way, 2 refused before anything started. A
// start ends with 1, too, where the next one may succeed: nobody answered, or there was no room.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/cli/program.h"

namespace causeway {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitRefused = 2;

// Parses the flags and returns what is not a flag, the command first. Flags also come from the
// files of --flagfile (one --flag=value a line) and the variables that --fromenv names. An unknown
// flag, or a value that a flag does not take, ends the program with one line on standard error and
// status 2.
// --help prints `help`, --version the program's name and `version` (without one it is unknown);
// both exit with 0. Standard descriptors that were closed at the start become /dev/null: call it
// before files are opened.
std::vector<std::string> ParseCommandLine(int argc, char** argv, const std::string& help,
                                          absl::string_view version = {});
// The same for a program with commands, whose name is the first that is returned. COMMAND --help
// prints that command's page, `completion bash` or `zsh` a script for the shell; both exit with 0.
// No command, an unknown one, and arguments or flags that it does not take end the program with
// status 2. A flag of another command is let pass where a file or the environment gives it, so that
// these may serve several commands.
std::vector<std::string> ParseCommandLine(int argc, char** argv, const Program& program,
                                          absl::string_view version);

// Prints "PROGRAM: message" on standard error; returns kExitRefused.
int Refuse(absl::string_view program, const absl::Status& status);
// Prints the same; returns kExitFailed.
int Fail(absl::string_view program, const absl::Status& status);

// The signals that stop a program which serves or trains: SIGTERM, SIGINT, and what sessions,
// terminals and batch systems send; those not where they were ignored at the start, as nohup
// ignores SIGHUP. They are blocked in all threads and taken by one that does nothing else: a
// handler's frame would overwrite what the kernels of matrix products have on the stack
// (backend/cpu/kernels.h).
//
// A second SIGTERM, SIGINT or SIGQUIT ends the process at once, with status 128 and its number. The
// others come several times: a session that ends hangs up on its processes and its shell does,
// SIGXCPU comes every second. What cannot be written is an error where it is written from then on,
// and no signal: a log whose reader is gone is done without, a file may outgrow `ulimit -f`.
//
// One of a process. Thread-safe.
class StopSignal {
 public:
  // Before threads are started. `act` is called by the thread when the first one comes.
  explicit StopSignal(std::function<void()> act = [] {});

  // OK, or the reason why no thread takes the signals.
  const absl::Status& started() const;
  // Whether one has come.
  bool came() const { return Wait(absl::ZeroDuration()); }
  // The same, and waits so long for it.
  bool Wait(absl::Duration timeout) const;
};

}  // namespace causeway
