#include "tests/unit/worker/link/fake_exchange_service.h"

#include <cstring>
#include <utility>

#include "common/base/checksum.h"
#include "common/rpc/wire.h"

namespace causeway::worker {

using Verdict = FakeExchangeService::Verdict;

class FakeExchangeService::PushReactor final : public grpc::ServerReadReactor<v1::PushRequest> {
 public:
  PushReactor(FakeExchangeService* service, v1::PushResponse* response)
      : service_(service), response_(response) {
    StartRead(&request);
  }
  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&service_->mutex_);
    if (finished) return;
    if (!ok) return End({grpc::StatusCode::CANCELLED, "the worker went away"});
    if (request.has_header()) {
      service_->TakeHeader(*this);
    } else {
      service_->TakeChunk(*this);
    }
  }
  void OnCancel() override {
    absl::MutexLock lock(&service_->mutex_);
    if (!finished) End({grpc::StatusCode::CANCELLED, "the worker went away"});
  }
  void OnDone() override {
    const std::unique_ptr<PushReactor> self(this);
    absl::MutexLock lock(&service_->mutex_);
    service_->push_holds_.erase(this);
    const auto object = service_->objects_.find(header.fragment());
    if (object != service_->objects_.end()) object->second.streams.erase(this);
  }
  void ReadOn() { StartRead(&request); }
  void End(const grpc::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    finished = true;
    if (status.ok()) {
      response_->set_durable_bytes(header.total_bytes() - service_->acknowledge_less_);
    }
    Finish(status);
  }

  v1::PushRequest request;
  v1::PushHeader header;
  bool finished = false;

 private:
  FakeExchangeService* const service_;
  v1::PushResponse* const response_;
};

class FakeExchangeService::PullReactor final : public grpc::ServerWriteReactor<v1::PullResponse> {
 public:
  PullReactor(FakeExchangeService* service, v1::PullRequest asked)
      : request(std::move(asked)), service_(service) {}
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&service_->mutex_);
    if (finished) return;
    if (!ok) return End({grpc::StatusCode::CANCELLED, "the worker went away"});
    service_->SendNext(*this);
  }
  void OnCancel() override {
    absl::MutexLock lock(&service_->mutex_);
    const bool idle = service_->waiting_.erase(this) + service_->pull_holds_.erase(this) > 0;
    if (idle && !finished) End({grpc::StatusCode::CANCELLED, "the worker went away"});
  }
  void OnDone() override { const std::unique_ptr<PullReactor> self(this); }
  void Send() { StartWrite(&response); }
  void End(const grpc::Status& status) {
    finished = true;
    Finish(status);
  }

  const v1::PullRequest request;
  v1::PullResponse response;
  bool has_header = false;
  bool finished = false;

 private:
  FakeExchangeService* const service_;
};

void FakeExchangeService::SetPushHook(PushHook hook) {
  absl::MutexLock lock(&mutex_);
  push_hook_ = std::move(hook);
}

void FakeExchangeService::SetPullHook(PullHook hook) {
  absl::MutexLock lock(&mutex_);
  pull_hook_ = std::move(hook);
}

void FakeExchangeService::AcceptPushes() {
  absl::MutexLock lock(&mutex_);
  push_refusals_.clear();
}

void FakeExchangeService::RefuseNextPush(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  push_refusals_.push_back(status);
}

void FakeExchangeService::RefuseNextPull(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  pull_refusals_.push_back(status);
}

void FakeExchangeService::AcknowledgeLess(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  acknowledge_less_ = bytes;
}

void FakeExchangeService::DoNotAnswer() {
  absl::MutexLock lock(&mutex_);
  answers_ = false;
}

void FakeExchangeService::Hold(int fragment, int64_t total_bytes,
                               const std::vector<int64_t>& chunks) {
  absl::MutexLock lock(&mutex_);
  Object& object = objects_[fragment];
  object.held = ChunkSet(total_bytes);
  object.bytes.resize(static_cast<size_t>(total_bytes));
  for (const int64_t chunk : chunks) object.held.Add(chunk);
}

std::vector<v1::PushHeader> FakeExchangeService::headers() const {
  absl::MutexLock lock(&mutex_);
  return headers_;
}

std::vector<std::pair<int, int64_t>> FakeExchangeService::pushed() const {
  absl::MutexLock lock(&mutex_);
  return pushed_;
}

int FakeExchangeService::held_pushed_again() const {
  absl::MutexLock lock(&mutex_);
  return held_pushed_again_;
}

std::string FakeExchangeService::object(int fragment) const {
  absl::MutexLock lock(&mutex_);
  return objects_.at(fragment).bytes;
}

int FakeExchangeService::queries() const {
  absl::MutexLock lock(&mutex_);
  return queries_;
}

std::vector<v1::PullRequest> FakeExchangeService::pulls() const {
  absl::MutexLock lock(&mutex_);
  return pulls_;
}

std::vector<int64_t> FakeExchangeService::pulled() const {
  absl::MutexLock lock(&mutex_);
  return pulled_;
}

void FakeExchangeService::AwaitPushed(size_t chunks) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return pushed_.size() >= chunks; };
  mutex_.Await(absl::Condition(&there));
}

void FakeExchangeService::AwaitHeaders(size_t headers) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]()
                         ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return headers_.size() >= headers; };
  mutex_.Await(absl::Condition(&there));
}

void FakeExchangeService::AwaitPulls(size_t pulls) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return pulls_.size() >= pulls; };
  mutex_.Await(absl::Condition(&there));
}

void FakeExchangeService::AwaitQueries(int queries) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return queries_ >= queries; };
  mutex_.Await(absl::Condition(&there));
}

