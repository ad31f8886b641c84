#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"
#include "worker/preflight/checks.h"

namespace causeway::worker {
namespace {

constexpr size_t kUploadBytes = 128 << 10;
constexpr absl::Duration kSampleInterval = absl::Milliseconds(100);
// For the streams to be opened and refused or answered.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kEchoTime = absl::Seconds(2);

// The streams of one measurement, a thread for each.
class Streams {
 public:
  Streams(Direction direction, const RateOptions& options) {
    const uint64_t measurement = RandomNonce();
    for (const std::shared_ptr<grpc::Channel>& channel : options.channels) {
      auto lane = std::make_unique<Lane>();
      lane->stub = v1::Probe::NewStub(channel);
      lane->context.set_deadline(absl::ToChronoTime(absl::Now() + options.time + kGrace));
      absl::StatusOr<std::thread> thread =
          StartThread([this, lane = lane.get(), direction, measurement,
                       seconds = absl::ToDoubleSeconds(options.time)] {
            End(direction == Direction::kUp ? Upload(*lane, measurement)
                                            : Download(*lane, measurement, seconds));
          });
      lanes_.push_back(std::move(lane));
      if (thread.ok()) {
        lanes_.back()->thread = *std::move(thread);
      } else {
        End(thread.status());
      }
    }
  }

  ~Streams() { Stop(); }

  void Stop() {
    stopping_ = true;
    for (const auto& lane : lanes_) lane->context.TryCancel();
    for (const auto& lane : lanes_) {
      if (lane->thread.joinable()) lane->thread.join();
    }
  }

  // True once all have ended by themselves, within that time.
  bool AwaitEnd(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ended_ == lanes_.size();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&ended), time);
  }

  // The first error of a stream that was not told to stop.
  absl::Status error() const {
    absl::MutexLock lock(&mutex_);
    return error_;
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Lane {
    std::unique_ptr<v1::Probe::Stub> stub;
    grpc::ClientContext context;
    std::thread thread;
  };

  absl::Status Upload(Lane& lane, uint64_t measurement) {
    v1::UploadRequest request;
    request.set_measurement(measurement);
    request.set_data(RandomText(RandomNonce(), kUploadBytes));
    v1::UploadResponse response;
    const auto writer = lane.stub->Upload(&lane.context, &response);
    while (!stopping_ && writer->Write(request)) bytes_ += kUploadBytes;
    return FromGrpcStatus(writer->Finish());
  }

  absl::Status Download(Lane& lane, uint64_t measurement, double seconds) {
    v1::DownloadRequest request;
    request.set_measurement(measurement);
    request.set_seconds(seconds);
    v1::DownloadResponse response;
    const auto reader = lane.stub->Download(&lane.context, request);
    while (reader->Read(&response)) bytes_ += static_cast<int64_t>(response.data().size());
    return FromGrpcStatus(reader->Finish());
  }

  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ++ended_;
    if (!status.ok() && !stopping_ && error_.ok()) error_ = status;
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> bytes_ = 0;
  mutable absl::Mutex mutex_;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Lane>> lanes_;
};

struct Sample {
  absl::Duration at;
  int64_t bytes = 0;
};

// Between the last sample and the newest one that is at least so much older.
double RateOver(const std::vector<Sample>& samples, absl::Duration span) {
  const Sample& last = samples.back();
  const Sample* first = &samples.front();
  for (const Sample& sample : samples) {
    if (last.at - sample.at >= span) first = &sample;
  }
  const double seconds = absl::ToDoubleSeconds(last.at - first->at);
  return seconds > 0 ? static_cast<double>(last.bytes - first->bytes) / seconds : 0;
}

}  // namespace

