#include "common/cli/command_line.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"

namespace causeway {
namespace {

constexpr int kMaxFlagFileDepth = 8;  // Flag files may name flag files, even themselves.

// Where a flag stands.
struct Place {
  std::string text;  // "FILE:LINE: ", or "" on the command line itself.
  int depth = 0;     // Flag files around it.
};

[[noreturn]] void RefuseFlag(const Place& place, const std::string& message) {
  std::fprintf(stderr, "%s; --help lists the flags\n",
               Printable(absl::StrCat(place.text, message)).c_str());
  std::exit(kExitRefused);
}

void CheckFlagFile(const std::string& path, const Place& named_at);
void CheckEnvironment(absl::string_view source, absl::string_view names, const Place& named_at);

// Abseil ends the program with status 1 for a bad flag; ours is 2, so flags are checked first.
// Returns the flag's name.
absl::string_view CheckFlag(const std::string& argument, const char* next, const Place& place) {
  const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
  const size_t equals = argument.find('=');
  std::string name =
      argument.substr(dashes, equals == std::string::npos ? equals : equals - dashes);
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  bool negated = false;
  if (flag == nullptr && absl::StartsWith(name, "no")) {
    flag = absl::FindCommandLineFlag(name.substr(2));
    negated = flag != nullptr && flag->IsOfType<bool>();
  }
  if (flag == nullptr) RefuseFlag(place, absl::StrCat("unknown flag ", WithoutSecret(argument)));
  if (flag->IsOfType<bool>() && equals == std::string::npos) return flag->Name();
  if (negated) {
    RefuseFlag(place, absl::StrCat(argument, ": a flag of the form --no", flag->Name(),
                                   " takes no value"));
  }
  if (equals == std::string::npos && next == nullptr) {
    RefuseFlag(place, absl::StrCat(argument, " needs a value"));
  }
  const std::string value = equals == std::string::npos ? next : argument.substr(equals + 1);
  if (flag->Name() == "flagfile") {
    for (const absl::string_view path : absl::StrSplit(value, ',', absl::SkipEmpty())) {
      CheckFlagFile(std::string(path), place);
    }
    return flag->Name();
  }
  if (flag->Name() == "fromenv" || flag->Name() == "tryfromenv") {
    CheckEnvironment(flag->Name(), value, place);
    return flag->Name();
  }
  std::string error;
  if (!flag->ParseFrom(value, &error)) {
    RefuseFlag(place, absl::StrCat("--", flag->Name(), " does not take \"", WithoutSecret(value),
                                   "\"", error.empty() ? "" : absl::StrCat(" (", error, ")")));
  }
  const absl::Status choice = CheckChoice(flag->Name(), value);
  if (!choice.ok()) RefuseFlag(place, std::string(choice.message()));
  return flag->Name();
}

// One flag a line, as --name=value; empty lines and those that begin with '#' say nothing.
void CheckFlagFile(const std::string& path, const Place& named_at) {
  if (named_at.depth == kMaxFlagFileDepth) {
    RefuseFlag(named_at, absl::StrCat("--flagfile=", path, ": files name each other more than ",
                                      kMaxFlagFileDepth, " deep"));
  }
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const Place place = {absl::StrCat(path, ":", number, ": "), named_at.depth + 1};
    if (absl::EndsWith(line, "\r")) {
      RefuseFlag(place, "the line ends as on Windows: save the file with Unix line ends");
    }
    const std::string argument(absl::StripLeadingAsciiWhitespace(line));
    if (argument.empty() || argument[0] == '#') continue;
    if (argument[0] != '-' || argument == "-" || argument == "--") {
      RefuseFlag(place, absl::StrCat("\"", argument, "\" is no --flag=value"));
    }
    CheckFlag(argument, /*next=*/nullptr, place);
  }
  // A folder opens like a file, and fails when it is read.
  if (!file.eof()) {
    RefuseFlag(named_at, absl::StrCat("--flagfile=", path, " cannot be read"));
  }
}

// --fromenv=NAME takes a flag's value from the variable FLAGS_NAME, --tryfromenv if there is one.
void CheckEnvironment(absl::string_view source, absl::string_view names, const Place& named_at) {
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const std::string flag(name);
    if (flag == "fromenv" || flag == "tryfromenv") {
      RefuseFlag(named_at, absl::StrCat("--", source, " does not take --", flag, " from there"));
    }
    if (absl::FindCommandLineFlag(flag) == nullptr) {
      RefuseFlag(named_at, absl::StrCat("--", source, "=", flag, ": unknown flag --", flag));
    }
    const std::string variable = absl::StrCat("FLAGS_", flag);
    const char* const value = std::getenv(variable.c_str());
    if (value != nullptr) {
      CheckFlag(
          absl::StrCat("--", flag, "=", value), /*next=*/nullptr,
          {absl::StrCat(named_at.text, variable, " in the environment: "), named_at.depth + 1});
    } else if (source == "fromenv") {
      RefuseFlag(named_at, absl::StrCat("--fromenv=", flag, ": the environment has no ", variable,
                                        "; set it, or give --tryfromenv"));
    }
  }
}

