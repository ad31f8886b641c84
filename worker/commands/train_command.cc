#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/cli/command_line.h"
#include "common/client/boarding.h"
#include "common/identity/certificate.h"
#include "common/params/config_checks.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"
#include "common/telemetry/log.h"
#include "worker/commands/commands.h"
#include "worker/commands/site.h"
#include "worker/commands/training_run.h"
#include "worker/member/joining.h"
#include "worker/member/rendezvous.h"

ABSL_DECLARE_FLAG(std::string, join);
ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070",
          "HOST:PORT,...: where the coordinator is, and where it may move to");
ABSL_FLAG(std::string, id, "", "NAME: this worker's, unique in the run");
ABSL_FLAG(std::string, data, "",
          "SHARDS|TEXT: the folder of tokenize, or llm.c; train: or text, a file or folder of it");
ABSL_FLAG(bool, own_data, false, "the shards are this site's alone, and it trains on all of them");
ABSL_FLAG(std::string, shard_format, "auto",
          "auto|llmc|uint16|uint32: of shards without a data.json");
ABSL_FLAG(std::string, out, "",
          "FOLDER: receives metrics, summary and checkpoint of train, or what the other commands "
          "make");
ABSL_FLAG(std::string, metrics, "",
          "HOST:PORT: serves /metrics for Prometheus; port 0: any free one");
ABSL_FLAG(std::string, metrics_address_file, "", "FILE: receives that HOST:PORT");
ABSL_FLAG(std::string, tensorboard, "",
          "FOLDER: receives curves, in a subfolder of this worker's name");
ABSL_FLAG(int, threads, 0, "N: compute threads; else one per core");
ABSL_FLAG(absl::Duration, connect_timeout, absl::Seconds(30),
          "how long to wait for the coordinator to answer");
ABSL_FLAG(absl::Duration, checkpoint_interval, absl::Minutes(10),
          "between local checkpoints; 0: at the end only");
ABSL_FLAG(std::string, replay_merges, "",
          "FILE: the merges.jsonl of a run whose overlap gave way (sync.max_overlap_steps): merges "
          "what it says after the steps that it says");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(20),
          "how long a worker that is told to stop tries to hand over its deltas");
ABSL_FLAG(int, sample_tokens, 0, "N: the worker in data slot 0 generates so many at the end");

ABSL_FLAG(double, max_tokens_per_second, 0,
          "N: no faster than this, to leave a shared machine some room");

ABSL_FLAG(absl::Duration, min_step_time, absl::ZeroDuration(),
          "TIME: an inner step takes at least this long, as if the device were slower");

ABSL_FLAG(std::string, connections, "auto", "auto|N: TCP connections for bulk transfers, 1 .. 16");
ABSL_FLAG(std::string, congestion_control, "auto",
          "auto|system|NAME: auto: bbr where this process may use it; system: as the system has "
          "it; or cubic, ...");

ABSL_FLAG(std::string, site_secret_file, "",
          "FILE: the same for all of these processes; by its text they speak TLS");
ABSL_FLAG(absl::Duration, site_timeout, absl::Minutes(10),
          "how long one of them waits for the others");

ABSL_FLAG(double, max_upload_mbit, 0, "N: fragments are sent no faster, in Mbit/s");
ABSL_FLAG(double, max_download_mbit, 0, "N: fragments are fetched no faster, in Mbit/s");

