#include "server/service/session_service.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>

#include "common/rpc/self_owned.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "server/service/unary_services.h"

namespace causeway::server {
namespace {

// A worker that does not read falls behind by round outcomes: a hundred of them in a run of a
// thousand workers, ten thousand in one of ten.
constexpr size_t kMaxQueuedBytes = size_t{4} << 20;
// How long the part of a model is kept that came over the last stream that broke.
constexpr absl::Duration kKeepPart = absl::Minutes(10);
// Most sites that bring a model at once: each holds as much memory as it has brought.
constexpr int kMaxStreams = 2;

}  // namespace

class SessionReactor final
    : public SelfOwned<SessionReactor,
                       grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>>,
      public SessionSink {
 public:
  SessionReactor(const ServedRun& run, Access& access, const Runner& run_long,
                 grpc::CallbackServerContext& context, absl::StatusOr<Peer> peer)
      : run_(run),
        access_(access),
        run_long_(run_long),
        context_(context),
        peer_(std::move(peer)),
        opened_(absl::Now()) {}

  void Start() {
    if (!peer_.ok()) return Close(peer_.status());
    StartRead(&incoming_);
  }
  // A stream that has not joined within that time ends. For a session that has ended but for what
  // its worker does not read: tells the coordinator, and gives the stream up once that has lasted
  // for so long.
  void Tick(absl::Duration patience) {
    const absl::Time now = absl::Now();
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      if (!end_.has_value()) {
        if (welcomed_ || now - opened_ < patience) return;
        End(absl::DeadlineExceededError(absl::StrCat(
            "no Join came within ", absl::FormatDuration(patience), " of the session's start")));
        return Continue();
      }
      // Not finished, so the context is still there.
      if (now - ended_at_ >= patience) context_.TryCancel();
    }
    Disconnect();
  }
  void CloseIfRevoked() {
    if (!peer_.ok()) return;
    const absl::Status status = access_.CheckStillValid(*peer_);
    if (!status.ok()) Close(status);
  }

  void OnReadDone(bool ok) override {
    run_long_([self = shared_from_this(), ok] { self->Take(ok); });
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) {
      outgoing_.Clear();
      End(absl::UnavailableError("the stream broke"));
    }
    Continue();
  }

  void OnCancel() override { Close(absl::CancelledError("the worker's stream broke")); }

  void Send(const v1::CoordinatorMessage& message) override {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    if (!outgoing_.Add(message)) {
      End(absl::ResourceExhaustedError(
          absl::StrCat("the worker does not read its session: messages of more than ",
                       kMaxQueuedBytes >> 20, " MiB wait for it; attach again")));
      outgoing_.Clear();
    }
    Continue();
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    End(status);
    Continue();
  }

 private:
  // The end of a read.
  void Take(bool ok) {
    if (!ok) {
      Disconnect();
      // Its end, or a message that could not be read.
      Close(incarnation_ == 0
                ? absl::InvalidArgumentError("the session ended, or broke, before its Join")
                : absl::OkStatus());
      return;
    }
    absl::Status status = access_.CountMessage(*peer_);
    if (status.ok()) status = incarnation_ == 0 ? Join() : HandleMessage();
    if (!status.ok()) {
      Close(status);
      Disconnect();
      return;
    }
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ended = end_.has_value();
      if (!ended) StartRead(&incoming_);
    }
    // Meanwhile: no read is going to say so.
    if (ended) Disconnect();
  }

  absl::Status Join() {
    if (!incoming_.has_join()) {
      return absl::InvalidArgumentError("the first message of a session must be a Join");
    }
    const v1::Join& join = incoming_.join();
    RETURN_IF_ERROR(access_.CheckWorker(*peer_, Action::kAttach, join.worker_id()));
    RETURN_IF_ERROR(access_.CheckRegion(*peer_, join.sites() > 0));
    RETURN_IF_ERROR(CheckLength("software_version", join.software_version()));
    RETURN_IF_ERROR(CheckLength("device", join.device()));
    ASSIGN_OR_RETURN(Coordinator* const coordinator, run_.Begun());
    absl::StatusOr<v1::Welcome> welcome =
        coordinator->members().Join(incoming_.join(), shared_from_this());
    if (!welcome.ok()) return welcome.status();
    members_ = &coordinator->members();
    worker_id_ = incoming_.join().worker_id();
    incarnation_ = welcome->incarnation();
    v1::CoordinatorMessage message;
    *message.mutable_welcome() = *std::move(welcome);
    absl::MutexLock lock(&mutex_);
    // Since Join returned, other threads may have queued messages; Welcome precedes them.
    outgoing_.AddFirst(std::move(message));
    welcomed_ = true;
    Continue();
    return absl::OkStatus();
  }

  absl::Status HandleMessage() {
    if (incoming_.has_leave()) ShortenText(*incoming_.mutable_leave()->mutable_detail());
    absl::Status status = members_->Handle(worker_id_, incarnation_, incoming_);
    if (status.ok() && incoming_.has_leave()) {
      absl::MutexLock lock(&mutex_);
      disconnected_ = true;  // It says more than that.
    }
    return status;
  }

  // Tells the coordinator, once, that the session of somebody who had joined is over, and why.
  void Disconnect() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status why = absl::UnavailableError("its stream ended");
    {
      absl::MutexLock lock(&mutex_);
      if (!welcomed_ || disconnected_) return;
      disconnected_ = true;
      if (end_.has_value() && !end_->ok()) why = *end_;
    }
    members_->Disconnected(worker_id_, incarnation_, why);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (end_.has_value()) return;
    end_ = status;
    ended_at_ = absl::Now();
  }

  // Starts the next write, or finishes once nothing is left to write.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (welcomed_ && !outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.Take());
      return;
    }
    if (!end_.has_value()) return;
    finished_ = true;
    Finish(ToGrpcStatus(*end_));
  }

  const ServedRun& run_;
  Access& access_;
  const Runner& run_long_;
  grpc::CallbackServerContext& context_;  // Until Finish.
  const absl::StatusOr<Peer> peer_;
  const absl::Time opened_;
  // Touched by Take alone, which never overlaps with itself.
  v1::WorkerMessage incoming_;
  // Written by them before welcomed_ is set, read by all after that.
  Members* members_ = nullptr;
  std::string worker_id_;
  uint64_t incarnation_ = 0;  // 0: not joined yet.

  absl::Mutex mutex_;
  SessionOutbox outgoing_ ABSL_GUARDED_BY(mutex_) = SessionOutbox(kMaxQueuedBytes);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool disconnected_ ABSL_GUARDED_BY(mutex_) = false;  // The coordinator knows of the end.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  absl::Time ended_at_ ABSL_GUARDED_BY(mutex_);  // When end_ was set.
};

