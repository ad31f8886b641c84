#include "server/service/coordinator_server.h"

#include <sys/resource.h>

#include "common/base/random.h"
#include "common/base/text.h"

namespace causeway::server {
namespace {

// Merges of different fragments run side by side; a merge itself is bound by memory.
constexpr int kMergeThreads = 4;
constexpr int kCopyThreads = 4;
constexpr int kWordThreads = 4;
// Intervals of the coordinator's ticks, and of transfers', which keep their rate more evenly.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kTransferTick = absl::Milliseconds(20);
constexpr absl::Duration kMaintenance = absl::Seconds(2);
// Open files of the store, logs and libraries, and of an operator beside a crowd of connections.
constexpr int kOwnFiles = 256;
constexpr int kLeastOpenFiles = 1024;  // Every system permits so many.
constexpr int kDefaultConnections = 4096;
// Bulk transfers, a session, and those of a former process that are not over yet.
constexpr int kConnectionsOfWorker = 40;
constexpr int kOthers = 32;  // Preflights, operators, observers.
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

// Bytes of the largest fragment in that codec.
int64_t LargestObject(const FragmentPlan& plan, v1::Codec codec_id) {
  int64_t values = 0;
  for (int i = 0; i < plan.fragments(); ++i) values = std::max(values, plan.range(i).size());
  const auto codec = FindCodec(codec_id);
  return codec.ok() ? static_cast<int64_t>((*codec)->EncodedBytes(static_cast<size_t>(values))) : 0;
}

// Most bytes that one worker's pulls may hold: the state and the answers that it needs now, and as
// much again for broken streams that the coordinator has not noticed.
int64_t PulledByAWorker(const FragmentPlan& plan) {
  constexpr int64_t kModels = 4;
  return kModels * plan.arena_size() * int64_t{sizeof(float)};
}

// Counts what the deltas and answers of rounds that end at about the same time leave behind.
int64_t LeftByRounds(const v1::RunConfig& config, const FragmentPlan& plan) {
  constexpr int kMostRounds = 8;
  return std::min(plan.fragments(), kMostRounds) *
         (config.membership().max_workers() * LargestObject(plan, config.sync().codec_up()) +
          LargestObject(plan, config.sync().codec_down()));
}

// Fills in the default.
absl::Status SettleMemory(const v1::RunConfig& config, const FragmentPlan& plan, int64_t& bytes) {
  const int64_t model_bytes = plan.arena_size() * int64_t{sizeof(float)};
  // Repeated pushes and packed chunks beside those of all members.
  const int64_t models = config.membership().max_workers() + 2;
  // gRPC's share cannot grow when a model comes: the most that it may be.
  const int64_t more = plan.fragments() > 0 ? int64_t{1} << 30 : int64_t{1} << 32;
  if (bytes == 0) bytes = model_bytes * models + more;
  const int64_t largest = LargestObject(plan, config.sync().codec_up());
  const int64_t pushes = MemoryShares(bytes).pushes;
  if (bytes > 0 && pushes >= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memory for transfers is ", bytes, " bytes, of which ", pushes,
                   " are for objects that are being received; the largest one has ", largest,
                   " bytes: allow more"));
}

// The number of files that this process may open, once it may open as many as it can.
int RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeastOpenFiles;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

absl::StatusOr<ConnectionGate::Limits> ConnectionLimitsOf(const CoordinatorServer::Options& options,
                                                          const v1::RunConfig& config) {
  const int total = options.max_connections;
  const int of_one = options.max_connections_per_address;
  if (total < 0 || of_one < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_connections and --max_connections_per_address must not be negative; ",
                     "they are ", total, " and ", of_one));
  }
  const int files = RaiseOpenFileLimit();
  const int room = files - kOwnFiles;
  if (room < std::max(total, 1)) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::max(total, 1), " connections and the store need ",
                     std::max(total, 1) + kOwnFiles, " open files, and this process may open ",
                     files, ": raise the limit (ulimit -Hn, LimitNOFILE)",
                     total > 0 ? ", or lower --max_connections" : ""));
  }
  const int all = kConnectionsOfWorker * config.membership().max_workers() + kOthers;
  ConnectionGate::Limits limits;
  limits.total = total > 0 ? total : std::min(std::max(kDefaultConnections, all), room);
  limits.per_network =
      of_one > 0 ? of_one : std::min(limits.total, std::max(limits.total / 4, all));
  limits.for_members = limits.total / 4;
  return limits;
}

