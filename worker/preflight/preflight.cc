#include "worker/preflight/preflight.h"

#include <algorithm>

#include "causeway/v1/probe.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"
#include "common/rpc/tcp_stream.h"
#include "common/rpc/tls_handshake.h"
#include "common/transfer/wire.h"
#include "worker/backend/cpu/bench.h"
#include "worker/preflight/checks.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kGreetingTimeout = absl::Seconds(3);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr int kEchoCalls = 11;
// Another site may be measuring its link: that takes some ten seconds at most.
constexpr int kRateAttempts = 4;
constexpr absl::Duration kRatePause = absl::Seconds(3);
constexpr uint64_t kLargestCheckpointRead = uint64_t{4} << 30;

class Preflight {
 public:
  Preflight(const PreflightOptions& options, FileSystem& file_system, const Clock& clock,
            const PreflightOutput& output)
      : options_(options), file_system_(file_system), clock_(clock), output_(output) {}

  std::vector<CheckResult> Run() {
    CheckReach();
    CheckCoordinator();
    CheckLink();
    CheckSite();
    CheckForecast();
    return std::move(results_);
  }

 private:
  // False if it failed.
  bool Report(CheckResult result) {
    if (output_.progress) output_.progress("");
    if (output_.result) output_.result(result);
    const bool passed = result.status != CheckStatus::kFailed;
    results_.push_back(std::move(result));
    return passed;
  }
  void Skip(std::initializer_list<const char*> names, absl::string_view reason) {
    for (const char* name : names) Report(Skipped(name, reason));
  }
  void Progress(const std::string& text) {
    if (output_.progress) output_.progress(text);
  }

  // Sets security_ if the coordinator can be called.
  void CheckReach() {
    const std::string& address = options_.coordinator;
    const absl::Duration before = clock_.Monotonic();
    Progress("looking the name up");
    const absl::StatusOr<std::vector<TcpAddress>> peers = ResolveAddress(address);
    const absl::StatusOr<HostPort> host_port = SplitHostPort(address, /*allow_any_port=*/false);
    const std::string host = host_port.ok() ? host_port->host : "";
    const ProxySetting proxy = FindProxy(
        host, peers.ok() ? std::span(*peers) : std::span<const TcpAddress>(), ReadEnvironment);
    if (!Report(JudgeNames(address, peers, clock_.Monotonic() - before, proxy))) {
      Skip({"tcp", "protocol"}, "needs an address");
      return;
    }
    const absl::StatusOr<std::vector<TcpAddress>> ends = OtherEndsOf(address);
    if (ends.ok()) peers_ = *ends;
    Progress("connecting");
    std::vector<ConnectAttempt> attempts;
    if (!proxy.used) attempts = ConnectToAll(peers_, kConnectTimeout);
    CheckResult tcp =
        proxy.used ? JudgeProxy(address, proxy,
                                DialThrough(proxy, address, absl::Now() + kConnectTimeout).status())
                   : JudgeConnections(attempts);
    if (tcp.status == CheckStatus::kFailed && !proxy.hint.empty()) {
      absl::StrAppend(&tcp.remedy, ". ", proxy.hint);
    }
    if (!Report(std::move(tcp))) {
      Skip({"protocol"}, "needs a connection");
      return;
    }
    if (proxy.used && !options_.security.UsesTls()) {
      Skip({"protocol"}, "goes through a proxy: the calls will tell");
    } else if (!CheckProtocol(attempts)) {
      return;
    }
    absl::StatusOr<ChannelSecurity> security =
        MakeChannelSecurity(options_.security, address, clock_.Now());
    if (!security.ok()) {
      Report(Failed("credentials", security.status().message(), "see SECURITY.md"));
      return;
    }
    security_ = *std::move(security);
  }

