#include "server/service/coordinator_server.h"

#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/byte_buffer.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// Merges of different fragments run side by side; a merge itself is bound by memory.
constexpr int kMergeThreads = 4;
constexpr int kCopyThreads = 4;
// Of the coordinator; and of transfers, whose rate is kept the more evenly.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kTransferTick = absl::Milliseconds(20);
constexpr absl::Duration kMaintenance = absl::Seconds(2);
constexpr rlim_t kWantedOpenFiles = 4096;
constexpr absl::Duration kDefaultStop = absl::Seconds(1);

// How Options::memory_bytes is shared.
struct MemoryShares {
  explicit MemoryShares(int64_t bytes)
      : grpc(std::min(int64_t{1} << 30, bytes / 4)),
        pull_cache((bytes - grpc) / 8),
        pushes(bytes - grpc - pull_cache) {}
  int64_t grpc;
  int64_t pull_cache;
  int64_t pushes;
};

// Of one fragment in that codec.
int64_t LargestObject(const Coordinator& coordinator, v1::Codec codec_id) {
  const FragmentPlan& plan = coordinator.plan();
  int64_t values = 0;
  for (int i = 0; i < plan.fragments(); ++i) values = std::max(values, plan.range(i).size());
  const auto codec = FindCodec(codec_id);
  return codec.ok() ? static_cast<int64_t>((*codec)->EncodedBytes(static_cast<size_t>(values))) : 0;
}

int64_t LargestContribution(const Coordinator& coordinator) {
  return LargestObject(coordinator, coordinator.config().sync().codec_up());
}

// What the deltas of one round leave behind, and an answer that makes way for the next.
int64_t LeftByARound(const Coordinator& coordinator) {
  return coordinator.config().membership().max_workers() * LargestContribution(coordinator) +
         LargestObject(coordinator, coordinator.config().sync().codec_down());
}

// Fills in the default.
absl::Status SettleMemory(const Coordinator& coordinator, int64_t& bytes) {
  const int64_t model_bytes = coordinator.plan().arena_size() * int64_t{sizeof(float)};
  // Repeated pushes and packed chunks beside those of all members.
  const int64_t models = coordinator.config().membership().max_workers() + 2;
  if (bytes == 0) bytes = model_bytes * models + (int64_t{1} << 30);
  const int64_t largest = LargestContribution(coordinator);
  const int64_t pushes = MemoryShares(bytes).pushes;
  if (bytes > 0 && pushes >= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memory for transfers is ", bytes, " bytes, of which ", pushes,
                   " are for objects that are being received; the largest one has ", largest,
                   " bytes: allow more"));
}

// gRPC stops accepting connections for good once the process has no file descriptor left
// (CVE-2023-4785): have many.
void RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= kWantedOpenFiles) return;
  Log().warn(
      "this process may open {} files; with fewer than {} a crowd of connections can lock the "
      "workers out: raise the limit (ulimit -Hn, LimitNOFILE)",
      limit.rlim_cur, kWantedOpenFiles);
}

