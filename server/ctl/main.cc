// causewayctl: what an operator asks and tells a run.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/cli/command_line.h"
#include "common/cli/program.h"
#include "common/client/boarding.h"
#include "common/files/json.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "server/ctl/commands.h"
#include "server/ctl/run_admin.h"
#include "server/views/status_text.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070",
          "HOST:PORT,...: the coordinator, and its standbys");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(10), "for the coordinator's answer");
ABSL_FLAG(bool, all, false, "workers: those who left, too; drain: every one");
ABSL_FLAG(std::string, reason, "asked to by the operator", "TEXT: for the record");
ABSL_FLAG(int64_t, round, 0, "N: this round of --fragment alone");
ABSL_FLAG(int32_t, fragment, 0, "which fragment --round is of");
ABSL_FLAG(bool, undo, false, "lets in again what was rejected");
ABSL_FLAG(int64_t, at_step, 0, "N: when every worker has done so many steps");
ABSL_FLAG(int64_t, at_tokens, 0, "N: when all workers together have trained so many tokens");
ABSL_FLAG(
    std::string, preset, "",
    "NAME: what configurations are read over: paper, best, streaming, diloco or data-parallel");

ABSL_DECLARE_FLAG(absl::Duration, interval);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(absl::Duration, patience);

namespace causeway::server {
namespace {

constexpr char kProgram[] = "causewayctl";
constexpr int kExitNoAnswer = 3;
constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);

constexpr Command kCommands[] = {
    {.usage = "status",
     .about = "What the run does, its workers, its fragments.",
     .flags = "@coordinator",
     .heading = "Look:"},
    {.usage = "watch",
     .about = "The same, live, until Ctrl-C or the run's end.",
     .flags = "interval patience @coordinator"},
    {.usage = "workers", .about = "One line per worker.", .flags = "all @coordinator"},
    {.usage = "rounds",
     .about = "Every fragment's version, and why its open round waits.",
     .flags = "@coordinator"},
    {.usage = "events",
     .about = "What happened, and what happens.",
     .flags = "follow level last interval patience @coordinator"},
    {.usage = "pause",
     .about = "Workers finish their step and wait; leases go on.",
     .flags = "reason @coordinator",
     .heading = "Steer (each is in the run's record and outlives the coordinator's process):"},
    {.usage = "resume", .about = "They go on.", .flags = "@coordinator"},
    {.usage = "drain WORKER\ndrain --all",
     .about =
         "It hands over its deltas, checkpoints and leaves; started again with the same command "
         "it goes on from there.",
     .flags = "all @coordinator",
     .arguments = 1},
    {.usage = "reject WORKER\nreject WORKER --fragment=2 --round=17",
     .about =
         "Its deltas are kept, not merged, and not waited for, from the open rounds on; or this "
         "one delta alone.",
     .flags = "fragment round undo reason @coordinator",
     .arguments = 1},
    {.usage = "stop --at_step=5000\nstop --at_tokens=2000000000",
     .about = "Training ends there for all.",
     .flags = "at_step at_tokens @coordinator"},
    {.usage = "invite NAME...",
     .about = "Prints a line for each name, by which a machine boards the run once (--join=LINE of "
              "causeway-worker, causewayctl and a region; join(LINE, ...) in Python).",
     .flags = "role expires address @coordinator",
     .arguments = 64,
     .heading = "Who takes part:"},
    {.usage = "invitations",
     .about = "Who was invited, and who has come.",
     .flags = "@coordinator"},
    {.usage = "revoke NAME",
     .about = "An invitation that nobody has used is good for nothing any more.",
     .flags = "@coordinator",
     .arguments = 1},
    {.usage = "export --out=FOLDER",
     .about = "Writes the published parameters, while training goes on.",
     .flags = "out dtype max_file_gb deadline replace @coordinator",
     .heading = "Take the model out:"},
    {.usage = "config show\nconfig check FILE\nconfig diff FILE1 FILE2\nconfig presets [NAME]",
     .about = "The run's, complete; what a file says, with every default filled in, and warnings; "
              "what differs between two; what there is to start from.",
     .flags = "preset @coordinator",
     .arguments = 3,
     .heading = "Configurations:"},
};

constexpr FlagGroup kFlagGroups[] = {
    {.name = "coordinator",
     .heading = "Which run, and who you are, by an operator's or observer's invitation, "
                "certificate or token:",
     .flags = "join identity coordinator timeout tls_ca tls_cert tls_key token_file "
              "tls_server_name tls_refresh "
              "insecure"},
    {.heading = "For all commands:", .flags = "json"},
};

constexpr Moved kMoved[] = {
    {.names = "plan simulate", .to = "python3 -m causeway.plan"},
    {.names = "--format --tokenizer --max_positions",
     .to = "python3 -m causeway.huggingface export, from what causewayctl export writes"},
};

constexpr Program kCtlProgram = {.name = "causewayctl",
                                 .about = "causewayctl shows a Causeway run and steers it.",
                                 .commands = kCommands,
                                 .groups = kFlagGroups,
                                 .end = R"(
Exit status: 0 done; 1 the coordinator refused or failed, or two configurations differ; 2 not
understood, or a configuration, flag or certificate is wrong; 3 no answer from the coordinator.
)",
                                 .moved = kMoved};