  bool CheckProtocol(const std::vector<ConnectAttempt>& attempts) {
    const std::string& address = options_.coordinator;
    Progress("waiting for a greeting");
    if (!options_.security.UsesTls()) {
      const auto connected = std::ranges::find_if(
          attempts, [](const ConnectAttempt& attempt) { return attempt.status.ok(); });
      const Greeting greeting = Greet(connected->address, kGreetingTimeout);
      const bool tls = greeting != Greeting::kHttp2 && greeting != Greeting::kHttp1 &&
                       SpeaksTls(address, kGreetingTimeout);
      return Report(JudgeGreeting(address, greeting, tls));
    }
    const absl::StatusOr<TlsHandshake> handshake =
        TryTlsHandshake(address, options_.security, kCallTimeout);
    if (!Report(JudgeHandshake(handshake))) {
      Skip({"certificates"}, "needs a handshake");
      return false;
    }
    std::optional<Certificate> own;
    if (!options_.security.cert_file.empty()) {
      absl::StatusOr<Certificate> read = ReadCertificate(options_.security.cert_file);
      if (read.ok()) own = *std::move(read);
    }
    Report(JudgeCertificates(handshake->server, own, options_.security.cert_file, clock_.Now(),
                             options_.security.renewal));
    return true;
  }

  // Sets samples_ if it answers, and run_ if this build understands it.
  void CheckCoordinator() {
    if (!security_.has_value()) {
      Skip({"coordinator", "identity", "version", "configuration", "clock", "round trip"},
           "needs a coordinator that can be reached");
      return;
    }
    for (int i = 0; i < options_.connections; ++i) {
      channels_.push_back(MakeChannel(options_.coordinator, i, *security_));
    }
    Progress("calling the coordinator");
    const std::unique_ptr<v1::Probe::Stub> probe = v1::Probe::NewStub(channels_[0]);
    absl::StatusOr<std::vector<EchoSample>> samples =
        MeasureEcho(*probe, options_.worker_id, kEchoCalls, kCallTimeout);
    if (!Report(JudgeAnswer(options_.coordinator, samples.status()))) {
      Skip({"identity", "version", "configuration", "clock", "round trip"},
           "needs the coordinator's answer");
      return;
    }
    samples_ = *std::move(samples);
    Report(JudgeIdentity(echo(), options_.worker_id));
    if (Report(JudgeVersion(echo()))) {
      Report(JudgeConfiguration(Describe(), run_));
    } else {
      Skip({"configuration"}, "needs the same wire version");
    }
    Report(JudgeClock(samples_));
    tcp_rtt_ = Summarize(ConnectionsTo(peers_)).min_rtt;
    Report(JudgeRoundTrip(samples_, tcp_rtt_));
  }