class ModelReactor final
    : public SelfOwned<ModelReactor, grpc::ServerReadReactor<v1::BringModelRequest>> {
 public:
  ModelReactor(SessionService& service, grpc::CallbackServerContext& context,
               absl::StatusOr<Peer> peer)
      : service_(service), context_(context), peer_(std::move(peer)), last_(absl::Now()) {}
  ~ModelReactor() override {
    if (assembly_ == nullptr || assembly_->received_bytes() == 0 ||
        assembly_->received_bytes() == header_.total_bytes()) {
      return;
    }
    service_.Keep({.header = std::move(header_), .assembly = std::move(assembly_)});
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
    const absl::Status status = service_.access_.CheckStillValid(*peer_);
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
    RETURN_IF_ERROR(service_.access_.CheckWorker(*peer_, Action::kAttach, header.worker_id()));
    RETURN_IF_ERROR(service_.access_.CheckRegion(*peer_, /*is_region=*/false));
    if (header.wire_version() != kWireVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "wire_version differs: the site has ", header.wire_version(), ", the coordinator ",
          kWireVersion, "; install the coordinator's release (", kSoftwareVersion, ") there"));
    }
    ASSIGN_OR_RETURN(model_, service_.run_.AdmitModel(header));
    RETURN_IF_ERROR(service_.options_.check_room(model_.plan));
    header_ = header;
    assembly_ = service_.TakeKept(header_);
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
    service_.options_.run_long([self = shared_from_this()] { self->End(self->BeginRun()); });
  }

  absl::Status BeginRun() {
    ASSIGN_OR_RETURN(std::vector<float> values, assembly_->Finish(model_.plan));
    if (ended()) return absl::CancelledError("the site's stream broke");
    return service_.run_.BeginWith(std::move(model_), std::move(values), service_.options_.ready);
  }

  SessionService& service_;
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

SessionService::~SessionService() = default;

