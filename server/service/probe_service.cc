#include "server/service/probe_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>

#include "causeway/v1/probe.grpc.pb.h"
#include "common/base/random.h"
#include "common/params/run_config.h"
#include "common/rpc/self_owned.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_links.h"
#include "common/transfer/wire.h"
#include "server/service/unary_services.h"

namespace causeway::server {
namespace {

// A measurement costs at least this much, so that very many short ones are no way around.
constexpr absl::Duration kLeastCost = absl::Milliseconds(250);

std::string WholeSeconds(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1))), " s");
}

}  // namespace

ProbeGate::ProbeGate(const Clock& clock, const Limits& limits)
    : clock_(clock), limits_(limits), allowance_(limits.allowance), refilled_(clock.Monotonic()) {}

void ProbeGate::Refill(absl::Duration now) {
  allowance_ = std::min(limits_.allowance, allowance_ + limits_.share * (now - refilled_));
  refilled_ = now;
}

absl::StatusOr<std::unique_ptr<ProbeGate::Stream>> ProbeGate::Enter(uint64_t measurement,
                                                                    const std::string& host) {
  if (measurement == 0) {
    return absl::InvalidArgumentError("a measurement needs a random number other than 0");
  }
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Monotonic();
  if (streams_ == 0) {
    Refill(now);
    if (allowance_ < limits_.time) {  // Room for a whole one.
      return absl::ResourceExhaustedError(
          absl::StrCat("links were measured for long enough lately, so that training goes on "
                       "undisturbed: try again in ",
                       WholeSeconds((limits_.time - allowance_) / limits_.share)));
    }
    measurement_ = measurement;
    host_ = host;
    start_ = now;
    bytes_left_ = limits_.bytes;
  } else if (measurement != measurement_ || host != host_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("another link is being measured: try again in ",
                     WholeSeconds(std::max(absl::Seconds(1), limits_.time - (now - start_)))));
  } else if (streams_ == limits_.streams) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a measurement has at most ", limits_.streams, " streams"));
  } else if (now - start_ >= limits_.time) {
    return absl::ResourceExhaustedError("the measurement's time is over: begin another one");
  }
  ++streams_;
  return std::make_unique<Stream>(*this);
}

bool ProbeGate::Take(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_left_ -= bytes;
  return bytes_left_ >= 0 && clock_.Monotonic() - start_ < limits_.time;
}

void ProbeGate::Leave() {
  absl::MutexLock lock(&mutex_);
  if (--streams_ > 0) return;
  const absl::Duration now = clock_.Monotonic();
  Refill(now);
  allowance_ -= std::max(kLeastCost, now - start_);
}

namespace {

// Small enough that a link of 1 Mbit/s moves one a second.
constexpr size_t kDownloadBytes = 128 << 10;

// By which measurements are told apart: the identity or, without one, the address without the port.
std::string Measurer(const Peer& peer) {
  if (peer.identity.has_value()) return IdentityUri(*peer.identity);
  return peer.address.substr(0, peer.address.rfind(':'));
}

void DescribeMembers(const v1::RunStatus& status, v1::EchoResponse& response) {
  response.set_live_workers(static_cast<int32_t>(
      std::count_if(status.workers().begin(), status.workers().end(), IsLive)));
  response.set_max_workers(status.config().membership().max_workers());
  response.set_data_fingerprint(status.data_fingerprint());
}

void DescribeId(const v1::RunStatus& status, const std::string& id, const absl::Status& allowed,
                v1::EchoResponse& response) {
  response.set_id_state(v1::EchoResponse::FREE);
  if (!allowed.ok()) {
    response.set_id_state(v1::EchoResponse::REFUSED);
    response.set_id_detail(std::string(allowed.message()));
    return;
  }
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.worker_id() != id) continue;
    const bool lost = worker.state() == v1::WorkerStatus::LOST;
    response.set_id_state(IsLive(worker) ? v1::EchoResponse::LIVE
                          : lost         ? v1::EchoResponse::LOST
                                         : v1::EchoResponse::LEFT);
    response.set_id_detail(worker.device());
  }
}