  absl::StatusOr<v1::DescribeResponse> Describe() {
    v1::DescribeRequest request;
    request.set_wire_version(kWireVersion);
    request.set_software_version(kSoftwareVersion);
    v1::DescribeResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
    const absl::Status status =
        FromGrpcStatus(v1::Session::NewStub(channels_[0])->Describe(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  void CheckLink() {
    if (samples_.empty()) {
      Skip({"rate up", "rate down", "buffers", "congestion"}, "needs the coordinator's answer");
      return;
    }
    if (options_.probe_time == absl::ZeroDuration()) {
      Skip({"rate up", "rate down", "buffers"}, "--probe_seconds is 0");
    } else {
      up_ = Measure(Direction::kUp);
      down_ = Measure(Direction::kDown);
      if (up_.has_value() && down_.has_value()) {
        Report(JudgeBuffers(ReadSocketBuffers(file_system_), echo(), *up_, *down_, Rtt()));
      } else {
        Skip({"buffers"}, "needs both rates");
      }
    }
    std::string here = up_.has_value() ? up_->congestion_control : "";
    if (here.empty()) {
      SetCongestionControl(peers_, options_.congestion_control);
      here = Summarize(ConnectionsTo(peers_)).congestion_control;
    }
    Report(JudgeCongestionControl(here, echo().congestion_control(), CanUseCongestionControl("bbr"),
                                  Rtt()));
  }

  std::optional<LinkRate> Measure(Direction direction) {
    const char* const what =
        direction == Direction::kUp ? "measuring the rate up: " : "measuring the rate down: ";
    RateOptions rate_options;
    rate_options.channels = channels_;
    rate_options.peers = peers_;
    rate_options.congestion_control = options_.congestion_control;
    rate_options.time = options_.probe_time;
    rate_options.progress = [&](absl::Duration, double rate) {
      Progress(absl::StrCat(what, FormatRate(rate)));
    };
    absl::StatusOr<LinkRate> rate = MeasureRate(direction, rate_options);
    for (int i = 1; i < kRateAttempts && absl::IsResourceExhausted(rate.status()); ++i) {
      Progress(absl::StrCat(what, rate.status().message()));
      absl::SleepFor(kRatePause);
      rate = MeasureRate(direction, rate_options);
    }
    Report(JudgeRate(direction, rate));
    if (!rate.ok()) return std::nullopt;
    if (rate->min_rtt > absl::ZeroDuration()) tcp_rtt_ = rate->min_rtt;
    return *std::move(rate);
  }

  void CheckSite() {
    const UnderstoodRun* const run = run_.has_value() ? &*run_ : nullptr;
    if (options_.output.empty()) {
      Skip({"disk"}, "no --out was given");
    } else {
      Progress("writing to the disk");
      Report(JudgeDisk(options_.output, MeasureDisk(file_system_, clock_, options_.output),
                       run == nullptr ? 0 : CheckpointBytes(*run)));
      CheckCheckpoint();
    }
    if (run == nullptr) {
      Skip({"memory"}, "needs the run's configuration");
    } else {
      Report(JudgeMemory(MemoryBytes(*run), AvailableMemory(file_system_)));
    }
    Progress("multiplying matrices");
    devices_ = FindDevices(file_system_, options_.threads);
    devices_.matrix_flops_per_second = MeasureMatrixRate(devices_.threads);
    Report(JudgeDevices(devices_));
    if (options_.data.empty()) {
      Skip({"data"}, "no --data was given");
    } else {
      Progress("reading the data");
      Report(JudgeData(Dataset::Open(file_system_, options_.data), run,
                       samples_.empty() ? 0 : echo().data_fingerprint(), options_.own_data));
    }
  }

  void CheckCheckpoint() {
    const std::string path = JoinPath(options_.output, "checkpoint");
    if (samples_.empty() || !file_system_.Exists(path)) return;
    const absl::StatusOr<uint64_t> size = file_system_.FileSize(path);
    if (!size.ok() || *size > kLargestCheckpointRead) {
      return Skip({"checkpoint"}, "there is one, too large to be read for this");
    }
    Progress("reading the checkpoint");
    Report(JudgeCheckpoint(path, ReadWorkerCheckpoint(file_system_, path), echo().run_id(),
                           options_.worker_id));
  }

  void CheckForecast() {
    if (!run_.has_value() || !up_.has_value() || !down_.has_value()) {
      Skip({"link"}, "needs the run's configuration and both rates");
      return;
    }
    const absl::StatusOr<LinkNeed> need = LinkNeedOf(run_->config, run_->plan);
    if (!need.ok()) {
      Report(Failed("link", need.status().message(), "install the coordinator's release here"));
      return;
    }
    const bool guessed = options_.step_time == absl::ZeroDuration();
    const absl::Duration step = guessed ? GuessStepTime(*run_, devices_) : options_.step_time;
    Report(
        JudgeForecast(Forecast(*need, up_->bytes_per_second, down_->bytes_per_second, Rtt(), step),
                      step, guessed));
  }

  const v1::EchoResponse& echo() const { return samples_.front().response; }
  absl::Duration Rtt() const {
    return tcp_rtt_ > absl::ZeroDuration() ? tcp_rtt_ : samples_.back().round_trip;
  }

  const PreflightOptions& options_;
  FileSystem& file_system_;
  const Clock& clock_;
  const PreflightOutput& output_;
  std::vector<CheckResult> results_;
  std::vector<TcpAddress> peers_;
  std::optional<ChannelSecurity> security_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<EchoSample> samples_;
  absl::Duration tcp_rtt_;
  std::optional<UnderstoodRun> run_;
  std::optional<LinkRate> up_;
  std::optional<LinkRate> down_;
  DeviceFacts devices_;
};

}  // namespace

std::vector<CheckResult> RunPreflight(const PreflightOptions& options, FileSystem& file_system,
                                      const Clock& clock, const PreflightOutput& output) {
  return Preflight(options, file_system, clock, output).Run();
}

}  // namespace causeway::worker