bool TakesNextArgument(const std::string& argument) {
  if (argument.find('=') != std::string::npos) return false;
  const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
  const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(argument.substr(dashes));
  return flag != nullptr && !flag->IsOfType<bool>();
}

// Ends the program at what it has no more, with what took its place.
void RefuseMoved(int argc, char** argv, const Program& program) {
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    const std::string word(absl::string_view(argv[i]).substr(0, std::strcspn(argv[i], "=")));
    const bool is_flag = absl::StartsWith(word, "--");
    if (is_flag ? absl::FindCommandLineFlag(word.substr(2)) != nullptr : i > 1) continue;
    for (const Moved& moved : program.moved) {
      if (!absl::c_linear_search(absl::StrSplit(moved.names, ' '), word)) continue;
      std::exit(Refuse(program.name,
                       absl::InvalidArgumentError(absl::StrCat(word, " has moved: ", moved.to))));
    }
  }
}

// What follows the last dot of an invitation is a secret: other users of the machine read command
// lines, in ps.
void HideInvitations(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strstr(argv[i], "causeway://") == nullptr) continue;
    char* const secret = std::strrchr(argv[i], '.');
    if (secret != nullptr) std::memset(secret, '*', std::strlen(secret));
  }
}

// A program may be started with standard descriptors closed (2>&-): the next files that it opens
// would take their numbers, and what is said would be written into these.
void OpenStandardDescriptors() {
  for (const int descriptor : {0, 1, 2}) {
    const int flags = fcntl(descriptor, F_GETFD);
    // One that ends where a program starts came later: gRPC 1.51 leaves an eventfd behind, before
    // main.
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    const int null = open("/dev/null", O_RDWR);
    if (null < 0 || null == descriptor) continue;
    dup2(null, descriptor);
    close(null);
  }
}

// `given`: receives the names of the command line's own flags.
std::vector<std::string> Parse(int argc, char** argv, const std::string& help,
                               absl::string_view version, std::set<absl::string_view>& given) {
  OpenStandardDescriptors();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    if (argument == "--help" || argument == "-h" || argument == "-help") {
      std::fputs(help.c_str(), stdout);
      std::exit(0);
    }
    if (argument == "--version" && !version.empty()) {
      const std::string program = std::filesystem::path(argv[0]).filename().string();
      std::fputs(absl::StrCat(program, " ", version, "\n").c_str(), stdout);
      std::exit(0);
    }
    if (argument.size() < 2 || argument[0] != '-') continue;
    given.insert(CheckFlag(argument, i + 1 < argc ? argv[i + 1] : nullptr, Place()));
    if (TakesNextArgument(argument)) ++i;
  }
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  HideInvitations(argc, argv);
  return {rest.begin() + 1, rest.end()};
}

}  // namespace