// The same, and whoever transfers for a worker is noted as a connection of it.
Access::Options Noting(WorkerLinks& links, Access::Options options) {
  options.on_worker = [&links](const Peer& peer, Action action, absl::string_view worker_id) {
    if (action != Action::kProbe) links.Note(worker_id, peer.address);
  };
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const Options& wanted, Coordinator& coordinator) {
  Options options = wanted;
  const std::string& address = options.address;
  RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/true));
  if (!(options.max_requests_per_second >= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_requests_per_second must be 1 or more; it is ", options.max_requests_per_second));
  }
  RETURN_IF_ERROR(SettleMemory(coordinator, options.memory_bytes));
  options.connections.memory_bytes = MemoryShares(options.memory_bytes).grpc;
  ASSIGN_OR_RETURN(const ServerSecurity security,
                   MakeServerSecurity(options.security, address, options.clock->Now()));
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  if (security.certificate.has_value()) {
    Log().info("TLS as {} until {}; workers have {}", security.certificate->subject,
               absl::FormatTime("%Y-%m-%d %H:%M UTC", security.certificate->not_after,
                                absl::UTCTimeZone()),
               options.security.token_file.empty() ? "certificates"
               : options.security.ca_file.empty()  ? "tokens"
                                                   : "certificates or tokens");
  }
  Access::Options access;
  access.authenticate = security.encrypted;
  access.run_name = coordinator.config().run_name();
  access.requests_per_second = options.max_requests_per_second;
  access.request_burst = 4 * options.max_requests_per_second;
  access.clock = options.clock;
  if (!options.security.token_file.empty()) {
    ASSIGN_OR_RETURN(access.tokens, TokenTable::Open(options.security.token_file));
  }
  RaiseOpenFileLimit();
  KeepFreedBlocks(static_cast<size_t>(LeftByARound(coordinator)));
  std::unique_ptr<CoordinatorServer> result(
      new CoordinatorServer(options, std::move(access), coordinator));
  grpc::ServerBuilder builder;
  ConfigureServer(builder, options.connections);
  builder.AddListeningPort(address, security.credentials, &result->port_);
  builder.RegisterService(&result->session_);
  builder.RegisterService(&result->exchange_);
  builder.RegisterService(&result->admin_);
  builder.RegisterService(&result->probe_);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     ": the host is not this machine's, or the port is taken or not allowed; "
                     "choose another one"));
  }
  result->ticker_ = std::thread([server = result.get()] { server->TickLoop(); });
  result->maintainer_ = std::thread([server = result.get()] { server->MaintainLoop(); });
  return result;
}

CoordinatorServer::CoordinatorServer(const Options& options, Access::Options access,
                                     Coordinator& coordinator)
    : coordinator_(coordinator),
      access_(Noting(links_, std::move(access))),
      push_memory_(MemoryShares(options.memory_bytes).pushes),
      pull_cache_(MemoryShares(options.memory_bytes).pull_cache),
      merges_(kMergeThreads),
      copies_(kCopyThreads),
      pushes_(coordinator, {.memory = &push_memory_,
                            .run_long = merges_.runner(),
                            .clock = Clock::Real(),
                            .stall = options.stall}),
      pulls_(
          std::make_shared<PullTable>(coordinator, PullTable::Options{.cache = &pull_cache_,
                                                                      .run_long = copies_.runner(),
                                                                      .clock = Clock::Real(),
                                                                      .stall = options.stall})),
      session_(coordinator, access_, options.join_timeout),
      exchange_(access_, pushes_, *pulls_, copies_.runner()),
      admin_(coordinator, access_, links_),
      probe_gate_(*Clock::Real()),
      probe_(coordinator, access_, probe_gate_),
      expiry_(options.security.cert_file, *options.clock) {}

CoordinatorServer::~CoordinatorServer() { Stop(kDefaultStop); }

void CoordinatorServer::TickLoop() {
  Clock& clock = *Clock::Real();
  absl::Duration next_tick = clock.Monotonic() + kTick;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTransferTick)) return;
    }
    pulls_->Tick();
    if (clock.Monotonic() < next_tick) continue;
    next_tick = clock.Monotonic() + kTick;
    pushes_.Tick();
    coordinator_.Tick();
    session_.CloseSilentStreams();
  }
}

void CoordinatorServer::MaintainLoop() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kMaintenance)) return;
    }
    coordinator_.Maintain();
    const std::string reminder = expiry_.Poll();
    if (!reminder.empty()) Log().warn("{}", reminder);
    links_.Sample(port_);
  }
}

void CoordinatorServer::Stop(absl::Duration deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  if (ticker_.joinable()) ticker_.join();
  if (maintainer_.joinable()) maintainer_.join();
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  server_->Wait();
  // What they still do is with the tables.
  merges_.Stop();
  copies_.Stop();
}

}  // namespace causeway::server