void DescribeMachine(const absl::StatusOr<TcpAddress>& caller, v1::EchoResponse& response) {
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(*FileSystem::Real());
  if (buffers.ok()) {
    response.set_send_buffer_bytes(buffers->send.largest);
    response.set_receive_buffer_bytes(buffers->receive.largest);
  }
  if (caller.ok()) {
    const std::array<TcpAddress, 1> ends = {*caller};
    response.set_congestion_control(Summarize(Connections(To(ends))).congestion_control);
  }
}

// Ends a call at its time even if the other side does nothing.
template <typename Reactor>
void SetAlarm(grpc::Alarm& alarm, absl::Duration time, const std::weak_ptr<Reactor>& reactor) {
  // Weak: an alarm keeps its callback until it is destroyed.
  alarm.Set(absl::ToChronoTime(absl::Now() + time), [reactor](bool fired) {
    const std::shared_ptr<Reactor> target = reactor.lock();
    if (fired && target != nullptr) target->OnTime();
  });
}

// One stream of a measurement.
template <typename Derived, typename Reactor>
class ProbeReactor : public SelfOwned<Derived, Reactor> {
 protected:
  ProbeReactor(ProbeGate& gate, absl::StatusOr<Peer> peer) : gate_(gate), peer_(std::move(peer)) {}

  // False: it has ended.
  bool Enter(uint64_t measurement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<std::unique_ptr<ProbeGate::Stream>> stream =
        gate_.Enter(measurement, Measurer(*peer_));
    if (stream.ok()) {
      stream_ = *std::move(stream);
    } else {
      End(stream.status());
    }
    return stream.ok();
  }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ended_ = true;
    stream_.reset();
    alarm_.Cancel();
    this->Finish(ToGrpcStatus(status));
  }

  ProbeGate& gate_;
  const absl::StatusOr<Peer> peer_;
  grpc::Alarm alarm_;
  absl::Mutex mutex_;
  std::unique_ptr<ProbeGate::Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class UploadReactor final
    : public ProbeReactor<UploadReactor, grpc::ServerReadReactor<v1::UploadRequest>> {
 public:
  UploadReactor(ProbeGate& gate, absl::StatusOr<Peer> peer, v1::UploadResponse* response)
      : ProbeReactor(gate, std::move(peer)), response_(*response) {}

  void Start() {
    if (!peer_.ok()) {
      absl::MutexLock lock(&mutex_);
      return End(peer_.status());
    }
    SetAlarm(alarm_, gate_.limits().time, weak_from_this());
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (!ok) return End(absl::OkStatus());
    if (stream_ == nullptr) {
      if (!Enter(message_.measurement())) return;
      start_ = absl::Now();
    }
    if (message_.data().size() > kChunkBytes) {
      return End(absl::InvalidArgumentError(
          absl::StrCat("a message has at most ", kChunkBytes, " bytes of data")));
    }
    const auto bytes = static_cast<int64_t>(message_.data().size());
    response_.set_received_bytes(response_.received_bytes() + bytes);
    response_.set_elapsed_us(absl::ToInt64Microseconds(absl::Now() - start_));
    if (!stream_->Take(bytes)) return End(absl::OkStatus());
    StartRead(&message_);
  }

  void OnTime() {
    absl::MutexLock lock(&mutex_);
    if (!ended_) End(absl::OkStatus());
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    if (!ended_) End(absl::CancelledError("the caller went away"));
  }

 private:
  v1::UploadResponse& response_;
  v1::UploadRequest message_;
  absl::Time start_ ABSL_GUARDED_BY(mutex_);
};

