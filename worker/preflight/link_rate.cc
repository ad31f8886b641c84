#include "worker/preflight/checks.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/base/thread_pool.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"

namespace causeway::worker {
namespace {

constexpr size_t kUploadBytes = 128 << 10;
constexpr absl::Duration kSampleInterval = absl::Milliseconds(100);
// For the streams to be opened and refused or answered.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kEchoTime = absl::Seconds(2);

std::string RandomData(size_t bytes) {
  std::mt19937_64 random(RandomNonce());
  std::string data(bytes, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  return data;
}

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
    request.set_data(RandomData(kUploadBytes));
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

}  // namespace causeway::worker