absl::StatusOr<std::unique_ptr<OwnAuthority>> OpenAuthority(
    const CoordinatorServer::Options& options, ServedRun& run) {
  if (options.security.UsesTls() || options.security.insecure) {
    return absl::InvalidArgumentError(
        "--tls=own beside --tls_ca, --tls_cert, --tls_key or --insecure: give one or the other");
  }
  Coordinator* const coordinator = run.coordinator();
  return OwnAuthority::Open(
      {.folder = options.authority_folder,
       .given = options.given_authority,
       .run_name = run.config().run_name(),
       .is_recorded =
           coordinator != nullptr && coordinator->orders().Invitations().invitations_size() > 0,
       .clock = options.clock,
       .events = options.events});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const Options& options, Coordinator& coordinator) {
  auto run = std::make_unique<ServedRun>(coordinator);
  ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorServer> server, Start(options, *run));
  server->own_run_ = std::move(run);
  return server;
}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(const Options& wanted,
                                                                            ServedRun& run) {
  Options options = wanted;
  const std::string& address = options.address;
  RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/true));
  if (!(options.max_requests_per_second >= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_requests_per_second must be 1 or more; it is ", options.max_requests_per_second));
  }
  if (options.connections.age < absl::Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_connection_age must be 1s or more; it is ",
                     absl::FormatDuration(options.connections.age)));
  }
  const FragmentPlan unknown;
  const FragmentPlan& plan = run.coordinator() != nullptr ? run.coordinator()->plan() : unknown;
  RETURN_IF_ERROR(SettleMemory(run.config(), plan, options.memory_bytes));
  options.connections.memory_bytes = MemoryShares(options.memory_bytes).grpc;
  std::unique_ptr<OwnAuthority> authority;
  if (!options.authority_folder.empty()) {
    ASSIGN_OR_RETURN(authority, OpenAuthority(options, run));
    const SecurityOptions files = authority->Files();
    options.security.ca_file = files.ca_file;
    options.security.cert_file = files.cert_file;
    options.security.key_file = files.key_file;
    options.security.renewal = files.renewal;
  }
  ASSIGN_OR_RETURN(const ServerSecurity security,
                   MakeServerSecurity(options.security, address, options.clock->Now()));
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  if (security.certificate.has_value()) {
    Log().info("TLS as {} until {}; workers have {}", security.certificate->subject,
               UtcMinute(security.certificate->not_after),
               options.security.token_file.empty() ? "certificates"
               : options.security.ca_file.empty()  ? "tokens"
                                                   : "certificates or tokens");
  }
  Access::Options access;
  access.authenticate = security.encrypted;
  access.run_name = run.config().run_name();
  access.may_tell = options.may_tell;
  access.requests_per_second = options.max_requests_per_second;
  access.clock = options.clock;
  access.events = options.events;
  if (!options.security.token_file.empty()) {
    ASSIGN_OR_RETURN(access.tokens, TokenTable::Open(options.security.token_file, options.clock));
  }
  if (!options.refused_identities.empty()) {
    if (!security.encrypted) {
      return absl::InvalidArgumentError(
          "--refused_identities without TLS: nobody is told apart; give --tls_cert and --tls_key");
    }
    ASSIGN_OR_RETURN(access.refused,
                     RefusedIdentities::Open(options.refused_identities, options.clock));
  }
  ASSIGN_OR_RETURN(const ConnectionGate::Limits limits, ConnectionLimitsOf(options, run.config()));
  std::unique_ptr<CoordinatorServer> result(new CoordinatorServer(
      options, wanted.memory_bytes, std::move(access), std::move(authority), limits, run));
  if (run.coordinator() != nullptr) result->StartTransfers(*run.coordinator());
  ASSIGN_OR_RETURN(result->listener_,
                   ConnectionListener::Listen(address, result->gate_, *Clock::Real()));
  grpc::ServerBuilder builder;
  ConfigureServer(builder, options.connections);
  result->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      security.credentials);
  {
    absl::MutexLock lock(&result->certificates_mutex_);
    result->certificates_ = security.files;
  }
  result->LookAtCertificates();  // Who was invited before the start is trusted from it on.
  builder.RegisterService(&result->session_);
  builder.RegisterService(&result->exchange_);
  builder.RegisterService(result->admin_.get());
  builder.RegisterService(result->enrollment_.get());
  builder.RegisterService(result->probe_.get());
  if (options.make_service != nullptr) result->more_ = options.make_service(result->access_);
  if (result->more_ != nullptr) builder.RegisterService(result->more_.get());
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr) return absl::InternalError("gRPC does not start a server");
  RETURN_IF_ERROR(
      result->listener_->Start([acceptor = result->acceptor_.get()](int listener, int descriptor) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = listener;
        connection.fd = descriptor;
        acceptor->HandleNewConnection(&connection);
      }));
  if (result->authority_ != nullptr && !options.operator_folder.empty()) {
    RETURN_IF_ERROR(result->authority_->WriteOperator(options.operator_folder,
                                                      AddressFromHere(address, result->port())));
  }
  RETURN_IF_ERROR(result->ticker_.Start(kTransferTick, [server = result.get()] {
    server->Tick();
    return kTransferTick;
  }));
  RETURN_IF_ERROR(result->maintainer_.Start(kMaintenance, [server = result.get()] {
    return server->Maintain() ? absl::ZeroDuration() : kMaintenance;
  }));
  return result;
}