volatile std::sig_atomic_t stop_requested = 0;
void OnInterrupt(int) { stop_requested = 1; }

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  const int exit_status = Fail(kProgram, status);
  return IsNoAnswer(status) ? kExitNoAnswer : exit_status;
}

// Of what comes before the first call: no answer is no answer there, too.
int EndStart(const absl::Status& status) {
  return IsNoAnswer(status) ? Report(status) : Refuse(kProgram, status);
}

int Misused(const std::string& message) {
  return Refuse(kProgram, absl::InvalidArgumentError(absl::StrCat(message, "; --help explains")));
}

// Ends the program where nobody gets what it says: a script must not take that for an empty answer.
void Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return;
  std::perror("causewayctl: cannot write the answer");
  std::_Exit(kExitFailed);
}

int Show(RunAdmin& run, std::string (*text)(const v1::RunStatus&)) {
  const absl::StatusOr<v1::RunStatus> status = run.GetStatus();
  if (!status.ok()) return Report(status.status());
  Print(absl::GetFlag(FLAGS_json) ? StatusJson(*status, /*one_line=*/false) : text(*status));
  return 0;
}

std::string WorkersTextByFlag(const v1::RunStatus& status) {
  return WorkersText(status, absl::GetFlag(FLAGS_all));
}

absl::Status CheckInterval() {
  const absl::Duration interval = absl::GetFlag(FLAGS_interval);
  if (interval >= kShortestInterval) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--interval must be 100ms or more; it is ", absl::FormatDuration(interval)));
}

// Until Ctrl-C or the end of the run. A coordinator that is away is looked for again, unless it has
// ended with the run.
int Watch(RunAdmin& run) {
  constexpr char kClearScreen[] = "\033[H\033[2J\033[3J";
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const bool json = absl::GetFlag(FLAGS_json);
  const absl::Duration interval = absl::GetFlag(FLAGS_interval);
  const absl::Status usable = CheckInterval();
  if (!usable.ok()) return Refuse(kProgram, usable);
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
  const absl::Duration patience = absl::GetFlag(FLAGS_patience);
  bool answered = false;
  bool all_steps_done = false;
  std::string run_id;
  absl::Time last_answer = absl::InfinitePast();
  while (stop_requested == 0) {
    absl::StatusOr<v1::RunStatus> status = run.GetStatus();
    // Somebody else answers at the address, perhaps for a moment.
    if (answered && status.ok() && status->run_id() != run_id) {
      status = absl::FailedPreconditionError(
          absl::StrCat("the run ", status->run_id(), " answers in place of ", run_id));
    }
    if (status.ok()) {
      run_id = status->run_id();
      answered = true;
      last_answer = absl::Now();
      all_steps_done = status->run_step() >= status->config().train().steps();
    } else if (!answered || !(IsRetryable(status.status()) || MayBeAnothers(status.status()))) {
      return Report(status.status());
    } else if (all_steps_done) {
      if (!json) Print("all steps were done, and the coordinator has ended\n");
      return 0;
    } else if (absl::Now() - last_answer > patience) {
      return Report(status.status());
    }
    const std::string time = absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone());
    if (!status.ok()) {
      const absl::string_view why =
          IsNoAnswer(status.status()) ? "no answer" : status.status().message();
      if (!json) Print(absl::StrCat(time, "  ", why, "; looking again\n"));
    } else if (json) {
      Print(StatusJson(*status, /*one_line=*/true));
    } else {
      Print(absl::StrCat(terminal ? kClearScreen : "", time, "  ", StatusText(*status),
                         terminal ? "\nCtrl-C ends this view, not the run.\n" : "\n"));
    }
    if (status.ok() && status->finished()) return 0;
    absl::SleepFor(interval);  // A signal ends it early.
  }
  return 0;
}

