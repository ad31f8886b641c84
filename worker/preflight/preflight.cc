#include "worker/preflight/preflight.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/tcp_links.h"
#include "common/rpc/tcp_stream.h"
#include "common/transfer/wire.h"
#include "worker/backend/cpu/bench.h"
#include "worker/preflight/checks.h"

namespace causeway::worker {
namespace {

// By CheckStatus: in JSON, and in a line.
constexpr std::array kStatusWords = {"ok", "warning", "failed", "skipped"};
constexpr std::array kStatusMarks = {"ok", "warn", "FAIL", "-"};

auto Count(std::span<const CheckResult> results, CheckStatus status) {
  return std::ranges::count(results, status, &CheckResult::status);
}

// Three significant digits and the prefix of the unit.
std::string WithPrefix(double value, std::span<const std::pair<double, const char*>> units) {
  const auto* unit = &units[0];
  for (const auto& candidate : units) {
    if (value >= candidate.first) unit = &candidate;
  }
  const double scaled = value / unit->first;
  return absl::StrFormat("%.*f %s",
                         scaled >= 99.95   ? 0
                         : scaled >= 9.995 ? 1
                                           : 2,
                         scaled, unit->second);
}

}  // namespace

CheckResult Passed(absl::string_view name, absl::string_view finding,
                   std::vector<Measured> values) {
  return {std::string(name), CheckStatus::kOk, std::string(finding), "", std::move(values)};
}

CheckResult Warned(absl::string_view name, absl::string_view finding, absl::string_view remedy,
                   std::vector<Measured> values) {
  return {std::string(name), CheckStatus::kWarning, std::string(finding), std::string(remedy),
          std::move(values)};
}

CheckResult Failed(absl::string_view name, absl::string_view finding, absl::string_view remedy,
                   std::vector<Measured> values) {
  return {std::string(name), CheckStatus::kFailed, std::string(finding), std::string(remedy),
          std::move(values)};
}

CheckResult PassedUnless(absl::string_view name, absl::string_view finding,
                         absl::string_view remedy, std::vector<Measured> values) {
  return remedy.empty() ? Passed(name, finding, std::move(values))
                        : Warned(name, finding, remedy, std::move(values));
}

CheckResult Skipped(absl::string_view name, absl::string_view reason) {
  return {std::string(name), CheckStatus::kSkipped, std::string(reason), ""};
}

std::string FormatCheck(const CheckResult& result) {
  std::string line =
      absl::StrFormat("%-5s %-14s %s", kStatusMarks[static_cast<size_t>(result.status)],
                      result.name, result.finding);
  if (!result.remedy.empty()) absl::StrAppendFormat(&line, "\n%21s-> %s", "", result.remedy);
  return line;
}

bool AnyFailed(std::span<const CheckResult> results) {
  return Count(results, CheckStatus::kFailed) > 0;
}

std::string FormatVerdict(std::span<const CheckResult> results) {
  const auto passed = Count(results, CheckStatus::kOk);
  const auto warned = Count(results, CheckStatus::kWarning);
  const auto failed = Count(results, CheckStatus::kFailed);
  const auto skipped = Count(results, CheckStatus::kSkipped);
  std::string verdict = failed == 0 ? "This site can join: " : "This site cannot join yet: ";
  if (failed > 0) absl::StrAppend(&verdict, failed, " failed, ");
  absl::StrAppend(&verdict, passed, " ok");
  if (warned > 0) absl::StrAppend(&verdict, ", ", warned, warned == 1 ? " warning" : " warnings");
  if (skipped > 0) absl::StrAppend(&verdict, ", ", skipped, " not checked");
  absl::StrAppend(&verdict, ".");
  if (failed > 0) {
    const auto first = std::ranges::find(results, CheckStatus::kFailed, &CheckResult::status);
    absl::StrAppend(&verdict, " Begin with \"", first->name, "\".");
  }
  return verdict;
}

nlohmann::json ToJson(std::span<const CheckResult> results) {
  nlohmann::json checks = nlohmann::json::array();
  for (const CheckResult& result : results) {
    nlohmann::json values = nlohmann::json::object();
    for (const Measured& measured : result.values) {
      values[measured.name] = {{"value", measured.value}, {"unit", measured.unit}};
    }
    checks.push_back({{"name", result.name},
                      {"status", kStatusWords[static_cast<size_t>(result.status)]},
                      {"finding", result.finding},
                      {"remedy", result.remedy},
                      {"values", std::move(values)}});
  }
  return {{"passed", !AnyFailed(results)}, {"checks", std::move(checks)}};
}

std::string FormatRate(double bytes_per_second) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {
      {{1e3, "kbit/s"}, {1e6, "Mbit/s"}, {1e9, "Gbit/s"}}};
  return WithPrefix(8 * bytes_per_second, kUnits);
}

