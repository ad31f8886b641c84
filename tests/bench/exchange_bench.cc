// How fast fragments are exchanged over loopback, beside a plain TCP connection in the same run.
//
//   exchange_bench [--json] [--quick] [--sizes_mib=8,32,256] [--workers=2,4] [--connections=1,4]
//                  [--certificates=FOLDER] [--repeats=N]
//
// The coordinator's service runs in a process of its own with a run of one fragment, FP32 both
// ways; the workers' links run in this one. For each row, and N workers:
//
// `push`: one worker alone sends its delta, from the call to the acknowledgement: every checksum is
// verified, every code validated, and the round knows of it. The delta is encoded before, and its
// checksums are taken then, as in training; `encode` says what that costs. `pull`: one worker alone
// fetches the answer of a round that is published, until its copy is verified. `exchange`: all
// workers push at once and pull, until the last one has its answer; the merge is part of it. `tcp`:
// the same bytes over one blocking connection to a third process, written 1 MiB at a time and read
// into memory that has been used before, until they are acknowledged. The four take turns, so that
// whatever else the machine does falls on all alike; medians count.
//
// CPU seconds are per 10^9 bytes that crossed, of this process (here: the worker, or the sender)
// and of the other one (there).
//
// No disk is measured: the coordinator keeps nothing but what is in memory anyway. --certificates
// adds rows with TLS: a folder that deploy/make_certificates has filled for a coordinator at
// 127.0.0.1 and the workers w0, w1, ...
#include <fcntl.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/client/grpc_exchange.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"
#include "common/params/sync_schedule.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "nlohmann/json.hpp"
#include "server/service/coordinator_server.h"
#include "tests/bench/measure.h"
#include "tests/unit/common/rpc/loopback.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"
#include "worker/sync/replica.h"

ABSL_FLAG(std::vector<std::string>, sizes_mib, std::vector<std::string>({"8", "32", "256"}),
          "Sizes of the encoded fragment, in MiB");
ABSL_FLAG(std::vector<std::string>, workers, std::vector<std::string>({"2", "4"}),
          "Numbers of workers, 2 or more");
ABSL_FLAG(std::vector<std::string>, connections, std::vector<std::string>({"1", "4"}),
          "Numbers of connections of each worker");
ABSL_FLAG(std::string, certificates, "", "Folder for rows with TLS");
ABSL_FLAG(int, repeats, 5, "Timed rounds per row");
// How the other processes are told what they are.
ABSL_FLAG(std::string, role, "", "Of this process; set by the benchmark itself");
ABSL_FLAG(int64_t, size_mib, 0, "Of the fragment; set by the benchmark itself");
ABSL_FLAG(int, members, 0, "Workers of the run; set by the benchmark itself");

namespace causeway::bench {
namespace {

using nlohmann::json;

constexpr char kThisProgram[] = "/proc/self/exe";
constexpr int kStepsBetweenSyncs = 5;
constexpr size_t kPieceBytes = size_t{1} << 20;  // Of TCP's writes and reads.

// The other end of a benchmark over loopback, in a process of its own: so that its CPU time is
// known apart from this process's.
class BenchPeer {
 public:
  // Runs this program again with these arguments, which make it call ServeBenchPeer.
  static absl::StatusOr<BenchPeer> Start(const std::vector<std::string>& arguments);
  // Ends the process.
  ~BenchPeer() {
    if (process_ < 0) return;
    close(to_);
    waitpid(process_, nullptr, 0);
  }
  BenchPeer(BenchPeer&& other) noexcept
      : process_(std::exchange(other.process_, -1)),
        to_(std::exchange(other.to_, -1)),
        port_(other.port_) {}
  BenchPeer& operator=(BenchPeer&&) = delete;