// Gives an order, and prints what it did: a sentence, or {"done": the sentence}.
template <typename Method, typename Request>
int Order(RunAdmin& run, Method method, const Request& request, const std::string& done) {
  const absl::Status status = run.Call(method, request).status();
  if (status.ok()) {
    Print(absl::StrCat(absl::GetFlag(FLAGS_json) ? JsonText({{"done", done}}) : done, "\n"));
  }
  return Report(status);
}

int Drain(RunAdmin& run, const std::vector<std::string>& arguments) {
  const bool all = absl::GetFlag(FLAGS_all);
  if (all == (arguments.size() == 2)) return Misused("drain takes one worker's id, or --all");
  v1::DrainRequest order;
  if (!all) order.set_worker_id(arguments[1]);
  return Order(run, &v1::Admin::Stub::Drain, order,
               absl::StrCat(all ? "every worker" : arguments[1],
                            " is asked to hand over its deltas, checkpoint and leave"));
}

int Reject(RunAdmin& run, const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) return Misused("reject takes one worker's id");
  v1::RejectRequest order;
  order.set_worker_id(arguments[1]);
  order.set_fragment(absl::GetFlag(FLAGS_fragment));
  order.set_round(absl::GetFlag(FLAGS_round));
  order.set_reason(absl::GetFlag(FLAGS_reason));
  order.set_undo(absl::GetFlag(FLAGS_undo));
  if (order.round() < 0 || order.fragment() < 0 || (order.round() == 0 && order.fragment() != 0)) {
    return Misused("reject takes --round=N, 1 or more, and with it --fragment=N");
  }
  const std::string what =
      order.round() == 0
          ? absl::StrCat("the deltas of ", order.worker_id(), ", from the open rounds on,")
          : absl::StrCat("the delta of ", order.worker_id(), " to round ", order.round(),
                         " of fragment ", order.fragment());
  return Order(run, &v1::Admin::Stub::Reject, order,
               absl::StrCat(what, order.undo() ? " may count again" : " will not be merged"));
}

int Stop(RunAdmin& run) {
  const int64_t step = absl::GetFlag(FLAGS_at_step);
  const int64_t tokens = absl::GetFlag(FLAGS_at_tokens);
  if ((step > 0) == (tokens > 0) || step < 0 || tokens < 0) {
    return Misused("stop takes --at_step=N or --at_tokens=N");
  }
  v1::StopRequest order;
  order.set_at_step(step);
  order.set_at_tokens(tokens);
  return Order(run, &v1::Admin::Stub::Stop, order,
               step > 0 ? absl::StrCat("training ends at step ", step)
                        : absl::StrCat("training ends when ", tokens, " tokens have been trained"));
}

std::string ConfigText(const v1::RunConfig& config) {
  return absl::GetFlag(FLAGS_json) ? absl::StrCat(MessageToJson(config).dump(2), "\n")
                                   : FormatRunConfig(config);
}