absl::StatusOr<LinkRate> MeasureRate(Direction direction, const RateOptions& options) {
  TcpLinkMeter meter(options.peers, options.congestion_control);
  const TcpLink before = meter.Sample();
  LinkRate rate;
  rate.connections = static_cast<int>(options.channels.size());
  Streams streams(direction, options);
  const absl::Time start = absl::Now();
  std::vector<Sample> samples;
  TcpLink link;
  bool ended = false;
  while (!ended && absl::Now() - start < options.time) {
    ended = streams.AwaitEnd(kSampleInterval);
    link = meter.Sample();
    const bool measured = link.connections > 0;
    const int64_t tcp_bytes = direction == Direction::kUp
                                  ? link.sent_bytes - before.sent_bytes
                                  : link.received_bytes - before.received_bytes;
    samples.push_back({absl::Now() - start, measured ? tcp_bytes : streams.bytes()});
    if (link.rtt > absl::ZeroDuration()) rate.loaded_rtt = link.rtt;
    if (link.min_rtt > absl::ZeroDuration()) rate.min_rtt = link.min_rtt;
    if (options.progress) options.progress(samples.back().at, RateOver(samples, absl::Seconds(1)));
  }
  const absl::Status error = streams.error();
  streams.Stop();
  if (!error.ok()) return error;
  rate.bytes = samples.back().bytes;
  rate.bytes_per_second = RateOver(samples, samples.back().at / 2);
  rate.retransmitted_segments = link.retransmitted_segments - before.retransmitted_segments;
  rate.congestion_control = link.congestion_control;
  if (streams.bytes() == 0 || rate.bytes_per_second <= 0) {
    return absl::UnavailableError(
        absl::StrCat("nothing went through in ", absl::FormatDuration(options.time)));
  }
  return rate;
}

absl::StatusOr<std::vector<EchoSample>> MeasureEcho(v1::Probe::StubInterface& stub,
                                                    const std::string& worker_id, int count,
                                                    absl::Duration timeout) {
  std::vector<EchoSample> samples;
  const absl::Time start = absl::Now();
  for (int i = 0; i < count && (i == 0 || absl::Now() - start < kEchoTime); ++i) {
    v1::EchoRequest request;
    if (i == 0) request.set_worker_id(worker_id);
    request.set_details(i == 0);
    EchoSample sample;
    grpc::ClientContext context;
    context.set_wait_for_ready(false);
    sample.sent = absl::Now();
    context.set_deadline(absl::ToChronoTime(sample.sent + timeout));
    const auto before = std::chrono::steady_clock::now();
    const grpc::Status status = stub.Echo(&context, request, &sample.response);
    sample.round_trip = absl::FromChrono(std::chrono::steady_clock::now() - before);
    // Whoever knows no probes is no coordinator of this release, and will not be in a moment.
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return absl::UnimplementedError(status.error_message());
    }
    if (!status.ok() && i == 0) return FromGrpcStatus(status);
    if (status.ok()) samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

constexpr char kBuffersCheck[] = "buffers";
constexpr char kCongestionCheck[] = "congestion";
constexpr char kForecastCheck[] = "link";

// Below this, every congestion control fills a link.
constexpr absl::Duration kShortLink = absl::Milliseconds(10);
// A run should have so much: rates vary, and other sites share the coordinator's side.
constexpr double kComfortableHeadroom = 1.25;
constexpr double kGoodUtilization = 0.95;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::string Times(double ratio) {
  if (ratio > 1000) return "over 1000";
  return absl::StrFormat("%.*f", ratio >= 9.95 ? 0 : 1, ratio);
}

MeasuredDirection Measure(const LinkRate& rate, absl::Duration rtt) {
  return {.bytes_per_second = rate.bytes_per_second, .rtt = rtt, .connections = rate.connections};
}

}  // namespace