std::string FormatBytes(double bytes) {
  constexpr std::array<std::pair<double, const char*>, 5> kUnits = {
      {{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}}};
  return WithPrefix(bytes, kUnits);
}

std::string FormatTime(absl::Duration time) {
  constexpr std::array<std::pair<double, const char*>, 5> kUnits = {
      {{1e-6, "us"}, {1e-3, "ms"}, {1, "s"}, {60, "min"}, {3600, "h"}}};
  // Minutes and hours only from two of them on.
  const double seconds = absl::ToDoubleSeconds(time);
  return WithPrefix(seconds, std::span(kUnits).first(seconds < 120 ? 3 : seconds < 7200 ? 4 : 5));
}

namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr int kEchoCalls = 11;
// Another site may be measuring its link: that takes some ten seconds at most.
constexpr int kRateAttempts = 4;
constexpr absl::Duration kRatePause = absl::Milliseconds(2500);
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
    const SecurityOptions& security = options_.security;
    Progress("connecting");
    if (!Report(JudgeWay(FindWay(address, security.UsesTls())))) return;
    absl::StatusOr<ChannelSecurity> made = MakeChannelSecurity(security, address, clock_.Now());
    if (!made.ok()) {
      Report(Failed("credentials", made.status().message(), "see SECURITY.md"));
      return;
    }
    if (security.UsesTls() &&
        !Report(JudgeCertificates(TryTlsHandshake(address, security, kCallTimeout),
                                  made->certificate, security.cert_file, clock_.Now(),
                                  security.renewal))) {
      return;
    }
    security_ = *std::move(made);
    const absl::StatusOr<std::vector<TcpAddress>> ends = OtherEndsOf(address);
    if (ends.ok()) peers_ = *ends;
  }

  // Sets samples_ if it answers, and run_ if this build understands it.
  void CheckCoordinator() {
    if (!security_.has_value()) {
      Skip({"coordinator", "identity", "configuration", "clock", "round trip"},
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
      Skip({"identity", "configuration", "clock", "round trip"}, "needs the coordinator's answer");
      return;
    }
    samples_ = *std::move(samples);
    Report(JudgeIdentity(echo(), options_.worker_id));
    Report(JudgeConfiguration(Describe(), run_));
    Report(JudgeClock(samples_));
    tcp_rtt_ = Summarize(Connections(To(peers_))).min_rtt;
    Report(JudgeRoundTrip(samples_, tcp_rtt_));
  }

  absl::StatusOr<v1::DescribeResponse> Describe() {
    v1::DescribeRequest request;
    request.set_wire_version(kWireVersion);
    request.set_software_version(kSoftwareVersion);
    return CallOver(channels_[0], &v1::Session::Stub::Describe, request, kCallTimeout);
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
      here = Summarize(Connections(To(peers_))).congestion_control;
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
    } else if (options_.trains_on_gpus) {
      Skip({"memory"}, "it is the GPUs', which training looks at when it starts");
    } else {
      Report(JudgeMemory(MemoryBytes(*run), AvailableMemory(file_system_)));
    }
    Progress("multiplying matrices");
    devices_ = FindDevices(file_system_, options_.threads);
    devices_.uses_gpus = options_.trains_on_gpus;
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
    const LinkNeed need = LinkNeedOf(run_->config, run_->plan);
    const bool guessed = options_.step_time == absl::ZeroDuration();
    if (guessed && options_.trains_on_gpus) {
      Skip({"link"}, "needs --step_time: what a step takes on a GPU is not guessed");
      return;
    }
    const absl::Duration step = guessed ? GuessStepTime(*run_, devices_) : options_.step_time;
    Report(
        JudgeForecast(Forecast(need, up_->bytes_per_second, down_->bytes_per_second, Rtt(), step),
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