  int port() const { return port_; }
  double CpuSeconds() const {
    clockid_t clock = 0;
    timespec time = {};
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  BenchPeer(pid_t process, int to) : process_(process), to_(to) {}

  pid_t process_;
  int to_;
  int port_ = 0;
};

absl::StatusOr<BenchPeer> BenchPeer::Start(const std::vector<std::string>& arguments) {
  std::array<int, 2> to = {};
  std::array<int, 2> from = {};
  if (pipe2(to.data(), O_CLOEXEC) != 0 || pipe2(from.data(), O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  std::vector<std::string> words = {kThisProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  pid_t process = -1;
  const int error =
      posix_spawn(&process, kThisProgram, &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  if (error != 0) return absl::ErrnoToStatus(error, "cannot start the other process");
  BenchPeer peer(process, to[1]);
  FILE* const said = fdopen(from[0], "r");
  const bool told = std::fscanf(said, "%d", &peer.port_) == 1;
  std::fclose(said);
  if (!told) return absl::InternalError("the other process has ended");
  return peer;
}

// In that process: says `port`. Returns when the other side is gone.
void ServeBenchPeer(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char nothing = 0;
  while (read(STDIN_FILENO, &nothing, 1) > 0) {
  }
}

// A model of one fragment with about so many values, most of them embeddings.
v1::RunConfig Config(int64_t size_mib, int workers) {
  constexpr int kWidth = 64;
  return server::CompleteSmallConfig(absl::StrCat(
      "model { heads: 1 width: ", kWidth, " mlp_width: ", kWidth, " vocabulary_size: ",
      (size_mib << 20) / 4 / kWidth - 512, " } sync { steps_between_syncs: ", kStepsBetweenSyncs,
      " } membership { lease_ms: 600000 start_workers: ", workers, " }"));
}

// Remembers nothing: what the exchange costs without a disk, or a second copy in memory.
class NoStore final : public server::MemoryStore {
 public:
  absl::Status SaveContribution(const v1::Contribution&, std::span<const uint8_t>) override {
    return absl::OkStatus();
  }
  absl::Status SaveRound(const v1::Round&, std::span<const uint8_t>) override {
    return absl::OkStatus();
  }
  absl::Status SaveSnapshot(const server::FragmentView&) override { return absl::OkStatus(); }
};

SecurityOptions Certificates(const std::string& who) {
  const std::string folder = absl::GetFlag(FLAGS_certificates);
  SecurityOptions options;
  if (folder.empty()) return options;
  options.ca_file = JoinPath(JoinPath(folder, who), "ca.pem");
  options.cert_file = JoinPath(JoinPath(folder, who), "cert.pem");
  options.key_file = JoinPath(JoinPath(folder, who), "key.pem");
  return options;
}

void RunCoordinator() {
  NoStore store;
  ThreadPool merge_pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  server::Coordinator::Options options;
  options.config = Config(absl::GetFlag(FLAGS_size_mib), absl::GetFlag(FLAGS_members));
  options.initial_values = [](int, std::span<float> values) {
    std::ranges::fill(values, 0.0F);
    return absl::OkStatus();
  };
  options.run_id = "bench-1";
  options.clock = Clock::Real();
  options.store = &store;
  options.merge_pool = &merge_pool;
  options.kept_answers = 2;
  options.max_kept_answers = 2;
  const auto coordinator = Value(server::Coordinator::Create(std::move(options)));
  server::CoordinatorServer::Options serve;
  serve.address = "127.0.0.1:0";
  serve.security = Certificates("coordinator");
  const auto server = Value(server::CoordinatorServer::Start(serve, *coordinator));
  ServeBenchPeer(server->port());
  Check(coordinator->Shutdown());
  server->Stop(absl::Seconds(1));
}

// The limit of every transfer on one machine: a blocking TCP connection that carries bytes and
// nothing else.

// Takes objects, each into the same memory, and answers each with a byte, until the connection
// ends.
void TakeObjects(const Socket& peer, size_t object_bytes) {
  ByteBuffer object(object_bytes);
  for (size_t at = 0;;) {
    const ssize_t got =
        recv(peer.descriptor(), object.data() + at, std::min(kPieceBytes, object.size() - at), 0);
    if (got <= 0) return;
    at += static_cast<size_t>(got);
    if (at < object.size()) continue;
    at = 0;
    const uint8_t answer = 1;
    if (send(peer.descriptor(), &answer, 1, MSG_NOSIGNAL) != 1) return;
  }
}

// Writes an object, and waits for the answer.
void SendObject(const Socket& socket, std::span<const uint8_t> object) {
  const absl::Status broke = absl::UnavailableError("the plain TCP connection broke");
  for (size_t at = 0; at < object.size();) {
    const ssize_t sent = send(socket.descriptor(), object.data() + at,
                              std::min(kPieceBytes, object.size() - at), MSG_NOSIGNAL);
    if (sent <= 0) return Check(broke);
    at += static_cast<size_t>(sent);
  }
  uint8_t answer = 0;
  if (recv(socket.descriptor(), &answer, 1, 0) != 1) Check(broke);
}

void RunSink() {
  const Listener listener;
  const v1::RunConfig config = Config(absl::GetFlag(FLAGS_size_mib), 2);
  const FragmentPlan plan = Value(FragmentPlan::Create(config));
  const auto bytes = static_cast<size_t>(plan.arena_size()) * sizeof(float);
  std::thread serve([&] { TakeObjects(listener.Accept(), bytes); });
  ServeBenchPeer(listener.port());
  serve.join();
}

Socket ConnectToSink(int port) {
  Socket socket = ConnectTo(Value(ResolveAddress(absl::StrCat("127.0.0.1:", port))).front());
  const int at_once = 1;
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  return socket;
}

// The fragment to exchange: a delta of small values, the same for everybody.
struct Fragment {
  explicit Fragment(int64_t size_mib)
      : config(Config(size_mib, 2)), plan(Value(FragmentPlan::Create(config))) {
    const std::vector<float> base(static_cast<size_t>(plan.arena_size()));
    std::vector<float> local(base.size());
    for (size_t i = 0; i < local.size(); ++i) {
      local[i] = 1e-4F * static_cast<float>(i % 1000) - 0.05F;
    }
    const Codec& codec = *Value(FindCodec(v1::FP32));
    object = std::make_shared<worker::EncodedObject>();
    std::vector<double> with;
    std::vector<double> without;
    for (int i = 0; i < 3; ++i) {
      object->bytes = {};
      without.push_back(Seconds([&] {
        object->bytes.resize(codec.EncodedBytes(base.size()));
        Check(codec.Encode(base, local, {}, object->bytes));
      }));
      const double hashing = Seconds([&] { object->leaves = LeafChecksums(object->bytes); });
      with.push_back(without.back() + hashing);
    }
    encode = {{"object_bytes", object->bytes.size()},
              {"gb_per_s", 1e-9 * static_cast<double>(object->bytes.size()) / Median(with)},
              {"gb_per_s_without_checksums",
               1e-9 * static_cast<double>(object->bytes.size()) / Median(without)}};
  }
  std::span<const uint8_t> bytes() const { return object->bytes; }

  const v1::RunConfig config;
  const FragmentPlan plan;
  std::shared_ptr<worker::EncodedObject> object;
  json encode;  // How fast, on one thread.
};

// One worker as far as the coordinator can tell.
class Site {
 public:
  Site(const Fragment& fragment, int number, int port, int connections)
      : fragment_(fragment), id_(absl::StrCat("w", number)) {
    const std::string address = absl::StrCat("127.0.0.1:", port);
    const ChannelSecurity security = Value(
        MakeChannelSecurity(Certificates(absl::StrCat("worker-", id_)), address, absl::Now()));
    const auto channels = std::make_shared<RenewedChannels>(address, security);
    const auto stub = v1::Session::NewStub(channels->Now());
    const v1::DescribeResponse run = Value(DescribeRun(*stub, address, absl::Seconds(30)));
    Session::Options session;
    session.channels = channels;
    session.progress.set_checkpoint_step(-1);
    session.join = server::JoinOf(run, id_, /*nonce=*/1);
    session.join.set_data_fingerprint(1);
    session_ = Value(Session::Attach(std::move(session)));
    session_->Ready(0, true);
    Link::Options link;
    link.channels = channels;
    link.connections = connections;
    link_ = std::make_unique<Link>(std::move(link));
    exchange_ = std::make_unique<GrpcExchange>(GrpcExchange::Options{.link = link_.get(),
                                                                     .session = session_.get(),
                                                                     .plan = &fragment_.plan,
                                                                     .sync = run.config().sync()});
  }
  ~Site() {
    exchange_->Cancel();
    session_->Leave(v1::Leave::FINISHED, "");
  }

  void AwaitStart() { Check(session_->WaitForGo(absl::Minutes(1)).status()); }
  void Push(int64_t round) {
    const SyncSchedule schedule(1, kStepsBetweenSyncs, 0);
    Contribution contribution;
    contribution.round = round;
    contribution.tokens = 1000;
    contribution.send_step = schedule.SendStep(0, round);
    contribution.object = fragment_.bytes();
    contribution.leaves = fragment_.object->leaves;
    contribution.owner = fragment_.object;
    Check(exchange_->Push(contribution));
  }
  void Pull(int64_t round) {
    const PulledObject answer = Value(exchange_->PullAnswer(0, round, 0));
    exchange_->ReportApplied(0, round, answer.published_hash);
  }

 private:
  const Fragment& fragment_;
  const std::string id_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<GrpcExchange> exchange_;
};

// Times and CPU seconds of one kind of work.
struct Samples {
  template <typename Work>
  void Measure(const BenchPeer& peer, const Work& work) {
    const double here = ProcessCpuSeconds();
    const double there = peer.CpuSeconds();
    seconds.push_back(Seconds(work));
    cpu_here.push_back(ProcessCpuSeconds() - here);
    cpu_there.push_back(peer.CpuSeconds() - there);
  }
  // Medians of this process and of the other one.
  json CpuPerGigabyte(double gigabytes) const {
    return {{"here", Median(cpu_here) / gigabytes}, {"there", Median(cpu_there) / gigabytes}};
  }

  std::vector<double> seconds;
  std::vector<double> cpu_here;
  std::vector<double> cpu_there;
};

json MeasureRow(const Fragment& fragment, int64_t size_mib, int workers, int connections, bool tls,
                int repeats) {
  std::vector<std::string> arguments = {"--role=coordinator", absl::StrCat("--size_mib=", size_mib),
                                        absl::StrCat("--members=", workers)};
  const std::string certificates = absl::GetFlag(FLAGS_certificates);
  if (tls) arguments.push_back("--certificates=" + certificates);
  // As if each worker were a process of its own.
  KeepFreedBlocks(static_cast<size_t>(workers) *
                  worker::ObjectBytesInFlight(fragment.plan, fragment.config.sync()));
  BenchPeer coordinator = Value(BenchPeer::Start(arguments));
  BenchPeer sink = Value(BenchPeer::Start({"--role=sink", absl::StrCat("--size_mib=", size_mib)}));
  const Socket tcp = ConnectToSink(sink.port());
  if (!tls) absl::SetFlag(&FLAGS_certificates, "");
  std::vector<std::unique_ptr<Site>> sites;
  for (int i = 0; i < workers; ++i) {
    sites.push_back(std::make_unique<Site>(fragment, i, coordinator.port(), connections));
  }
  absl::SetFlag(&FLAGS_certificates, certificates);
  for (const auto& site : sites) site->AwaitStart();

  Samples push;
  Samples pull;
  Samples exchange;
  Samples plain;
  int64_t round = 0;
  for (int i = 0; i <= repeats; ++i) {
    if (i == 1) push = pull = exchange = plain = {};  // The first time warms up.
    ++round;
    for (const auto& site : sites) {
      // The last one is acknowledged when the round is merged, and so is not measured.
      const auto work = [&] { site->Push(round); };
      if (site == sites.back()) {
        work();
      } else {
        push.Measure(coordinator, work);
      }
      plain.Measure(sink, [&] { SendObject(tcp, fragment.bytes()); });
    }
    for (const auto& site : sites) {
      pull.Measure(coordinator, [&] { site->Pull(round); });
    }
    ++round;
    exchange.Measure(coordinator, [&] {
      std::vector<std::thread> threads;
      for (const auto& site : sites) {
        threads.emplace_back([&] {
          site->Push(round);
          site->Pull(round);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
  const double gigabytes = 1e-9 * static_cast<double>(fragment.bytes().size());
  const double tcp_rate = gigabytes / Median(plain.seconds);
  const double push_rate = gigabytes / Median(push.seconds);
  const double pull_rate = gigabytes / Median(pull.seconds);
  const double both = 2 * gigabytes * workers;
  return {{"object_bytes", fragment.bytes().size()},
          {"workers", workers},
          {"connections", connections},
          {"security", tls ? "tls" : "plain"},
          {"tcp_gb_per_s", tcp_rate},
          {"tcp_cpu_s_per_gb", plain.CpuPerGigabyte(gigabytes)},
          {"push_gb_per_s", push_rate},
          {"push_of_tcp", push_rate / tcp_rate},
          {"push_cpu_s_per_gb", push.CpuPerGigabyte(gigabytes)},
          {"pull_gb_per_s", pull_rate},
          {"pull_of_tcp", pull_rate / tcp_rate},
          {"pull_cpu_s_per_gb", pull.CpuPerGigabyte(gigabytes)},
          {"exchange_s", Median(exchange.seconds)},
          {"exchange_gb_per_s", both / Median(exchange.seconds)},
          {"exchange_cpu_s_per_gb", exchange.CpuPerGigabyte(both)}};
}

absl::StatusOr<std::vector<int>> Numbers(const std::vector<std::string>& words, int least, int most,
                                         absl::string_view flag) {
  std::vector<int> numbers;
  for (const std::string& word : words) {
    int number = 0;
    if (!absl::SimpleAtoi(word, &number) || number < least || number > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " takes numbers of ", least, " .. ", most, "; got \"", word, "\""));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<json> Measure() {
  Check(InitializeLog("exchange_bench", "error"));
  const std::string role = absl::GetFlag(FLAGS_role);
  if (role == "coordinator") RunCoordinator();
  if (role == "sink") RunSink();
  if (!role.empty()) std::exit(0);
  if (absl::GetFlag(FLAGS_quick)) {
    absl::SetFlag(&FLAGS_sizes_mib, std::vector<std::string>({"2"}));
    absl::SetFlag(&FLAGS_workers, std::vector<std::string>({"2"}));
    absl::SetFlag(&FLAGS_repeats, 1);
  }
  const int repeats = absl::GetFlag(FLAGS_repeats);
  ASSIGN_OR_RETURN(const std::vector<int> sizes,
                   Numbers(absl::GetFlag(FLAGS_sizes_mib), 1, 2048, "--sizes_mib"));
  ASSIGN_OR_RETURN(const std::vector<int> workers,
                   Numbers(absl::GetFlag(FLAGS_workers), 2, 16, "--workers"));
  ASSIGN_OR_RETURN(const std::vector<int> connections,
                   Numbers(absl::GetFlag(FLAGS_connections), 1, kMaxConnections, "--connections"));
  if (repeats < 1) return absl::InvalidArgumentError("--repeats is 1 or more");
  json rows = json::array();
  json encode = json::array();
  for (const bool tls : {false, true}) {
    if (tls && absl::GetFlag(FLAGS_certificates).empty()) continue;
    for (const int size : sizes) {
      const Fragment fragment(size);
      if (!tls) encode.push_back(fragment.encode);
      for (const int count : workers) {
        for (const int lanes : connections) {
          rows.push_back(MeasureRow(fragment, size, count, lanes, tls, repeats));
        }
      }
    }
  }
  return json{{"rows", rows},
              {"encode", encode},
              {"load_average", LoadAverage()},
              {"cores", std::thread::hardware_concurrency()}};
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  causeway::TuneForStreams();
  return causeway::bench::RunBenchmark(argc, argv, "Times exchanges over loopback.",
                                       causeway::bench::Measure);
}
