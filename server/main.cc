// causeway-coordinator: averages what the workers of a run send, and publishes the result.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/cli/command_line.h"
#include "common/identity/invitation.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metric_page.h"
#include "common/transfer/wire.h"
#include "server/commands.h"
#include "server/core/served_run.h"
#include "server/given_run.h"
#include "server/link/copy_link.h"
#include "server/link/leading.h"
#include "server/link/parent_link.h"
#include "server/opened_run.h"
#include "server/run_views.h"
#include "server/service/coordinator_server.h"
#include "server/standby/standbys.h"
#include "server/store/run_directory_store.h"
#include "server/views/status_page.h"

ABSL_FLAG(std::string, run_dir, "", "FOLDER: holds the run");
ABSL_FLAG(std::string, config, "",
          "FILE|TEXT: the run's configuration, a textproto, or the text itself, which has a {");
ABSL_FLAG(
    std::string, initial, "",
    "FILE|first-site: the parameters to start from, as `python3 -m causeway.huggingface "
    "import` and `replay` write them, or *.safetensors (a file, or a folder of them): the model is "
    "theirs if the "
    "configuration leaves it out; first-site: the first site brings them, and with them the model");
ABSL_FLAG(std::string, preset, "",
          "NAME: settings that the configuration is read over: paper, best, streaming, diloco or "
          "data-parallel");
ABSL_FLAG(std::string, listen, "127.0.0.1:7070", "port 0 takes any free one");
ABSL_FLAG(std::string, address_file, "", "FILE: receives HOST:PORT once it listens");
ABSL_FLAG(std::string, http, "auto",
          "HOST:PORT|auto|off: metrics and the status page (follow: health and metrics of the "
          "copy); auto: 127.0.0.1:7071, or any free port, and off with TLS");
ABSL_FLAG(double, max_requests_per_second, 5000,
          "of one worker, operator or observer; streams count when they open");
ABSL_FLAG(int, max_connections, 0,
          "of all peers; 0: 4096, or what max_workers and the limit of open files say");
ABSL_FLAG(
    int, max_connections_per_address, 0,
    "of an IPv4 address or IPv6 /64 network; 0: a quarter of all, but enough for every worker");
ABSL_FLAG(std::string, refused_identities, "",
          "FILE: who is refused whatever his certificate or token says, one a line (\"worker "
          "site-a\"); read again when it changes");
ABSL_FLAG(std::string, tls, "auto",
          "auto|own|off: own: by certificates of the run's own authority, and causewayctl invite; "
          "auto: own beyond this machine, where no others are given; off: plaintext");
ABSL_FLAG(std::string, authority, "",
          "FOLDER: ca.pem and ca.key of your own, in place of the ones that --tls=own makes");
ABSL_FLAG(std::string, tls_crl_dir, "", "FOLDER: revocation lists, as `openssl rehash` names them");
ABSL_FLAG(absl::Duration, max_connection_age, absl::Hours(24),
          "then a connection is made anew, by who still may; transfers resume");
ABSL_FLAG(std::string, congestion_control, "auto",
          "auto|system|NAME: of the workers' connections; auto: bbr where this process may use it; "
          "system: as the system has it; or cubic, ...");
ABSL_FLAG(int, memory_mb, 0,
          "what transfers may take, in MiB; 0: the model of every member, and 1024");
ABSL_FLAG(int, snapshot_every_rounds, 10,
          "a recovery merges so many rounds of each fragment again");
ABSL_FLAG(bool, exit_when_finished, false, "exits when every worker has left");
ABSL_FLAG(bool, exit_when_drained, true,
          "with --exit_when_finished: not before the end of training; who was drained comes back");
ABSL_FLAG(std::string, log_level, "info",
          "debug|info|warn|error: what is logged, and graver things");

ABSL_DECLARE_FLAG(std::string, advertise);
ABSL_DECLARE_FLAG(std::string, etcd);
ABSL_DECLARE_FLAG(std::string, etcd_cert);
ABSL_DECLARE_FLAG(std::string, parent_tls_cert);
ABSL_DECLARE_FLAG(std::string, standby_cert);