class DownloadReactor final
    : public ProbeReactor<DownloadReactor, grpc::ServerWriteReactor<v1::DownloadResponse>> {
 public:
  DownloadReactor(ProbeGate& gate, absl::StatusOr<Peer> peer, grpc::CallbackServerContext* context,
                  const v1::DownloadRequest& request)
      : ProbeReactor(gate, std::move(peer)), context_(*context), request_(request) {}

  void Start() {
    absl::MutexLock lock(&mutex_);
    if (!peer_.ok()) return End(peer_.status());
    if (!(request_.seconds() > 0)) {
      return End(absl::InvalidArgumentError("seconds must be above 0"));
    }
    if (!Enter(request_.measurement())) return;
    const absl::Duration limit = gate_.limits().time;
    end_ = absl::Now() + std::min(limit, absl::Seconds(request_.seconds()));
    SetAlarm(alarm_, limit, weak_from_this());
    static const auto* const data = new std::string(RandomText(/*seed=*/1, kDownloadBytes));
    response_.set_data(*data);
    Continue();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (!ok) return End(absl::CancelledError("the caller went away, or did not read"));
    Continue();
  }

  // A caller that does not read: the write under way fails, and so ends the call.
  void OnTime() {
    absl::MutexLock lock(&mutex_);
    if (!ended_) context_.TryCancel();
  }

  void OnCancel() override {}  // The write under way fails.

 private:
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Now() >= end_ || !stream_->Take(static_cast<int64_t>(kDownloadBytes))) {
      return End(absl::OkStatus());
    }
    StartWrite(&response_);
  }

  grpc::CallbackServerContext& context_;
  const v1::DownloadRequest request_;
  v1::DownloadResponse response_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_);
};

class ProbeService final : public v1::Probe::CallbackService {
 public:
  ProbeService(const ServedRun& run, Access& access, ProbeGate& gate)
      : run_(run), access_(access), gate_(gate) {}

  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const v1::EchoRequest* request,
                                 v1::EchoResponse* response) override {
    const absl::StatusOr<Peer> caller = access_.Admit(*context, Action::kProbe);
    if (!caller.ok()) return FinishWith(context, caller.status());
    response->set_wire_version(kWireVersion);
    response->set_software_version(kSoftwareVersion);
    response->set_run_id(run_.run_id());
    if (caller->identity.has_value()) response->set_identity(IdentityUri(*caller->identity));
    const absl::StatusOr<TcpAddress> address = ParseGrpcPeer(context->peer());
    response->set_peer(address.ok() ? address->ToString() : context->peer());
    if (!request->worker_id().empty() || request->details()) {
      const v1::RunStatus status = run_.GetStatus();
      if (request->details()) DescribeMembers(status, *response);
      if (!request->worker_id().empty()) {
        absl::Status allowed = CheckName("worker_id", request->worker_id());
        if (allowed.ok()) allowed = access_.Admit(*context, Action::kAttach).status();
        if (allowed.ok()) {
          allowed = access_.CheckWorker(*caller, Action::kProbe, request->worker_id());
        }
        DescribeId(status, request->worker_id(), allowed, *response);
      }
    }
    if (request->details()) DescribeMachine(address, *response);
    response->set_unix_us(absl::ToUnixMicros(absl::Now()));
    return FinishWith(context, absl::OkStatus());
  }

  grpc::ServerReadReactor<v1::UploadRequest>* Upload(grpc::CallbackServerContext* context,
                                                     v1::UploadResponse* response) override {
    return UploadReactor::Make(gate_, access_.Admit(*context, Action::kProbe), response);
  }

  grpc::ServerWriteReactor<v1::DownloadResponse>* Download(
      grpc::CallbackServerContext* context, const v1::DownloadRequest* request) override {
    return DownloadReactor::Make(gate_, access_.Admit(*context, Action::kProbe), context, *request);
  }

 private:
  const ServedRun& run_;
  Access& access_;
  ProbeGate& gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeProbeService(const ServedRun& run, Access& access,
                                                ProbeGate& gate) {
  return std::make_unique<ProbeService>(run, access, gate);
}

}  // namespace causeway::server
