#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/client/boarding.h"
#include "common/client/reach.h"
#include "common/files/array_file.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "server/commands.h"
#include "server/core/replay.h"
#include "server/given_run.h"
#include "server/link/copy_link.h"
#include "server/opened_run.h"
#include "server/run_views.h"
#include "server/standby/standbys.h"
#include "server/store/inspect.h"
#include "server/store/run_directory_store.h"
#include "server/views/status_page.h"

ABSL_FLAG(bool, json, false, "JSON for programs");
ABSL_FLAG(std::string, without, "", "WORKER,...: as if these had contributed nothing");
ABSL_FLAG(std::string, outer, "",
          "TEXTPROTO: other settings of the outer optimizer, as 'learning_rate: 0.7'");
ABSL_FLAG(std::string, output, "", "FILE: receives the resulting parameters");
ABSL_FLAG(std::string, of, "", "HOST:PORT: the coordinator to follow");
ABSL_FLAG(
    std::string, standby_name, "",
    "NAME: who follows, for people (serve --etcd: this coordinator); else the machine's name");

ABSL_DECLARE_FLAG(std::string, http);
ABSL_DECLARE_FLAG(std::string, run_dir);

namespace causeway::server {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(200);
constexpr absl::Duration kFollowingLineEvery = absl::Seconds(5);
constexpr absl::Duration kBoarding = absl::Seconds(10);

// One line that is written over on a terminal; elsewhere a line at every tenth.
class ReplayProgress {
 public:
  void operator()(int64_t done, int64_t all) {
    const absl::Duration elapsed = Clock::Real()->Monotonic() - start_;
    const double rate = static_cast<double>(done) / std::max(1e-9, absl::ToDoubleSeconds(elapsed));
    const auto left = static_cast<double>(all - done) / rate;
    if (isatty(STDERR_FILENO) != 0) {
      std::fprintf(stderr, "\rround %lld of %lld, %.0f rounds/s, %.0f s left   %s",
                   static_cast<long long>(done), static_cast<long long>(all), rate, left,
                   done == all ? "\n" : "");
    } else if (done * 10 / all != (done - 1) * 10 / all) {
      std::fprintf(stderr, "round %lld of %lld, %.0f rounds/s, %.0f s left\n",
                   static_cast<long long>(done), static_cast<long long>(all), rate, left);
    }
  }

 private:
  const absl::Duration start_ = Clock::Real()->Monotonic();
};

absl::StatusOr<v1::OuterConfig> OtherOuter(const v1::RunConfig& run, const std::string& text) {
  ASSIGN_OR_RETURN(v1::RunConfig other,
                   ParseRunConfig(absl::StrCat("outer { ", text, " }"), "--outer", run));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(other).status(), "--outer"));
  return other.outer();
}

}  // namespace

absl::Status InspectCommand(const std::string& run_dir) {
  FileSystem& file_system = *FileSystem::Real();
  ASSIGN_OR_RETURN(const nlohmann::json inspection, InspectRun(file_system, run_dir));
  std::fputs(absl::GetFlag(FLAGS_json) ? absl::StrCat(inspection.dump(2), "\n").c_str()
                                       : InspectionText(inspection).c_str(),
             stdout);
  return absl::OkStatus();
}