namespace causeway::server {
namespace {

constexpr char kProgram[] = "causeway-coordinator";
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kRunLineInterval = absl::Seconds(5);
constexpr absl::Duration kStopDeadline = absl::Seconds(3);
// For deltas that a region owes its parent when it stops.
constexpr absl::Duration kParentPatience = absl::Seconds(30);

// Ends a start. A supervisor tries again what may pass by itself, such as a peer that is away, and
// leaves alone what repeats.
int EndStart(const absl::Status& status) {
  return NextStartMayPass(status) ? Fail(kProgram, status) : Refuse(kProgram, status);
}

GivenRun GivenRunFromFlags() {
  return {.config = absl::GetFlag(FLAGS_config),
          .preset = absl::GetFlag(FLAGS_preset),
          .initial = absl::GetFlag(FLAGS_initial),
          .run_dir = absl::GetFlag(FLAGS_run_dir)};
}

int CheckConfig() {
  const GivenRun given = GivenRunFromFlags();
  const absl::StatusOr<CompleteConfig> loaded =
      LoadConfig(*FileSystem::Real(), given, given.model());
  if (!loaded.ok()) return Refuse(kProgram, loaded.status());
  std::fputs(FormatRunConfig(loaded->config).c_str(), stdout);
  for (const std::string& warning : loaded->warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return 0;
}

// "step 40 of 100, 2 workers, 5120 tokens/s, 8 rounds, 1.2 MB up, 1.2 MB down; waiting for b ..."
std::string ProgressLine(const v1::RunStatus& status) {
  int live = 0;
  double tokens_per_second = 0;
  double bytes_up = 0;
  double bytes_down = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    bytes_up += static_cast<double>(worker.bytes_up());
    bytes_down += static_cast<double>(worker.bytes_down());
    if (!IsLive(worker)) continue;
    ++live;
    tokens_per_second += worker.tokens_per_second();
  }
  int64_t rounds = 0;
  std::string waiting;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    rounds += fragment.published_version();
    if (fragment.contributed_size() > 0 && waiting.empty()) {
      waiting = absl::StrCat("; fragment ", fragment.fragment(), ": ", fragment.waiting_for());
    }
  }
  return absl::StrFormat(
      "step %d of %d, %d workers, %.0f tokens/s, %d rounds, %.1f MB up, %.1f MB down%s",
      status.run_step(), status.config().train().steps(), live, tokens_per_second, rounds,
      bytes_up / 1e6, bytes_down / 1e6, waiting);
}

// Until a signal, the end of the run, or a failure.
absl::Status ServeUntilStopped(const ServedRun& run, RunViews& views, Standbys& standbys,
                               StopSignal& stop_signal) {
  Clock& clock = *Clock::Real();
  std::string last_line;
  absl::Duration next_line = clock.Monotonic() + kRunLineInterval;
  for (;;) {
    if (stop_signal.Wait(kPoll)) {
      Log().info("stopping on a signal; another one ends the process at once");
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(run.Health());
    RETURN_IF_ERROR(standbys.closed());
    const Coordinator* const coordinator = run.coordinator();
    if (absl::GetFlag(FLAGS_exit_when_finished) && coordinator != nullptr &&
        (absl::GetFlag(FLAGS_exit_when_drained) ? coordinator->Finished()
                                                : coordinator->ReachedItsEnd())) {
      return absl::OkStatus();
    }
    views.Tick();
    standbys.Tick();
    if (clock.Monotonic() < next_line) continue;
    next_line = clock.Monotonic() + kRunLineInterval;
    const v1::RunStatus status = run.GetStatus();
    if (!status.started() || status.finished()) continue;
    std::string line = ProgressLine(status);
    if (line == last_line) continue;  // Nobody moves: once is enough.
    last_line = std::move(line);
    Log().info("{}", last_line);
  }
}

SecurityOptions Security() {
  SecurityOptions security = SecurityOptionsFromFlags();
  security.crl_folder = absl::GetFlag(FLAGS_tls_crl_dir);
  return security;
}

// Sets where the run's own authority is, if it has one.
absl::Status ChooseAuthority(CoordinatorServer::Options& options) {
  const std::string tls = absl::GetFlag(FLAGS_tls);
  const std::string given = absl::GetFlag(FLAGS_authority);
  if (tls == "off" && options.security.UsesTls()) {
    return absl::InvalidArgumentError(
        "--tls=off beside --tls_ca, --tls_cert and --tls_key: give one or the other");
  }
  const bool has_others = options.security.UsesTls() || options.security.insecure;
  const std::string advertised = absl::GetFlag(FLAGS_advertise);
  const bool shares = !absl::GetFlag(FLAGS_etcd).empty();
  if (shares && tls == "own" && given.empty()) {
    return absl::InvalidArgumentError(
        "--etcd beside --tls=own: coordinators that share a run need the same authority, whose key "
        "is on no wire: give all of them a copy of it, --authority=FOLDER "
        "(deploy/make_certificates "
        "init makes one), or certificates from elsewhere (--tls_ca, --tls_cert, --tls_key)");
  }
  const bool own = tls == "own" || !given.empty() ||
                   (tls == "auto" && !has_others && !shares && !IsLoopback(options.address));
  if (!own || tls == "off") {
    if (given.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--authority beside --tls=off: give one or the other");
  }
  if (!advertised.empty()) {
    ASSIGN_OR_RETURN(options.advertised, SplitAddresses(advertised));
  }
  const std::string run_dir = absl::GetFlag(FLAGS_run_dir);
  options.authority_folder = JoinPath(run_dir, "authority");
  options.given_authority = given;
  options.operator_folder = JoinPath(run_dir, "operator");
  return absl::OkStatus();
}

absl::StatusOr<CoordinatorServer::Options> ServerOptions() {
  CoordinatorServer::Options options;
  options.address = absl::GetFlag(FLAGS_listen);
  options.security = Security();
  options.memory_bytes = int64_t{absl::GetFlag(FLAGS_memory_mb)} << 20;
  options.max_requests_per_second = absl::GetFlag(FLAGS_max_requests_per_second);
  options.max_connections = absl::GetFlag(FLAGS_max_connections);
  options.max_connections_per_address = absl::GetFlag(FLAGS_max_connections_per_address);
  options.refused_identities = absl::GetFlag(FLAGS_refused_identities);
  options.connections.age = absl::GetFlag(FLAGS_max_connection_age);
  RETURN_IF_ERROR(ChooseAuthority(options));
  return options;
}

// By the flags that name them, or that would.
CertificateFiles CertificatesOf(const ServeFlags& flags) {
  const CoordinatorServer::Options& server = flags.server;
  const std::string& authority =
      server.given_authority.empty() ? server.authority_folder : server.given_authority;
  return {
      {"tls_cert", server.security.cert_file},
      {"authority", authority.empty() ? std::string() : IdentityFiles(authority).authority},
      {"standby_cert", absl::GetFlag(FLAGS_standby_cert)},
      {"etcd_cert", absl::GetFlag(FLAGS_etcd_cert)},
      {"parent_tls_cert", flags.parent.keeper != nullptr ? flags.parent.security.cert_file
                                                         : absl::GetFlag(FLAGS_parent_tls_cert)}};
}

// The operator's folder of a former start, which had an authority of its own: this one would not
// know it. What is of another authority, somebody else has put there.
void RemoveOperator(FileSystem& file_system, const std::string& run_dir) {
  const std::string folder = JoinPath(run_dir, "operator");
  const IdentityFiles files(folder);
  const absl::StatusOr<std::string> authority = file_system.ReadFile(files.authority);
  const absl::StatusOr<std::string> own =
      file_system.ReadFile(IdentityFiles(JoinPath(run_dir, "authority")).authority);
  if (!authority.ok() || !own.ok() || *authority != *own) return;
  for (const std::string& path :
       {files.coordinator, files.certificate, files.key, files.authority, folder}) {
    file_system.Remove(path).IgnoreError();
  }
  Log().info("{} is removed: it was good with --tls=own alone, which makes it anew", folder);
}

absl::StatusOr<ServeFlags> CheckServeFlags(FileSystem& file_system) {
  ServeFlags flags;
  flags.given = GivenRunFromFlags();
  if (flags.given.run_dir.empty()) {
    return absl::InvalidArgumentError("give a folder for the run: --run_dir=FOLDER");
  }
  RETURN_IF_ERROR(
      Annotate(CheckAddress(absl::GetFlag(FLAGS_listen), /*allow_any_port=*/true), "--listen"));
  ASSIGN_OR_RETURN(flags.parent, ParentFromFlags(flags.given));
  if (absl::GetFlag(FLAGS_snapshot_every_rounds) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--snapshot_every_rounds must be 1 or more; it is ",
                     absl::GetFlag(FLAGS_snapshot_every_rounds)));
  }
  ASSIGN_OR_RETURN(flags.congestion_control,
                   ChooseCongestionControl(absl::GetFlag(FLAGS_congestion_control)));
  flags.parent.congestion_control = flags.congestion_control;
  ASSIGN_OR_RETURN(flags.server, ServerOptions());
  ASSIGN_OR_RETURN(flags.http_port, OpenHttpPort(absl::GetFlag(FLAGS_http),
                                                 flags.server.security.UsesTls() ||
                                                     !flags.server.authority_folder.empty()));
  if (flags.given.has_config()) RETURN_IF_ERROR(CheckGivenRun(file_system, flags.given));
  ASSIGN_OR_RETURN(flags.shared, SharedRunFromFlags(file_system, flags.given, flags.parent));
  return flags;
}

void RecordStart(EventLog& events, const ServedRun& run, const std::string& address) {
  const Coordinator* const begun = run.coordinator();
  const int64_t parameters = begun == nullptr ? 0 : begun->plan().parameters();
  const int fragments = begun == nullptr ? 0 : begun->plan().fragments();
  events.Record(
      "coordinator_started",
      begun == nullptr
          ? absl::StrCat("run ", run.run_id(),
                         " waits for its model, which the first site brings, on ", address)
          : absl::StrCat("run ", run.run_id(), " with ", parameters, " parameters in ", fragments,
                         " fragments listens on ", address),
      {{"run", run.run_id()},
       {"address", address},
       {"parameters", parameters},
       {"fragments", fragments},
       {"software_version", kSoftwareVersion}});
}

// The lead of a run that is shared, or what this coordinator is without others.
struct Lead {
  LateEventLog events{NullEventLog()};
  Standbys standbys{{.clock = Clock::Real(), .events = &events}};
  std::unique_ptr<Leading> leading;     // Null: it is not shared.
  std::unique_ptr<HttpServer> waiting;  // The HTTP port of the time before it led; null: none.
};

int ServeRun(ServeFlags flags, Lead& lead, StopSignal& stop_signal) {
  FileSystem& file_system = *FileSystem::Real();
  Standbys& standbys = lead.standbys;
  bool stopped = false;
  const auto wait = [&](absl::Duration timeout) {
    if (stop_signal.Wait(timeout)) stopped = true;
    return stopped || !standbys.closed().ok();
  };
  const auto end_start = [&](const absl::Status& status) {
    if (stopped && absl::IsCancelled(status)) return 0;
    const absl::Status lost = standbys.closed();
    return EndStart(lost.ok() ? status : lost);
  };
  absl::StatusOr<OpenedRun> opened = OpenRun(file_system, flags, wait);
  if (!opened.ok()) return end_start(opened.status());
  RunDirectoryStore& store = *opened->store;
  const auto made = RunViews::Open(flags.given.run_dir, *opened, standbys, CertificatesOf(flags));
  if (!made.ok()) return end_start(made.status());
  RunViews& views = **made;
  ThreadPool merge_pool(ThreadsFor(0).value());
  if (!merge_pool.started().ok()) return end_start(merge_pool.started());
  lead.events.Begin(&views.events());
  const absl::Cleanup end_of_events = [&] { lead.events.Begin(NullEventLog()); };
  if (opened->replicated) {
    if (opened->resumes) standbys.Begin(store.Position().commits());
    store.set_before_telling([&](int64_t commits) { return standbys.WaitUntilHeld(commits); });
  }

  Coordinator::Options options;
  options.run_id = opened->run_id;
  options.clock = Clock::Real();
  options.store = &store;
  options.events = &views.events();
  options.observers = views.observers();
  options.merge_pool = &merge_pool;
  options.snapshot_every_rounds = absl::GetFlag(FLAGS_snapshot_every_rounds);
  ParentLink* const parent = opened->region.get();
  if (parent != nullptr) options.region = parent->ForCoordinator();
  const auto run = MakeServedRun(file_system, flags, *opened, options);
  if (!run.ok()) return end_start(run.status());

  StandbyService* standby = nullptr;
  CoordinatorServer::Options& server_options = flags.server;
  server_options.events = &views.events();
  server_options.past_events = [&](int64_t after) { return views.events().List(after); };
  server_options.make_service = [&](Access& access) {
    auto service = std::make_unique<StandbyService>(store, standbys, access, views.events());
    standby = service.get();
    return service;
  };
  if (opened->replicated) server_options.may_tell = [&] { return standbys.MayTell(); };
  const auto server = CoordinatorServer::Start(server_options, **run);
  if (!server.ok()) {
    if (!opened->resumes && !opened->awaits_model) {
      // The folder is free again for a run that can be reached.
      const absl::Status removed = store.AbandonRun();
      if (!removed.ok()) Log().warn("{}", std::string(removed.message()));
    }
    return end_start(server.status());
  }
  if (server_options.authority_folder.empty()) RemoveOperator(file_system, flags.given.run_dir);
  SetCongestionControlOfListeners((*server)->port(), flags.congestion_control);
  Log().info("congestion control: {}", DescribeCongestionControl(flags.congestion_control));
  const std::string& listen = server_options.address;
  const std::string bound =
      absl::StrCat(listen.substr(0, listen.rfind(':')), ":", (*server)->port());
  RecordStart(views.events(), **run, bound);
  if (lead.waiting != nullptr) flags.http_port = lead.waiting->Release();
  absl::Status status = views.Serve(std::move(flags.http_port), **run, **server);
  const std::string address_file = absl::GetFlag(FLAGS_address_file);
  if (status.ok() && !address_file.empty()) {
    status = WriteFileAtomically(file_system, address_file, absl::string_view(bound));
  }
  if (status.ok() && parent != nullptr)
    status = parent->Start(*(*run)->coordinator(), &views.events());
  if (status.ok()) status = ServeUntilStopped(**run, views, standbys, stop_signal);

  views.NoteStopping();
  if (parent != nullptr) {
    // Closes what its last sites have left, which goes up, and tells the parent that this region is
    // done, if it is.
    (*run)->coordinator()->Tick();
    parent->Stop(kParentPatience);
  }
  standbys.Stop();
  const absl::Status shut_down = (*run)->Shutdown();
  standby->Stop();
  (*server)->Stop(kStopDeadline);
  lead.leading = nullptr;  // Another one may lead.
  if (status.ok()) status = shut_down;
  views.Close(status);
  if (!status.ok()) return Fail(kProgram, status);
  Log().info("the run's state, rounds, summary and report.html are in {}", flags.given.run_dir);
  return 0;
}

int Serve() {
  StopSignal stop_signal;  // First, so that every thread inherits the mask.
  if (!stop_signal.started().ok()) return Fail(kProgram, stop_signal.started());
  absl::StatusOr<ServeFlags> flags = CheckServeFlags(*FileSystem::Real());
  if (!flags.ok()) return EndStart(flags.status());
  StandbyNotes notes;
  Lead lead;
  if (flags->shared.has_value()) {
    flags->shared->events = &lead.events;
    flags->shared->notes = &notes;
    notes.Doing("asks etcd who leads");
    auto http = ServeStandbyHttp(std::exchange(flags->http_port, std::nullopt), notes,
                                 flags->given.run_dir, CertificatesOf(*flags));
    if (!http.ok()) return EndStart(http.status());
    lead.waiting = *std::move(http);
    bool refused = false;
    bool stopped = false;
    auto led = Leading::StandBy(
        *flags->shared, lead.standbys,
        [&](absl::Duration timeout) { return stopped = stop_signal.Wait(timeout); }, refused);
    if (stopped && absl::IsCancelled(led.status())) return 0;
    if (!led.ok()) return refused ? EndStart(led.status()) : Fail(kProgram, led.status());
    lead.leading = *std::move(led);
  }
  return ServeRun(*std::move(flags), lead, stop_signal);
}

int Follow() {
  StopSignal stop_signal;
  if (!stop_signal.started().ok()) return Fail(kProgram, stop_signal.started());
  bool refused = false;
  const absl::Status status = FollowCommand(
      Security(), [&](absl::Duration timeout) { return stop_signal.Wait(timeout); }, refused);
  if (status.ok()) return 0;
  return refused ? EndStart(status) : Fail(kProgram, status);
}

int Main(int argc, char** argv) {
  // gRPC's own log would stand beside our one line when an address cannot be listened on.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  NameMappedFaults();
  TuneForStreams();
  // A fragment's arrays leave the process when they rest. Buffers of streams are smaller, and stay.
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  const std::string command =
      ParseCommandLine(argc, argv, kCoordinatorProgram, kSoftwareVersion).front();
  const absl::Status log = InitializeLog(kProgram, absl::GetFlag(FLAGS_log_level));
  if (!log.ok()) return Refuse(kProgram, log);
  if (command == "serve") return Serve();
  if (command == "check-config") return CheckConfig();
  if (command == "follow") return Follow();
  const std::string run_dir = absl::GetFlag(FLAGS_run_dir);
  if (run_dir.empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("give the run's folder: --run_dir=FOLDER"));
  }
  const absl::Status status =
      command == "inspect" ? InspectCommand(run_dir) : ReplayCommand(run_dir);
  return status.ok() ? 0 : Fail(kProgram, status);
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) { return causeway::server::Main(argc, argv); }