int Told(const absl::StatusOr<std::string>& text) {
  if (text.ok()) Print(*text);
  return Report(text.status());
}

int Invite(RunAdmin& run, const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) return Misused("invite takes one name or more");
  std::string hint;
  const absl::StatusOr<std::string> lines =
      InviteCommand(run, {arguments.begin() + 1, arguments.end()}, absl::GetFlag(FLAGS_json), hint);
  const int status = Told(lines);
  if (lines.ok()) std::fputs(hint.c_str(), stderr);
  return status;
}

int Events(RunAdmin& run) {
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
  return Report(EventsCommand(
      run, [] { return stop_requested != 0; }, Print));
}

// Runs the commands that need a coordinator.
int RunOnline(const std::string& command, const std::vector<std::string>& arguments) {
  if (command == "export") {
    const absl::Status asked_for = CheckExportFlags();
    if (!asked_for.ok()) return Refuse(kProgram, asked_for);
  }
  if (command == "events") {
    absl::Status asked_for = CheckInterval();
    if (asked_for.ok()) asked_for = CheckEventsFlags();
    if (!asked_for.ok()) return Refuse(kProgram, asked_for);
  }
  std::string address = absl::GetFlag(FLAGS_coordinator);
  SecurityOptions files = SecurityOptionsFromFlags();
  const auto keeper = BoardByFlags(absl::GetFlag(FLAGS_timeout), address, /*id=*/nullptr, files,
                                   {Role::kOperator, Role::kObserver});
  if (!keeper.ok()) return EndStart(keeper.status());
  const absl::StatusOr<std::vector<std::string>> addresses = SplitAddresses(address);
  if (!addresses.ok()) return Refuse(kProgram, Annotate(addresses.status(), "--coordinator"));
  const absl::StatusOr<std::string> target = ChannelTarget(address);
  if (!target.ok()) return Refuse(kProgram, Annotate(target.status(), "--coordinator"));
  const absl::StatusOr<ChannelSecurity> security =
      MakeChannelSecurity(files, addresses->front(), absl::Now());
  if (!security.ok()) return Refuse(kProgram, security.status());
  const auto warn = [](const std::string& warning) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  };
  for (const std::string& warning : security->warnings) warn(warning);
  if (security->files != nullptr) {
    security->files->ReportTo([warn](const CertificateNotice& notice) {
      if (!notice.fit) warn(notice.message);
    });
  }
  RunAdmin run(address, *target, *security, absl::GetFlag(FLAGS_timeout));
  if (command == "drain") return Drain(run, arguments);
  if (command == "invite") return Invite(run, arguments);
  if (command == "invitations") {
    return Told(InvitationsCommand(run, absl::GetFlag(FLAGS_json)));
  }
  if (command == "revoke") {
    if (arguments.size() != 2) return Misused("revoke takes the name that was invited");
    v1::RevokeInvitationRequest order;
    order.set_name(arguments[1]);
    return Order(run, &v1::Enrollment::Stub::RevokeInvitation, order,
                 absl::StrCat("the invitation of ", arguments[1], " is revoked"));
  }
  if (command == "reject") return Reject(run, arguments);
  if (command == "config") {
    const absl::StatusOr<v1::RunStatus> status = run.GetStatus();
    if (status.ok()) Print(ConfigText(status->config()));
    return Report(status.status());
  }
  if (command == "status") return Show(run, StatusText);
  if (command == "workers") return Show(run, WorkersTextByFlag);
  if (command == "rounds") return Show(run, FragmentsText);
  if (command == "watch") return Watch(run);
  if (command == "events") return Events(run);
  if (command == "stop") return Stop(run);
  if (command == "export") return Told(ExportCommand(run, absl::GetFlag(FLAGS_json)));
  if (command == "pause") {
    v1::PauseRequest order;
    order.set_reason(absl::GetFlag(FLAGS_reason));
    return Order(run, &v1::Admin::Stub::Pause, order,
                 "paused: workers finish their step and wait; causewayctl resume lets them go on");
  }
  return Order(run, &v1::Admin::Stub::Resume, v1::ResumeRequest(), "resumed");
}