namespace causeway::worker {
namespace {

constexpr char kTrainProgram[] = "causeway-worker train";
// Until this process has joined the run: a worker that has not has nothing to hand over.
std::atomic<bool> joins = true;

void EndWhileJoining() {
  const bool boards = !absl::GetFlag(FLAGS_join).empty() || std::getenv("CAUSEWAY_JOIN") != nullptr;
  std::fprintf(stderr, "%s: told to stop before it had joined the run%s%s\n", kTrainProgram,
               boards ? "" : " at ",
               boards ? "" : WithoutSecret(absl::GetFlag(FLAGS_coordinator)).c_str());
  _exit(0);
}

// `keeper`: receives who renews the certificate, if it came by an invitation.
absl::StatusOr<TrainingOptions> TrainingOptionsFromFlags(const LaunchEnvironment& launch,
                                                         std::unique_ptr<IdentityKeeper>& keeper) {
  TrainingOptions options;
  options.member.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.member.security = SecurityOptionsFromFlags();
  options.member.replay_merges = absl::GetFlag(FLAGS_replay_merges);
  options.member.worker_id = absl::GetFlag(FLAGS_id);
  options.data = absl::GetFlag(FLAGS_data);
  options.member.own_data = absl::GetFlag(FLAGS_own_data);
  ASSIGN_OR_RETURN(options.shard_format, ParseShardFormat(absl::GetFlag(FLAGS_shard_format)));
  options.member.output = absl::GetFlag(FLAGS_out);
  options.member.metrics_address = absl::GetFlag(FLAGS_metrics);
  options.member.metrics_address_file = absl::GetFlag(FLAGS_metrics_address_file);
  options.member.tensorboard = absl::GetFlag(FLAGS_tensorboard);
  options.member.connect_timeout = absl::GetFlag(FLAGS_connect_timeout);
  options.checkpoint_interval = absl::GetFlag(FLAGS_checkpoint_interval);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.sample_tokens = absl::GetFlag(FLAGS_sample_tokens);
  ASSIGN_OR_RETURN(options.devices, DevicesFromFlags());
  if (launch.processes > 1) {
    ASSIGN_OR_RETURN(options.devices, ResolveShare(options.devices, launch, *FileSystem::Real()));
  }
  // Process 0 alone has to do with the coordinator.
  ASSIGN_OR_RETURN(keeper, BoardByFlags(launch.process == 0 ? options.member.connect_timeout
                                                            : absl::ZeroDuration(),
                                        options.member.coordinator, &options.member.worker_id,
                                        options.member.security, {Role::kWorker}));
  ASSIGN_OR_RETURN(options.document_mark, GivenDocumentMark());
  options.max_tokens_per_second = absl::GetFlag(FLAGS_max_tokens_per_second);
  options.min_step_time = absl::GetFlag(FLAGS_min_step_time);
  for (const auto& [flag, value] :
       {std::pair("--id", options.member.worker_id), std::pair("--data", options.data),
        std::pair("--out", options.member.output)}) {
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, " is required"));
  }
  ASSIGN_OR_RETURN(options.data, TokenFilesOf(options.data, options.member.output));
  ASSIGN_OR_RETURN(options.member.threads, ThreadsFor(absl::GetFlag(FLAGS_threads)));
  ASSIGN_OR_RETURN(options.member.congestion_control,
                   ChooseCongestionControl(absl::GetFlag(FLAGS_congestion_control)));
  ASSIGN_OR_RETURN(options.member.connections, GivenConnections());
  ASSIGN_OR_RETURN(options.member.max_upload_bytes_per_second,
                   BytesPerSecond("--max_upload_mbit", absl::GetFlag(FLAGS_max_upload_mbit)));
  ASSIGN_OR_RETURN(options.member.max_download_bytes_per_second,
                   BytesPerSecond("--max_download_mbit", absl::GetFlag(FLAGS_max_download_mbit)));
  RETURN_IF_ERROR(CheckRange("--sample_tokens", options.sample_tokens, 0, 1'000'000));
  if (!(options.max_tokens_per_second >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_tokens_per_second must not be negative; it is ", options.max_tokens_per_second));
  }
  return options;
}

absl::StatusOr<SiteOptions> SiteOptionsFor(const LaunchEnvironment& launch,
                                           const TrainingOptions& training) {
  SiteOptions options;
  options.devices = training.devices;
  SiteRendezvous& rendezvous = options.rendezvous;
  rendezvous.launch = launch;
  rendezvous.token =
      Checksum64(absl::StrCat(training.member.worker_id, " at ", training.member.coordinator));
  rendezvous.cause = std::make_shared<SharedCause>();
  rendezvous.patience = absl::GetFlag(FLAGS_site_timeout);
  if (rendezvous.patience <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--site_timeout must be more than 0; it is ",
                                                   absl::FormatDuration(rendezvous.patience)));
  }
  const std::string secret_file = absl::GetFlag(FLAGS_site_secret_file);
  if (!secret_file.empty()) {
    ASSIGN_OR_RETURN(rendezvous.secret, ReadTrustedFile(secret_file, /*secret=*/true));
    constexpr size_t kLeast = 16;
    if (rendezvous.secret.size() < kLeast) {
      return absl::InvalidArgumentError(
          absl::StrCat(secret_file, " must hold ", kLeast, " bytes or more; it has ",
                       rendezvous.secret.size(), ": make one with `openssl rand -hex 32`"));
    }
  }
  return options;
}