CoordinatorServer::CoordinatorServer(const Options& options, int64_t given_memory_bytes,
                                     Access::Options access,
                                     std::unique_ptr<OwnAuthority> authority,
                                     const ConnectionGate::Limits& limits, ServedRun& run)
    : run_(run),
      stall_(options.stall),
      given_memory_bytes_(given_memory_bytes),
      gate_(limits),
      access_(Noting(std::move(access))),
      push_memory_(MemoryShares(options.memory_bytes).pushes),
      pull_cache_(MemoryShares(options.memory_bytes).pull_cache),
      merges_(kMergeThreads),
      copies_(kCopyThreads),
      words_(kWordThreads),
      session_(run, access_,
               {.run_words = words_.runner(),
                .join_timeout = options.join_timeout,
                .run_long = merges_.runner(),
                .stall = options.stall,
                .check_room =
                    [this](const FragmentPlan& plan) {
                      int64_t bytes = given_memory_bytes_;
                      return SettleMemory(run_.config(), plan, bytes);
                    },
                .ready = [this](Coordinator& coordinator) { StartTransfers(coordinator); }}),
      exchange_(access_,
                [this]() -> absl::StatusOr<LaneRegistry*> {
                  RETURN_IF_ERROR(run_.Begun().status());
                  return &transfers()->lanes;
                }),
      admin_(MakeAdminService(run, access_, links_, options.past_events)),
      authority_(std::move(authority)),
      enrollment_(MakeEnrollmentService(
          access_, authority_.get(),
          {.trust = [this] { LookAtCertificates(); },
           .addresses =
               [this, address = options.address, advertised = options.advertised] {
                 return advertised.empty() ? ReachableAddresses(address, port()) : advertised;
               }})),
      probe_gate_(*Clock::Real()),
      probe_(MakeProbeService(run, access_, probe_gate_)),
      expiry_(options.security.cert_file, *options.clock, options.security.renewal),
      revocations_(options.security.crl_folder, *options.clock),
      events_(options.events) {}

CoordinatorServer::~CoordinatorServer() { Stop(kDefaultStop); }

Access::Options CoordinatorServer::Noting(Access::Options options) {
  options.on_admitted = [this](const Peer& peer) {
    const absl::StatusOr<TcpAddress> address = ParseGrpcPeer(peer.address);
    if (!address.ok()) return;
    gate_.Know(*address);
    listener_->Know(*address);
  };
  options.on_worker = [this](const Peer& peer, Action action, absl::string_view worker_id) {
    if (action != Action::kProbe) links_.Note(worker_id, peer.address);
  };
  return options;
}

void CoordinatorServer::StartTransfers(Coordinator& coordinator) {
  const FragmentPlan& plan = coordinator.plan();
  int64_t bytes = given_memory_bytes_;
  if (SettleMemory(coordinator.config(), plan, bytes).ok()) {
    push_memory_.GrowTo(MemoryShares(bytes).pushes);
    pull_cache_.GrowTo(MemoryShares(bytes).pull_cache);
  }
  KeepFreedBlocks(static_cast<size_t>(LeftByRounds(coordinator.config(), plan)));
  auto inbox =
      std::make_shared<DeltaInbox>(coordinator, DeltaInbox::Options{.memory = &push_memory_,
                                                                    .run_long = merges_.runner(),
                                                                    .clock = Clock::Real(),
                                                                    .stall = stall_,
                                                                    .process = RandomNonce()});
  auto outbox = std::make_shared<AnswerOutbox>(
      coordinator, AnswerOutbox::Options{.cache = &pull_cache_,
                                         .run_long = copies_.runner(),
                                         .max_bytes_of_worker = PulledByAWorker(plan)});
  LaneRegistry::Options lanes{
      .run_long = copies_.runner(), .clock = Clock::Real(), .stall = stall_};
  if (authority_ != nullptr) {
    Orders& orders = coordinator.orders();
    authority_->UseRecord(orders.Invitations(), [&orders](const v1::InvitationList& list) {
      return orders.KeepInvitations(list);
    });
  }
  transfers_.reset(new Transfers{inbox, outbox, {coordinator, *inbox, *outbox, std::move(lanes)}});
  ready_.store(transfers_.get(), std::memory_order_release);
}