CheckResult JudgeRate(Direction direction, const absl::StatusOr<LinkRate>& rate) {
  const char* const name = direction == Direction::kUp ? "rate up" : "rate down";
  if (absl::IsResourceExhausted(rate.status())) {
    return Warned(name, absl::StrCat("not measured: ", rate.status().message()),
                  "run the preflight again then");
  }
  if (!rate.ok()) {
    return Failed(name, rate.status().message(),
                  "small calls get through and data does not: look for a firewall or a tunnel that "
                  "drops large packets (MTU)");
  }
  std::string finding =
      absl::StrCat(FormatRate(rate->bytes_per_second), " over ", rate->connections, " connection",
                   rate->connections == 1 ? "" : "s");
  if (rate->loaded_rtt > absl::ZeroDuration()) {
    absl::StrAppend(&finding, ", round trip ", FormatTime(rate->loaded_rtt), " meanwhile");
  }
  if (direction == Direction::kUp && rate->retransmitted_segments > 0) {
    absl::StrAppend(&finding, ", ", rate->retransmitted_segments, " segments sent again");
  }
  return Passed(name, finding,
                {{"rate", rate->bytes_per_second, "bytes/s"},
                 {"bytes", rate->bytes, "bytes"},
                 {"connections", rate->connections},
                 {"round_trip_loaded", rate->loaded_rtt},
                 {"retransmitted_segments", rate->retransmitted_segments}});
}

CheckResult JudgeBuffers(const absl::StatusOr<SocketBuffers>& here, const v1::EchoResponse& echo,
                         const LinkRate& up, const LinkRate& down, absl::Duration rtt) {
  const MeasuredDirection measured_up = Measure(up, rtt);
  const MeasuredDirection measured_down = Measure(down, rtt);
  std::vector<std::string> warnings;
  const auto note = [&](absl::string_view setting, const BufferRange& range,
                        const MeasuredDirection& measured, absl::string_view where) {
    warnings.push_back(BufferWarning(setting, range, measured, where));
    if (warnings.back().empty()) warnings.pop_back();
  };
  if (here.ok()) {
    note(kSendSetting, here->send, measured_up, "");
    note(kReceiveSetting, here->receive, measured_down, "");
  }
  // The coordinator says the third number alone; the others are the kernel's.
  constexpr char kThere[] = " at the coordinator";
  note(kReceiveSetting, {4096, 131072, echo.receive_buffer_bytes()}, measured_up, kThere);
  note(kSendSetting, {4096, 16384, echo.send_buffer_bytes()}, measured_down, kThere);
  const double bandwidth_delay =
      std::max(up.bytes_per_second, down.bytes_per_second) * absl::ToDoubleSeconds(rtt);
  std::vector<Measured> values = {{"bandwidth_delay_product", bandwidth_delay, "bytes"}};
  if (here.ok()) {
    values.push_back({"send_buffer", here->send.largest, "bytes"});
    values.push_back({"receive_buffer", here->receive.largest, "bytes"});
  }
  if (warnings.empty()) {
    return Passed(kBuffersCheck,
                  absl::StrCat("the kernels' buffers hold the ", FormatBytes(bandwidth_delay),
                               " that are under way on this link, with room to spare"),
                  std::move(values));
  }
  return Warned(kBuffersCheck, absl::StrJoin(warnings, "; "),
                "do that, or give more --connections: the link may carry more than was measured",
                std::move(values));
}

CheckResult JudgeCongestionControl(const std::string& here, const std::string& there,
                                   const absl::Status& bbr, absl::Duration rtt) {
  if (here.empty() && there.empty()) {
    return Skipped(kCongestionCheck, "the kernel does not say which congestion control it uses");
  }
  const std::string finding =
      here == there ? absl::StrCat(here, " at both ends")
                    : absl::StrCat(here.empty() ? "unknown" : here, " here, ",
                                   there.empty() ? "unknown" : there, " at the coordinator");
  const bool ours = here == "bbr" || here.empty();
  const bool theirs = there == "bbr" || there.empty();
  if ((ours && theirs) || rtt < kShortLink) return Passed(kCongestionCheck, finding);
  std::string remedy = "on a long link that loses packets bbr carries many times more";
  if (!ours) {
    absl::StrAppend(&remedy, "; here: ",
                    bbr.ok() ? absl::string_view("--congestion_control=bbr") : bbr.message());
  }
  if (!theirs) {
    absl::StrAppend(&remedy, "; at the coordinator: `modprobe tcp_bbr`, and bbr in ",
                    "net.ipv4.tcp_allowed_congestion_control");
  }
  return Warned(kCongestionCheck, finding, remedy);
}