std::vector<std::string> ParseCommandLine(int argc, char** argv, const std::string& help,
                                          absl::string_view version) {
  std::set<absl::string_view> given;
  return Parse(argc, argv, help, version, given);
}

std::vector<std::string> ParseCommandLine(int argc, char** argv, const Program& program,
                                          absl::string_view version) {
  const absl::string_view first = argc > 1 ? argv[1] : "";
  RefuseMoved(argc, argv, program);
  std::set<absl::string_view> given;
  std::vector<std::string> arguments =
      Parse(argc, argv, HelpPage(program, FindCommand(program, first) == nullptr ? "" : first),
            version, given);
  const auto refuse = [&](const std::string& message) {
    std::exit(Refuse(program.name,
                     absl::InvalidArgumentError(absl::StrCat(message, "; --help explains"))));
  };
  const std::string name = arguments.empty() ? "" : arguments[0];
  if (name == "completion") {
    const absl::StatusOr<std::string> script =
        CompletionScript(program, arguments.size() == 2 ? arguments[1] : "");
    if (!script.ok()) std::exit(Refuse(program.name, script.status()));
    std::exit(std::fputs(script->c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0
                                                                                   : kExitFailed);
  }
  const Command* const command = FindCommand(program, name);
  if (command == nullptr) {
    refuse(absl::StrCat(
        name.empty() ? "a command is required" : absl::StrCat("unknown command \"", name, "\""),
        ": ", CommandNames(program, ", ")));
  }
  if (arguments.size() - 1 > command->arguments) {
    refuse(absl::StrCat("unexpected argument \"", arguments[command->arguments + 1], "\""));
  }
  for (const absl::string_view flag : given) {
    const std::vector<absl::string_view> takers = CommandsWithFlag(program, flag);
    // Abseil's own flags, such as --flagfile, are no command's.
    if (takers.empty() || absl::c_linear_search(takers, name)) continue;
    refuse(
        absl::StrCat(name, " takes no --", flag, ", which is for ", absl::StrJoin(takers, ", ")));
  }
  return arguments;
}

int Refuse(absl::string_view program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(),
               std::string(status.message()).c_str());
  return kExitRefused;
}

int Fail(absl::string_view program, const absl::Status& status) {
  Refuse(program, status);
  return kExitFailed;
}

namespace {

// Holds what StopSignal and its thread share. Outlives both: the thread never ends.
struct SignalState {
  absl::Status started;
  absl::Mutex mutex;
  bool came ABSL_GUARDED_BY(mutex) = false;
};

SignalState& Signals() {
  static SignalState& state = *new SignalState;
  return state;
}

[[noreturn]] void TakeSignals(const sigset_t& set, const std::function<void()>& act) {
  bool asked = false;
  for (;;) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (number == SIGTERM || number == SIGINT || number == SIGQUIT) {
      // Not by the signal's own action: process 1 of a container has none.
      if (std::exchange(asked, true)) _exit(128 + number);
    }
    {
      absl::MutexLock lock(&Signals().mutex);
      if (std::exchange(Signals().came, true)) continue;
    }
    act();
  }
}

}  // namespace

StopSignal::StopSignal(std::function<void()> act) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU}) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN || number == SIGTERM || number == SIGINT) {
      sigaddset(&set, number);
    }
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  absl::StatusOr<std::thread> thread =
      StartThread([set, act = std::move(act)] { TakeSignals(set, act); });
  Signals().started = thread.status();
  if (thread.ok()) thread->detach();
}

const absl::Status& StopSignal::started() const { return Signals().started; }

bool StopSignal::Wait(absl::Duration timeout) const {
  SignalState& state = Signals();
  absl::MutexLock lock(&state.mutex);
  state.mutex.AwaitWithTimeout(absl::Condition(&state.came), timeout);
  return state.came;
}

}  // namespace causeway