absl::Status ReplayCommand(const std::string& run_dir) {
  const std::string outer = absl::GetFlag(FLAGS_outer);
  const std::string without = absl::GetFlag(FLAGS_without);
  const std::string output = absl::GetFlag(FLAGS_output);
  FileSystem& file_system = *FileSystem::Real();
  ASSIGN_OR_RETURN(
      const std::unique_ptr<RunDirectoryStore> store,
      RunDirectoryStore::Open(file_system, run_dir, {.retain_deltas = true, .read_only = true}));
  ASSIGN_OR_RETURN(const std::optional<RecoveredRun> run, store->Recover());
  if (!run.has_value()) return absl::NotFoundError(absl::StrCat(run_dir, " holds no run"));
  const v1::RunConfig& config = run->identity.config();
  ReplayOptions options;
  options.store = store.get();
  options.run = &*run;
  if (!outer.empty()) {
    ASSIGN_OR_RETURN(options.outer, OtherOuter(config, outer));
  }
  for (const auto worker : absl::StrSplit(without, ',', absl::SkipEmpty())) {
    options.without.emplace(worker);
  }
  for (const std::string& worker : options.without) {
    if (std::any_of(run->members.begin(), run->members.end(),
                    [&](const v1::Member& member) { return member.worker_id() == worker; })) {
      continue;
    }
    return absl::NotFoundError(absl::StrCat("--without: no worker ", worker, " joined this run"));
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  ASSIGN_OR_RETURN(options.initial_parameters,
                   InitialParametersOf(file_system, run_dir, config, plan));
  ThreadPool pool(ThreadsFor(0).value());
  RETURN_IF_ERROR(pool.started());
  options.pool = &pool;
  options.progress = ReplayProgress();
  ASSIGN_OR_RETURN(const ReplayResult result, Replay(options));
  std::printf("%lld rounds of run %s merged again, each with its recorded hashes\n",
              static_cast<long long>(result.rounds), run->identity.run_id().c_str());
  if (options.outer.has_value()) {
    std::printf("with outer { %s } the parameters differ by %.6g of their norm\n", outer.c_str(),
                result.relative_difference);
  } else if (!options.without.empty()) {
    std::printf("without %s the parameters differ by %.6g of their norm\n", without.c_str(),
                result.relative_difference);
  }
  if (output.empty()) return absl::OkStatus();
  v1::RunConfig described = config;
  if (options.outer.has_value()) *described.mutable_outer() = *options.outer;
  RETURN_IF_ERROR(WriteParametersFile(
      file_system, output, {{"run_id", run->identity.run_id()}, {"rounds", result.rounds}},
      FormatRunConfig(described), result.parameters));
  std::printf("the parameters are in %s\n", output.c_str());
  return absl::OkStatus();
}

absl::Status FollowCommand(SecurityOptions credentials,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused) {
  refused = true;
  const std::string run_dir = absl::GetFlag(FLAGS_run_dir);
  if (run_dir.empty()) {
    return absl::InvalidArgumentError("give a folder for the copy: --run_dir=FOLDER");
  }
  std::string of;
  ASSIGN_OR_RETURN(const auto keeper,
                   BoardByFlags(kBoarding, of, /*id=*/nullptr, credentials, {Role::kOperator}));
  if (const std::string given = absl::GetFlag(FLAGS_of); !given.empty()) {
    RETURN_IF_ERROR(Annotate(CheckAddress(given, /*allow_any_port=*/false), "--of"));
    of = given;
  }
  if (of.empty()) {
    return absl::InvalidArgumentError(
        "give the coordinator to follow: --of=HOST:PORT, or an operator's --join");
  }
  std::string name = absl::GetFlag(FLAGS_standby_name);
  if (name.empty()) name = MachineName();
  RETURN_IF_ERROR(CheckName("--standby_name", name));
  // An invitation may name several.
  ASSIGN_OR_RETURN(const ReachedRun original, ApproachRun(of, credentials));
  ASSIGN_OR_RETURN(std::optional<HttpListener> port,
                   OpenHttpPort(absl::GetFlag(FLAGS_http), credentials.UsesTls()));
  StandbyNotes notes;
  notes.Doing(absl::StrCat("asks ", of, " for the run"));
  ASSIGN_OR_RETURN(const auto http, ServeStandbyHttp(std::move(port), notes, run_dir,
                                                     {{"tls_cert", credentials.cert_file}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<CopyLink> following,
                   CopyLink::Start(*FileSystem::Real(), run_dir, StoreOptionsFromFlags(), name,
                                   original.target, original.security, notes));
  int64_t shown = following->commits();
  absl::Duration next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
  while (!following->ended()) {
    if (stop_requested(kStopPoll)) {
      Log().info("stopping on a signal");
      break;
    }
    if (Clock::Real()->Monotonic() < next_line) continue;
    next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
    const int64_t commits = following->commits();
    if (commits != shown) Log().info("has commit {}", commits);
    shown = commits;
  }
  const absl::Status result = following->Stop();
  refused = !following->has_followed();
  if (result.ok()) {
    Log().info(
        "{} has commit {}; serve it in place of the coordinator only once that is gone: "
        "causeway-coordinator serve --run_dir={}",
        run_dir, following->commits(), run_dir);
  }
  return result;
}

}  // namespace causeway::server