// Loads a complete configuration: a file over --preset, one of which may be empty. Warnings go to
// standard error. INVALID_ARGUMENT and the file system's errors.
absl::StatusOr<v1::RunConfig> LoadCompleteConfig(const std::string& file,
                                                 const std::string& preset) {
  if (file.empty() && preset.empty()) {
    return absl::InvalidArgumentError("give a configuration file, --preset=NAME, or both");
  }
  v1::RunConfig config;
  if (!preset.empty()) {
    ASSIGN_OR_RETURN(config, RunPreset(preset));
  }
  if (!file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, FileSystem::Real()->ReadFile(file));
    ASSIGN_OR_RETURN(config, ParseRunConfig(text, file, config));
  }
  const absl::StatusOr<ConfigWarnings> warnings = CompleteRunConfig(config, ModelIs::kStillToCome);
  RETURN_IF_ERROR(Annotate(warnings.status(), file.empty() ? preset : file));
  for (const std::string& warning : *warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return config;
}

// The names of all presets.
std::string PresetsText() {
  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::json names = {{"runs", RunPresetNames()}, {"models", ModelPresetNames()}};
    return absl::StrCat(names.dump(2), "\n");
  }
  std::string text = "runs (--preset=NAME, or causewayctl config presets NAME to see one):\n";
  for (const std::string& preset : RunPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  text += "models (model { preset: \"NAME\" }):\n";
  for (const std::string& preset : ModelPresetNames()) absl::StrAppend(&text, "  ", preset, "\n");
  return text;
}

// Prints ConfigDifference's findings, one per line; or as JSON:
//   {"differences": ["train.steps: 800 -> 900"]}
int PrintDifference(const v1::RunConfig& from, const v1::RunConfig& to) {
  const std::string difference = ConfigDifference(from, to);
  const std::vector<std::string> lines = absl::StrSplit(difference, "; ", absl::SkipEmpty());
  if (absl::GetFlag(FLAGS_json)) {
    Print(absl::StrCat(nlohmann::json({{"differences", lines}}).dump(2), "\n"));
  } else {
    for (const std::string& line : lines) Print(absl::StrCat(line, "\n"));
  }
  return difference.empty() ? 0 : kExitFailed;
}

// The commands that need no coordinator, but for `show`.
int Config(const std::vector<std::string>& arguments) {
  const std::string what = arguments.size() > 1 ? arguments[1] : "";
  const std::string preset = absl::GetFlag(FLAGS_preset);
  const std::vector<std::string> files(
      arguments.begin() + std::min<ptrdiff_t>(2, std::ssize(arguments)), arguments.end());
  const std::string first = files.empty() ? "" : files[0];
  if (what == "show" && files.empty()) return RunOnline("config", arguments);
  if (what == "presets" && files.empty()) {
    Print(PresetsText());
    return 0;
  }
  absl::StatusOr<v1::RunConfig> config;
  if (what == "presets" && files.size() == 1) {
    config = LoadCompleteConfig("", first);
  } else if ((what == "check" && files.size() <= 1) || (what == "diff" && files.size() == 2)) {
    config = LoadCompleteConfig(first, preset);
  } else {
    return Misused("config takes show, check [FILE], diff FILE1 FILE2 or presets [NAME]");
  }
  if (!config.ok()) return Refuse(kProgram, config.status());
  if (what == "diff") {
    const absl::StatusOr<v1::RunConfig> other = LoadCompleteConfig(files[1], preset);
    return other.ok() ? PrintDifference(*config, *other) : Refuse(kProgram, other.status());
  }
  Print(ConfigText(*config));
  return 0;
}

int Main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> arguments =
      ParseCommandLine(argc, argv, kCtlProgram, kSoftwareVersion);
  const std::string& command = arguments[0];
  if (command == "config") return Config(arguments);
  return RunOnline(command, arguments);
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) { return causeway::server::Main(argc, argv); }