void FakeExchangeService::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
  for (PushReactor* const stream : std::exchange(push_holds_, {})) stream->ReadOn();
  for (PullReactor* const stream : std::exchange(pull_holds_, {})) SendNext(*stream);
}

grpc::ServerReadReactor<v1::PushRequest>* FakeExchangeService::Push(grpc::CallbackServerContext*,
                                                                    v1::PushResponse* response) {
  return std::make_unique<PushReactor>(this, response).release();  // Until its OnDone.
}

void FakeExchangeService::TakeHeader(PushReactor& stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  stream.header = stream.request.header();
  headers_.push_back(stream.header);
  if (!push_refusals_.empty()) {
    const grpc::Status refusal = push_refusals_.front();
    push_refusals_.pop_front();
    return stream.End(refusal);
  }
  Object& object = objects_[stream.header.fragment()];
  if (object.bytes.empty()) {
    object.held = ChunkSet(stream.header.total_bytes());
    object.bytes.resize(static_cast<size_t>(stream.header.total_bytes()));
  }
  object.streams.insert(&stream);
  if (object.held.complete() && answers_) return FinishAll(object);
  stream.ReadOn();
}

void FakeExchangeService::TakeChunk(PushReactor& stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Object& object = objects_[stream.header.fragment()];
  const v1::Chunk& chunk = stream.request.chunk();
  const int64_t index = chunk.offset() / static_cast<int64_t>(kChunkBytes);
  if (object.held.Holds(index)) ++held_pushed_again_;
  pushed_.emplace_back(stream.header.fragment(), index);
  const Verdict verdict = push_hook_ ? push_hook_(stream.header, index) : Verdict{};
  if (verdict.what == Verdict::kEnd) return stream.End(verdict.status);
  if (chunk.unpacked_bytes() == 0) {
    std::memcpy(object.bytes.data() + chunk.offset(), chunk.data().data(), chunk.data().size());
  }
  object.held.Add(index);
  if (object.held.complete() && answers_) return FinishAll(object);
  if (verdict.what == Verdict::kHold && !released_) {
    push_holds_.insert(&stream);
  } else {
    stream.ReadOn();
  }
}

void FakeExchangeService::FinishAll(Object& object) {
  for (PushReactor* const stream : object.streams) {
    if (!stream->finished) stream->End(grpc::Status::OK);
  }
}

grpc::ServerUnaryReactor* FakeExchangeService::QueryTransfer(
    grpc::CallbackServerContext* context, const v1::QueryTransferRequest* request,
    v1::QueryTransferResponse* response) {
  {
    absl::MutexLock lock(&mutex_);
    ++queries_;
    const auto found = objects_.find(request->fragment());
    response->set_state(v1::QueryTransferResponse::UNKNOWN);
    if (found != objects_.end()) {
      const ChunkSet& held = found->second.held;
      response->set_state(held.complete() ? v1::QueryTransferResponse::ACCEPTED
                                          : v1::QueryTransferResponse::PARTIAL);
      response->set_durable_bytes(held.held_bytes());
      response->set_held_chunks(held.ToWire());
    }
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

void FakeExchangeService::Publish(const v1::PullHeader& header, std::string bytes) {
  absl::MutexLock lock(&mutex_);
  pull_header_ = std::make_shared<v1::PullHeader>(header);
  pull_bytes_ = std::move(bytes);
  groups_.clear();
  for (PullReactor* const stream : std::exchange(waiting_, {})) SendNext(*stream);
}

grpc::ServerWriteReactor<v1::PullResponse>* FakeExchangeService::Pull(
    grpc::CallbackServerContext*, const v1::PullRequest* request) {
  auto* const stream = std::make_unique<PullReactor>(this, *request).release();
  absl::MutexLock lock(&mutex_);
  pulls_.push_back(*request);
  if (!pull_refusals_.empty()) {
    stream->End(pull_refusals_.front());
    pull_refusals_.pop_front();
  } else if (pull_header_ == nullptr) {
    waiting_.insert(stream);
  } else {
    SendNext(*stream);
  }
  return stream;
}

void FakeExchangeService::SendNext(PullReactor& stream) {
  if (!stream.has_header) {
    stream.has_header = true;
    *stream.response.mutable_header() = *pull_header_;
    return stream.Send();
  }
  const auto total = static_cast<int64_t>(pull_bytes_.size());
  const auto [dealt, first] = groups_.try_emplace(stream.request.stripe_group());
  if (first) dealt->second = *ChunkSet::FromWire(total, stream.request.held_chunks());
  const int64_t chunk = dealt->second.FirstMissing();
  if (chunk == dealt->second.chunks()) return stream.End(grpc::Status::OK);
  dealt->second.Add(chunk);
  const Verdict verdict = pull_hook_ ? pull_hook_(stream.request, chunk) : Verdict{};
  if (verdict.what == Verdict::kEnd) return stream.End(verdict.status);
  if (verdict.what == Verdict::kHold && !released_) {
    pull_holds_.insert(&stream);
    return;
  }
  pulled_.push_back(chunk);
  v1::Chunk& message = *stream.response.mutable_chunk();
  message.set_offset(ChunkSet::Offset(chunk));
  message.set_data(pull_bytes_.substr(static_cast<size_t>(ChunkSet::Offset(chunk)), kChunkBytes));
  message.set_checksum(Checksum64(absl::string_view(message.data())));
  if (verdict.what == Verdict::kDamage) ++(*message.mutable_data())[0];
  stream.Send();
}

}  // namespace causeway::worker