LinkNeed LinkNeedOf(const v1::RunConfig& config, const FragmentPlan& plan) {
  const Codec& up = **FindCodec(config.sync().codec_up());
  const Codec& down = **FindCodec(config.sync().codec_down());
  LinkNeed need;
  need.steps_between_syncs = config.sync().steps_between_syncs();
  need.overlap_steps = config.sync().overlap_steps();
  need.state_bytes = 4 * static_cast<double>(plan.arena_size());
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const auto values = static_cast<size_t>(plan.range(fragment).size());
    need.up_bytes.push_back(static_cast<double>(up.EncodedBytes(values)));
    need.down_bytes.push_back(static_cast<double>(down.EncodedBytes(values)));
  }
  return need;
}

LinkForecast Forecast(const LinkNeed& need, double up_rate, double down_rate, absl::Duration rtt,
                      absl::Duration step_time) {
  LinkForecast forecast;
  const double round_seconds = need.steps_between_syncs * absl::ToDoubleSeconds(step_time);
  const double up = Sum(need.up_bytes);
  const double down = Sum(need.down_bytes);
  forecast.up_bytes_per_second = up / round_seconds;
  forecast.down_bytes_per_second = down / round_seconds;
  const double transfer_seconds = std::max(up / up_rate, down / down_rate);
  forecast.headroom = round_seconds / transfer_seconds;
  forecast.least_step_time = absl::Seconds(transfer_seconds / need.steps_between_syncs);
  const double overlap_seconds = need.overlap_steps * absl::ToDoubleSeconds(step_time);
  double blocked_seconds = 0;
  for (size_t i = 0; i < need.up_bytes.size(); ++i) {
    // Half a round trip up, half one down, and a whole one before the pull is asked for.
    const double away = need.up_bytes[i] / up_rate + need.down_bytes[i] / down_rate +
                        2 * absl::ToDoubleSeconds(rtt);
    blocked_seconds += std::max(0.0, away - overlap_seconds);
  }
  forecast.utilization =
      round_seconds / std::max(round_seconds + blocked_seconds, transfer_seconds);
  forecast.join_time = absl::Seconds(need.state_bytes / down_rate) + rtt;
  return forecast;
}

CheckResult JudgeForecast(const LinkForecast& forecast, absl::Duration step_time, bool estimated) {
  const std::string finding = absl::StrFormat(
      "this link carries %s times the rate that the run needs at %s%s per step (%s up, %s down); "
      "it "
      "keeps up with steps of %s or longer; about %.0f%% of the time computes; joining takes %s",
      Times(forecast.headroom), estimated ? "about " : "", FormatTime(step_time),
      FormatRate(forecast.up_bytes_per_second), FormatRate(forecast.down_bytes_per_second),
      FormatTime(forecast.least_step_time), 100 * forecast.utilization,
      FormatTime(forecast.join_time));
  const char* const remedy =
      forecast.headroom < kComfortableHeadroom
          ? "training will wait for the link: ask the run's operator for fewer bits "
            "(sync.codec_up, codec_down), a larger sync.steps_between_syncs, or more link"
      : forecast.utilization < kGoodUtilization
          ? "training will wait for answers: ask the run's operator for a larger "
            "sync.overlap_steps, or for more and so smaller sync.fragments"
          : "";
  return PassedUnless(kForecastCheck, finding, remedy,
                      {{"headroom", forecast.headroom},
                       {"needed_up", forecast.up_bytes_per_second, "bytes/s"},
                       {"needed_down", forecast.down_bytes_per_second, "bytes/s"},
                       {"step_time", step_time},
                       {"least_step_time", forecast.least_step_time},
                       {"utilization", forecast.utilization},
                       {"join_time", forecast.join_time}});
}

}  // namespace causeway::worker
