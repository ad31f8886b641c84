#include "server/service/model_reception.h"

#include <google/protobuf/util/message_differencer.h>

#include "common/rpc/self_owned.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

// How long the part of a model is kept that came over the last stream that broke.
constexpr absl::Duration kKeepPart = absl::Minutes(10);
// Most sites that bring a model at once: each holds as much memory as it has brought.
constexpr int kMaxStreams = 2;

}  // namespace

class ModelReactor final
    : public SelfOwned<ModelReactor, grpc::ServerReadReactor<v1::BringModelRequest>> {
 public:
  ModelReactor(ModelReception& reception, grpc::CallbackServerContext& context,
               absl::StatusOr<Peer> peer)
      : reception_(reception), context_(context), peer_(std::move(peer)), last_(absl::Now()) {}
  ~ModelReactor() override {
    if (assembly_ == nullptr || assembly_->received_bytes() == 0 ||
        assembly_->received_bytes() == header_.total_bytes()) {
      return;
    }
    reception_.Keep({.header = std::move(header_), .assembly = std::move(assembly_)});
  }

  void Start() {
    if (!peer_.ok()) return End(peer_.status());
    Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return TakeAll();
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    Read();
  }
  void OnCancel() override { End(absl::CancelledError("the site's stream broke")); }

  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    Finish(ToGrpcStatus(status));
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }
  void EndIfRevoked() {
    const absl::Status status = reception_.access_.CheckStillValid(*peer_);
    if (!status.ok()) End(status);
  }
  // Whether it waits for the site, and has done so since then.
  bool StandsStillSince(absl::Time time) {
    absl::MutexLock lock(&mutex_);
    return !ended_ && !begins_ && last_ <= time;
  }

 private:
  void Read() {
    absl::MutexLock lock(&mutex_);
    last_ = absl::Now();
    if (!ended_) StartRead(&message_);
  }

  absl::Status Take() {
    if (assembly_ == nullptr) return TakeHeader();
    if (!message_.has_chunk()) {
      return absl::InvalidArgumentError("after its header a model has chunks and nothing else");
    }
    return assembly_->Add(std::move(*message_.mutable_chunk()));
  }

  absl::Status TakeHeader() {
    if (!message_.has_header()) {
      return absl::InvalidArgumentError("the first message of a model must be its header");
    }
    const v1::ModelHeader& header = message_.header();
    RETURN_IF_ERROR(reception_.access_.CheckWorker(*peer_, Action::kAttach, header.worker_id()));
    RETURN_IF_ERROR(reception_.access_.CheckRegion(*peer_, /*is_region=*/false));
    if (header.wire_version() != kWireVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "wire_version differs: the site has ", header.wire_version(), ", the coordinator ",
          kWireVersion, "; install the coordinator's release (", kSoftwareVersion, ") there"));
    }
    ASSIGN_OR_RETURN(model_, reception_.run_.AdmitModel(header));
    RETURN_IF_ERROR(reception_.options_.check_room(model_.plan));
    header_ = header;
    assembly_ = reception_.TakeKept(header_);
    if (assembly_ == nullptr) assembly_ = std::make_unique<ModelAssembly>(model_, header_);
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();
    context_.AddInitialMetadata(kHeldBytesKey, absl::StrCat(assembly_->received_bytes()));
    StartSendInitialMetadata();
    return absl::OkStatus();
  }

  void TakeAll() {
    if (assembly_ == nullptr) {
      return End(absl::InvalidArgumentError("the stream ended, or broke, before its header"));
    }
    {
      absl::MutexLock lock(&mutex_);
      begins_ = true;
    }
    reception_.options_.run_long([self = shared_from_this()] { self->End(self->BeginRun()); });
  }

  absl::Status BeginRun() {
    ASSIGN_OR_RETURN(std::vector<float> values, assembly_->Finish(model_.plan));
    if (ended()) return absl::CancelledError("the site's stream broke");
    return reception_.run_.BeginWith(std::move(model_), std::move(values),
                                     reception_.options_.ready);
  }

  ModelReception& reception_;
  grpc::CallbackServerContext& context_;  // Until Finish.
  const absl::StatusOr<Peer> peer_;
  // Touched by one callback or task at a time.
  v1::BringModelRequest message_;
  BroughtModel model_;
  v1::ModelHeader header_;
  std::unique_ptr<ModelAssembly> assembly_;  // Once the header came.

  absl::Mutex mutex_;
  absl::Time last_ ABSL_GUARDED_BY(mutex_);  // When something came.
  bool begins_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerReadReactor<v1::BringModelRequest>* ModelReception::Open(
    grpc::CallbackServerContext& context) {
  absl::StatusOr<Peer> peer = access_.Admit(context, Action::kAttach);
  absl::MutexLock lock(&opening_);
  if (peer.ok() && std::ssize(streams_.All()) >= kMaxStreams) {
    peer = absl::ResourceExhaustedError(absl::StrCat(
        kMaxStreams, " sites are bringing a model already: describe the run again later"));
  }
  const bool takes = peer.ok();
  ModelReactor* const reactor = ModelReactor::Make(*this, context, std::move(peer));
  if (takes) streams_.Add(*reactor);
  return reactor;
}

void ModelReception::Keep(Part part) {
  part.since = absl::Now();
  absl::MutexLock lock(&mutex_);
  std::swap(kept_, part);
}

std::unique_ptr<ModelAssembly> ModelReception::TakeKept(const v1::ModelHeader& header) {
  absl::MutexLock lock(&mutex_);
  if (kept_.assembly == nullptr ||
      !google::protobuf::util::MessageDifferencer::Equals(kept_.header, header)) {
    return nullptr;
  }
  return std::exchange(kept_, {}).assembly;
}

void ModelReception::EndRevokedStreams() {
  for (const auto& stream : streams_.All()) stream->EndIfRevoked();
}

void ModelReception::Tick() {
  const std::vector<std::shared_ptr<ModelReactor>> streams = streams_.All();
  const bool has_model = run_.coordinator() != nullptr;
  Part dropped;
  {
    absl::MutexLock lock(&mutex_);
    const bool drop = has_model || absl::Now() - kept_.since > kKeepPart;
    if (kept_.assembly != nullptr && drop) dropped = std::exchange(kept_, {});
  }
  for (const std::shared_ptr<ModelReactor>& stream : streams) {
    if (has_model && stream->StandsStillSince(absl::InfiniteFuture())) {
      stream->End(run_.AdmitModel({}).status());
    } else if (stream->StandsStillSince(absl::Now() - options_.stall)) {
      stream->End(absl::DeadlineExceededError(
          absl::StrCat("nothing of the model came for ", absl::FormatDuration(options_.stall))));
    }
  }
}

}  // namespace causeway::server