void CoordinatorServer::Tick() {
  Transfers* const transfers = this->transfers();
  if (transfers != nullptr) transfers->lanes.Tick();
  const absl::Duration now = Clock::Real()->Monotonic();
  if (now < next_tick_) return;
  next_tick_ = now + kTick;
  if (transfers != nullptr) transfers->inbox->Tick();
  if (run_.coordinator() != nullptr) run_.coordinator()->Tick();
  session_.Tick();
  listener_->EndHostile();
}

bool CoordinatorServer::Maintain() {
  const bool more_due = run_.coordinator() != nullptr && run_.coordinator()->Maintain();
  if (authority_ != nullptr) authority_->MoveToRecord();
  session_.EndRevokedStreams();
  exchange_.EndRevokedStreams();
  const std::string reminder = expiry_.Poll();
  if (!reminder.empty()) {
    events_->Record("certificate_expiring", reminder, nlohmann::json::object());
  }
  LookAtCertificates();
  for (const RevocationWatch::Notice& notice : revocations_.Poll()) {
    events_->Record(notice.ended ? "revocation_list_ended" : "revocation_list_ending",
                    notice.message, nlohmann::json::object());
  }
  links_.Sample(port());
  BoundConnections(AcceptedOn(port()), losses_);
  return more_due;
}

void CoordinatorServer::LookAtCertificates() {
  const std::string invited = authority_ == nullptr ? "" : authority_->Invited();
  absl::MutexLock lock(&certificates_mutex_);
  if (certificates_ == nullptr) return;
  std::optional<CertificateNotice> news = certificates_->Look();
  if (const absl::Status trusted = certificates_->AlsoTrust(invited); !trusted.ok()) {
    news = {.fit = false, .message = std::string(trusted.message())};
  }
  if (news.has_value()) {
    events_->Record(news->fit ? "certificate_reloaded" : "certificate_unfit", news->message,
                    nlohmann::json::object());
  }
}

v1::RunStatus CoordinatorServer::GetStatus() const {
  v1::RunStatus status = run_.GetStatus();
  links_.AddTo(status);
  return status;
}

void CoordinatorServer::AddTo(MetricPage& page) const {
  const std::string held = "causeway_transfer_memory_bytes";
  const std::string held_help = "Memory of transfers: deltas up, packed chunks of answers down.";
  const std::string limit = "causeway_transfer_memory_limit_bytes";
  const std::string limit_help = "Memory that they may hold (--memory_mb).";
  const std::string queue = "causeway_queue_length";
  const std::string queue_help = "Tasks that wait for a thread: merge, copy.";
  const Transfers* const transfers = this->transfers();  // Null: none has begun.
  const DeltaInbox::Counters inbox =
      transfers != nullptr ? transfers->inbox->counters() : DeltaInbox::Counters();
  page.Gauge(held, held_help, push_memory_.taken(), {{"direction", "up"}});
  page.Gauge(held, held_help, pull_cache_.taken(), {{"direction", "down"}});
  page.Gauge(limit, limit_help, push_memory_.bytes(), {{"direction", "up"}});
  page.Gauge(limit, limit_help, pull_cache_.bytes(), {{"direction", "down"}});
  page.Gauge(queue, queue_help, merges_.length(), {{"queue", "merge"}});
  page.Gauge(queue, queue_help, copies_.length(), {{"queue", "copy"}});
  page.Gauge("causeway_pushes", "Deltas that are being received.", inbox.deltas);
  page.Gauge("causeway_lanes", "Streams of deltas and answers.",
             transfers != nullptr ? transfers->lanes.lanes() : 0);
  page.Counter("causeway_pushes_evicted_total",
               "Deltas nobody was sending, dropped for want of memory.", inbox.evicted);
}

void CoordinatorServer::Stop(absl::Duration deadline) {
  ticker_.Stop();
  maintainer_.Stop();
  if (listener_ != nullptr) listener_->Stop();
  if (server_ == nullptr) return;
  const absl::Time end = absl::Now() + deadline;
  if (Transfers* const transfers = this->transfers(); transfers != nullptr) {
    LaneRegistry& lanes = transfers->lanes;
    for (; lanes.sends() && absl::Now() < end; absl::SleepFor(kTransferTick)) lanes.Tick();
    // They would stay open for as long as their connections.
    lanes.EndAll(absl::UnavailableError("the coordinator stops"));
  }
  server_->Shutdown(absl::ToChronoTime(end));
  server_->Wait();
  // Their tasks use the tables.
  merges_.Stop();
  copies_.Stop();
  words_.Stop();
}

}  // namespace causeway::server