grpc::ServerUnaryReactor* SessionService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeRequest* request,
                                                   v1::DescribeResponse* response) {
  const absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kDescribe);
  absl::Status status = peer.status();
  if (status.ok() && !request->region_id().empty()) {
    status = access_.CheckWorker(*peer, Action::kAttach, request->region_id());
    if (status.ok()) status = access_.CheckRegion(*peer, /*is_region=*/true);
  }
  if (status.ok() && request->wire_version() != kWireVersion) {
    status = absl::FailedPreconditionError(
        absl::StrCat("wire_version differs: the worker has ", request->wire_version(),
                     ", the coordinator ", kWireVersion, "; install the coordinator's release (",
                     kSoftwareVersion, ") on the worker"));
  }
  if (status.ok()) *response = run_.Describe();
  return FinishWith(context, status);
}

grpc::ServerReadReactor<v1::BringModelRequest>* SessionService::BringModel(
    grpc::CallbackServerContext* context, v1::BringModelResponse* /*response*/) {
  absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kAttach);
  absl::MutexLock lock(&opening_);
  if (peer.ok() && std::ssize(models_.All()) >= kMaxStreams) {
    peer = absl::ResourceExhaustedError(absl::StrCat(
        kMaxStreams, " sites are bringing a model already: describe the run again later"));
  }
  const bool takes = peer.ok();
  ModelReactor* const reactor = ModelReactor::Make(*this, *context, std::move(peer));
  if (takes) models_.Add(*reactor);
  return reactor;
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* SessionService::Attach(
    grpc::CallbackServerContext* context) {
  TellRun(*context, run_.run_id());
  SessionReactor* const reactor = SessionReactor::Make(run_, access_, options_.run_words, *context,
                                                       access_.Admit(*context, Action::kAttach));
  sessions_.Add(*reactor);
  return reactor;
}

void SessionService::Keep(Part part) {
  part.since = absl::Now();
  absl::MutexLock lock(&mutex_);
  std::swap(kept_, part);
}

std::unique_ptr<ModelAssembly> SessionService::TakeKept(const v1::ModelHeader& header) {
  absl::MutexLock lock(&mutex_);
  if (kept_.assembly == nullptr ||
      !google::protobuf::util::MessageDifferencer::Equals(kept_.header, header)) {
    return nullptr;
  }
  return std::exchange(kept_, {}).assembly;
}

void SessionService::Tick() {
  for (const auto& session : sessions_.All()) session->Tick(options_.join_timeout);
  const bool has_model = run_.coordinator() != nullptr;
  Part dropped;
  {
    absl::MutexLock lock(&mutex_);
    const bool drop = has_model || absl::Now() - kept_.since > kKeepPart;
    if (kept_.assembly != nullptr && drop) dropped = std::exchange(kept_, {});
  }
  for (const auto& model : models_.All()) {
    if (has_model && model->StandsStillSince(absl::InfiniteFuture())) {
      model->End(run_.AdmitModel({}).status());
    } else if (model->StandsStillSince(absl::Now() - options_.stall)) {
      model->End(absl::DeadlineExceededError(
          absl::StrCat("nothing of the model came for ", absl::FormatDuration(options_.stall))));
    }
  }
}

void SessionService::EndRevokedStreams() {
  for (const auto& session : sessions_.All()) session->CloseIfRevoked();
  for (const auto& model : models_.All()) model->EndIfRevoked();
}

namespace {

size_t MemoryOf(const v1::CoordinatorMessage& message) { return message.SpaceUsedLong(); }

bool ReplacesItsLike(const v1::CoordinatorMessage& message) {
  return message.has_roster() || message.has_lease_renewed();
}

}  // namespace

bool SessionOutbox::Add(const v1::CoordinatorMessage& message) {
  if (ReplacesItsLike(message)) {
    const auto former = std::ranges::find_if(waiting_, [&](const Waiting& one) {
      return one.message.message_case() == message.message_case();
    });
    if (former != waiting_.end()) {
      bytes_ -= former->bytes;
      waiting_.erase(former);
    }
  }
  const size_t bytes = MemoryOf(message);
  if (bytes > max_bytes_ - std::min(bytes_, max_bytes_)) return false;
  waiting_.push_back({message, bytes});
  bytes_ += bytes;
  return true;
}

void SessionOutbox::AddFirst(v1::CoordinatorMessage message) {
  const size_t bytes = MemoryOf(message);
  waiting_.push_front({std::move(message), bytes});
  bytes_ += bytes;
}

const v1::CoordinatorMessage& SessionOutbox::Take() {
  taken_ = std::move(waiting_.front().message);
  bytes_ -= waiting_.front().bytes;
  waiting_.pop_front();
  return taken_;
}

void SessionOutbox::Clear() {
  waiting_.clear();
  bytes_ = 0;
}

}  // namespace causeway::server
