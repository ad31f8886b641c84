#include "worker/link/grpc_exchange.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk.h"
#include "common/rpc/status.h"
#include "common/rpc/wire.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
// A transfer that arrives damaged twice without any progress is not a passing fault.
constexpr int kMaxDamaged = 2;
// Weight of a transfer in the smoothed rate.
constexpr double kNewest = 0.25;

absl::Status Cancelled() { return absl::CancelledError("the exchange was cancelled"); }

}  // namespace

GrpcExchange::Call::Call(GrpcExchange* exchange) : exchange_(exchange) {
  absl::MutexLock lock(&exchange_->mutex_);
  exchange_->contexts_.insert(&context_);
  if (exchange_->cancelled_) context_.TryCancel();
}

GrpcExchange::Call::~Call() {
  absl::MutexLock lock(&exchange_->mutex_);
  exchange_->contexts_.erase(&context_);
}

void GrpcExchange::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* const context : contexts_) context->TryCancel();
}

bool GrpcExchange::BackOff(int attempt) {
  const absl::Duration pause =
      std::min(kFirstBackoff * (int64_t{1} << std::min(attempt - 1, 10)), kMaxBackoff);
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), pause);
}

absl::Status GrpcExchange::Push(const Contribution& contribution) {
  v1::PushHeader header;
  header.set_run_id(options_.run_id);
  header.set_worker_id(options_.worker_id);
  header.set_fragment(contribution.fragment);
  header.set_round(contribution.round);
  header.set_codec(options_.sync.codec_up());
  header.set_total_bytes(static_cast<int64_t>(contribution.object.size()));
  header.set_object_hash(TreeHash(contribution.object));
  header.set_tokens(contribution.tokens);
  header.set_send_step(contribution.send_step);
  int damaged = 0;
  for (int attempt = 1;; ++attempt) {
    header.set_attempt(static_cast<uint32_t>(attempt));
    header.set_incarnation(options_.session->incarnation());
    const absl::Status status = PushOnce(header, contribution.object);
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) return Cancelled();
    }
    if (absl::IsDataLoss(status)) ++damaged;
    const bool again = IsRetryable(status) || (absl::IsDataLoss(status) && damaged < kMaxDamaged);
    if (!again) return status;
    Log().warn("push of fragment {} round {} failed, trying again: {}", contribution.fragment,
               contribution.round, std::string(status.message()));
    if (!BackOff(attempt)) return Cancelled();
  }
}

absl::Status GrpcExchange::PushOnce(const v1::PushHeader& header, std::span<const uint8_t> object) {
  Call call(this);
  v1::PushResponse response;
  const std::unique_ptr<grpc::ClientWriterInterface<v1::PushRequest>> writer =
      options_.stub->Push(call.context(), &response);
  v1::PushRequest request;
  *request.mutable_header() = header;
  // A refused write means that the answer is there already: an error, or a duplicate accepted.
  bool open = writer->Write(request);
  for (size_t offset = 0; open && offset < object.size(); offset += kChunkBytes) {
    const std::span<const uint8_t> data =
        object.subspan(offset, std::min(kChunkBytes, object.size() - offset));
    v1::Chunk& chunk = *request.mutable_chunk();
    FillChunk(static_cast<int64_t>(offset), data, options_.sync.entropy_up(), chunk);
    open = writer->Write(request);
    if (open) bytes_up_ += static_cast<int64_t>(chunk.data().size());
  }
  if (open) writer->WritesDone();
  RETURN_IF_ERROR(FromGrpcStatus(writer->Finish()));
  if (response.quarantined()) {
    Log().warn(
        "the delta of fragment {} for round {} is quarantined: it is out of line with what this "
        "fragment is used to (membership.outlier_factor), and will not be merged. Training goes "
        "on; if this repeats, look at this site's data, learning rate and devices",
        header.fragment(), header.round());
  }
  return absl::OkStatus();
}

absl::StatusOr<PulledObject> GrpcExchange::PullAnswer(int fragment, int64_t round) {
  v1::PullRequest request;
  request.set_object(v1::PullRequest::ANSWER);
  request.set_fragment(fragment);
  request.set_round(round);
  const Codec* const codec = FindCodec(options_.sync.codec_down()).value();
  const auto values = static_cast<size_t>(options_.plan->range(fragment).size());
  return Pull(request, static_cast<int64_t>(codec->EncodedBytes(values)));
}

absl::StatusOr<PulledObject> GrpcExchange::PullState(int fragment) {
  v1::PullRequest request;
  request.set_object(v1::PullRequest::STATE);
  request.set_fragment(fragment);
  return Pull(request, options_.plan->range(fragment).size() * int64_t{sizeof(float)});
}

absl::StatusOr<PulledObject> GrpcExchange::Pull(v1::PullRequest request, int64_t expected_bytes) {
  request.set_run_id(options_.run_id);
  request.set_worker_id(options_.worker_id);
  PullReceiver receiver(request, expected_bytes);
  int damaged = 0;
  for (int attempt = 1;; ++attempt) {
    const int64_t before = receiver.received_bytes();
    const absl::Status status = PullOnce(receiver);
    if (status.ok()) return receiver.TakeObject();
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) return Cancelled();
    }
    if (receiver.received_bytes() > before) {  // It moved: patience starts anew.
      attempt = 1;
      damaged = 0;
    }
    if (absl::IsDataLoss(status)) ++damaged;
    const bool again = IsRetryable(status) || (absl::IsDataLoss(status) && damaged < kMaxDamaged);
    if (!again) return status;
    Log().warn("pull of fragment {} round {} failed at {} of {} bytes, trying again: {}",
               request.fragment(), request.round(), receiver.received_bytes(), expected_bytes,
               std::string(status.message()));
    if (!BackOff(attempt)) return Cancelled();
  }
}

absl::Status GrpcExchange::PullOnce(PullReceiver& receiver) {
  Call call(this);
  const std::unique_ptr<grpc::ClientReaderInterface<v1::PullResponse>> reader =
      options_.stub->Pull(call.context(), receiver.BeginStream());
  v1::PullResponse response;
  absl::Status problem;
  absl::Duration begun;
  const int64_t held = receiver.received_bytes();
  while (problem.ok() && reader->Read(&response)) {
    problem = receiver.Receive(response);
    if (response.has_header()) begun = options_.clock->Monotonic();
    if (problem.ok()) bytes_down_ += static_cast<int64_t>(response.chunk().data().size());
  }
  if (!problem.ok()) call.context()->TryCancel();
  RETURN_IF_ERROR(receiver.EndStream(problem, FromGrpcStatus(reader->Finish())));
  if (receiver.request().object() == v1::PullRequest::ANSWER) {
    NoteDownload(static_cast<size_t>(receiver.received_bytes() - held),
                 options_.clock->Monotonic() - begun);
  }
  return absl::OkStatus();
}

void GrpcExchange::NoteDownload(size_t bytes, absl::Duration time) {
  if (time <= absl::ZeroDuration()) return;
  const double rate = static_cast<double>(bytes) / absl::ToDoubleSeconds(time);
  absl::MutexLock lock(&mutex_);
  download_bytes_per_s_ =
      download_bytes_per_s_ == 0 ? rate : (1 - kNewest) * download_bytes_per_s_ + kNewest * rate;
}

double GrpcExchange::download_bytes_per_s() const {
  absl::MutexLock lock(&mutex_);
  return download_bytes_per_s_;
}

void GrpcExchange::ReportApplied(int fragment, int64_t round, uint64_t published_hash) {
  options_.session->Applied(fragment, round, published_hash);
}

}  // namespace causeway::worker