// While process 0 joins the run, a signal to any process of the site ends all of them: there is
// nothing to hand over.
class WatchWhileJoining {
 public:
  WatchWhileJoining(Site* site, const StopSignal& stop) {
    if (site == nullptr) return;
    joins = false;
    // Without a thread a signal does nothing until it has joined.
    thread_
        .Start(kStopPoll,
               [site, &stop] {
                 if (stop.came() || site->told_to_stop()) {
                   site->End(absl::OkStatus());
                   EndWhileJoining();
                 }
                 return kStopPoll;
               })
        .IgnoreError();
  }

 private:
  PeriodicThread thread_;
};

// Ends a start. A supervisor tries again what may pass by itself, such as a coordinator that is
// away, a run that is full or a disk, and leaves alone what repeats.
int EndStart(const absl::Status& status) {
  return NextStartMayPass(status) ? Fail(kTrainProgram, status) : Refuse(kTrainProgram, status);
}

// The process that joins the run; `site` has this worker's others, or is null.
int RunWorker(TrainingOptions options, Site* site, const StopSignal& stop) {
  options.site = site;
  Log().info("congestion control: {}",
             DescribeCongestionControl(options.member.congestion_control));
  absl::StatusOr<std::unique_ptr<TrainingRun>> run = absl::UnknownError("not joined");
  {
    const WatchWhileJoining watch(site, stop);
    run = TrainingRun::Join(options, *FileSystem::Real(), *Clock::Real());
  }
  if (!run.ok()) {
    if (site != nullptr) site->End(run.status());
    return EndStart(run.status());
  }
  joins = false;
  const absl::Status status = (*run)->Train(
      [site, &stop] { return stop.came() || (site != nullptr && site->told_to_stop()); });
  if (site != nullptr) site->End(status);
  if (!status.ok()) return Fail(kTrainProgram, status);
  return 0;
}

int RunFollower(const SiteOptions& options, const StopSignal& stop) {
  absl::StatusOr<std::unique_ptr<SiteFollower>> follower =
      SiteFollower::Join(options, *FileSystem::Real());
  if (!follower.ok()) return EndStart(follower.status());
  joins = false;
  const absl::Status status = (*follower)->Follow([&stop] { return stop.came(); });
  if (status.ok()) return 0;
  return (*follower)->begun() ? Fail(kTrainProgram, status) : EndStart(status);
}

}  // namespace

int RunTrain() {
  const absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(ProcessEnvironment);
  if (!launch.ok()) return Refuse(kTrainProgram, launch.status());
  // Boarding by an invitation waits for the coordinator, too.
  const StopSignal stop([] {
    if (joins) EndWhileJoining();
  });
  if (!stop.started().ok()) return Fail(kTrainProgram, stop.started());
  std::unique_ptr<IdentityKeeper> keeper;
  const absl::StatusOr<TrainingOptions> options = TrainingOptionsFromFlags(*launch, keeper);
  if (!options.ok()) return EndStart(options.status());
  if (launch->processes == 1) return RunWorker(*options, nullptr, stop);
  const absl::StatusOr<SiteOptions> site_options = SiteOptionsFor(*launch, *options);
  if (!site_options.ok()) return EndStart(site_options.status());
  if (launch->process != 0) return RunFollower(*site_options, stop);
  absl::StatusOr<std::unique_ptr<Site>> site = Site::Gather(*site_options, *FileSystem::Real());
  if (!site.ok()) return EndStart(site.status());
  return RunWorker(*options, site->get(), stop);
}

}  // namespace causeway::worker
