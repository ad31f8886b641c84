// preflight: what keeps this site from joining, before it joins.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/cli/command_line.h"
#include "common/client/boarding.h"
#include "common/params/config_checks.h"
#include "common/params/run_config.h"
#include "common/rpc/security.h"
#include "common/rpc/tcp_links.h"
#include "common/rpc/tcp_stream.h"
#include "worker/commands/commands.h"
#include "worker/preflight/preflight.h"

ABSL_DECLARE_FLAG(std::string, coordinator);
ABSL_DECLARE_FLAG(std::string, id);
ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(bool, own_data);
ABSL_DECLARE_FLAG(int, threads);
ABSL_DECLARE_FLAG(std::string, congestion_control);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(double, probe_seconds, 3, "how long each direction is measured; 0: not at all");
ABSL_FLAG(absl::Duration, step_time, absl::ZeroDuration(),
          "TIME: what an inner step takes here, if it is known; else it is estimated");

namespace causeway::worker {
namespace {

constexpr char kPreflightProgram[] = "causeway-worker preflight";
constexpr absl::Duration kBoarding = absl::Seconds(30);
constexpr absl::Duration kConnect = absl::Seconds(5);
constexpr int kDefaultConnections = 4;
constexpr double kMostProbeSeconds = 10;  // The coordinator's limit.

// One line on a terminal that is written over, and nothing elsewhere.
class PreflightLine {
 public:
  void Show(const std::string& text) {
    if (!terminal_ || text == shown_) return;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    shown_ = text;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::string shown_;
};

// The first of a list's addresses at which something listens: what is checked is one. None: the
// first, whose checks say why.
absl::StatusOr<std::string> FirstThatAnswers(const std::string& addresses) {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, SplitAddresses(addresses));
  if (all.size() == 1) return all.front();
  for (const std::string& address : all) {
    if (DialTcp(address, absl::Now() + kConnect).ok()) return address;
  }
  return all.front();
}

absl::StatusOr<PreflightOptions> PreflightOptionsFromFlags() {
  PreflightOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.security = SecurityOptionsFromFlags();
  options.worker_id = absl::GetFlag(FLAGS_id);
  // It ends before a certificate does.
  RETURN_IF_ERROR(
      BoardByFlags(kBoarding, options.coordinator, &options.worker_id, options.security).status());
  absl::StatusOr<std::string> answering = FirstThatAnswers(options.coordinator);
  RETURN_IF_ERROR(Annotate(answering.status(), "--coordinator"));
  options.coordinator = *std::move(answering);
  if (!options.worker_id.empty()) RETURN_IF_ERROR(CheckName("--id", options.worker_id));
  options.data = absl::GetFlag(FLAGS_data);
  options.output = absl::GetFlag(FLAGS_out);
  options.own_data = absl::GetFlag(FLAGS_own_data);
  options.threads = absl::GetFlag(FLAGS_threads);
  RETURN_IF_ERROR(ThreadsFor(options.threads).status());
  ASSIGN_OR_RETURN(options.connections, GivenConnections());
  if (options.connections == 0) options.connections = kDefaultConnections;
  const double seconds = absl::GetFlag(FLAGS_probe_seconds);
  RETURN_IF_ERROR(CheckRange("--probe_seconds", seconds, 0.0, kMostProbeSeconds));
  options.probe_time = absl::Seconds(seconds);
  options.step_time = absl::GetFlag(FLAGS_step_time);
  if (options.step_time < absl::ZeroDuration() || options.step_time > absl::Hours(24)) {
    return absl::InvalidArgumentError("--step_time must be in 0 .. 24h");
  }
  options.trains_on_gpus = AnyGpu();
  ASSIGN_OR_RETURN(options.congestion_control,
                   ChooseCongestionControl(absl::GetFlag(FLAGS_congestion_control)));
  return options;
}

}  // namespace

int RunPreflightCommand() {
  const absl::StatusOr<PreflightOptions> options = PreflightOptionsFromFlags();
  if (!options.ok()) return Refuse(kPreflightProgram, options.status());
  const bool as_json = absl::GetFlag(FLAGS_json);
  PreflightLine progress;
  PreflightOutput output;
  output.progress = [&](const std::string& text) { progress.Show(text); };
  output.result = [&](const CheckResult& result) {
    if (as_json) return;
    std::printf("%s\n", FormatCheck(result).c_str());
    std::fflush(stdout);
  };
  const std::vector<CheckResult> results =
      RunPreflight(*options, *FileSystem::Real(), *Clock::Real(), output);
  progress.Show("");
  std::printf("%s\n", as_json ? ToJson(results).dump(2).c_str() : FormatVerdict(results).c_str());
  return AnyFailed(results) ? kExitFailed : 0;
}

}  // namespace causeway::worker
