#include "tests/unit/common/rpc/faulty_proxy.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/rpc/channel.h"
#include "gtest/gtest.h"

namespace causeway {

// One message at a time in each direction. Both sides own it until they are done.
class FaultyProxy::Call final : public grpc::ServerGenericBidiReactor {
 public:
  static Call* Make(FaultyProxy& proxy, grpc::GenericCallbackServerContext& context) {
    const auto call = std::make_shared<Call>(proxy, context);
    call->of_client_ = call->of_coordinator_ = call;
    call->Start();
    return call.get();
  }
  Call(FaultyProxy& proxy, grpc::GenericCallbackServerContext& context)
      : proxy_(proxy), context_(context), method_(context.method()), upstream_(*this) {
    upstream_context_.set_deadline(context.deadline());
  }

  void Start() {
    const std::optional<grpc::Status> fault = proxy_.Take(method_, Moment::kAtOnce);
    if (fault.has_value()) {
      of_coordinator_ = nullptr;
      absl::MutexLock lock(&mutex_);
      ended_ = is_over_ = true;
      Finish(*fault);
      return;
    }
    proxy_.stub_->PrepareBidiStreamingCall(&upstream_context_, method_, {}, &upstream_);
    upstream_.AddHold();
    upstream_.StartRead(&down_);
    upstream_.StartCall();
    StartRead(&up_);
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (is_over_) return;
    if (ok) {
      upstream_.StartWrite(&up_);
    } else {
      upstream_.StartWritesDone();
    }
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (ok && !is_over_) upstream_.StartRead(&down_);
  }
  void OnCancel() override {
    upstream_context_.TryCancel();
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override { const std::shared_ptr<Call> last = std::move(of_client_); }

 private:
  class Upstream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Upstream(Call& call) : call_(call) {}
    void OnReadInitialMetadataDone(bool ok) override {
      absl::MutexLock lock(&call_.mutex_);
      if (!ok || call_.ended_) return;
      bool is_told = false;
      for (const auto& [key, value] : call_.upstream_context_.GetServerInitialMetadata()) {
        if (absl::string_view(key.data(), key.size()).substr(0, 8) != "causeway") continue;
        call_.context_.AddInitialMetadata(std::string(key.data(), key.size()),
                                          std::string(value.data(), value.size()));
        is_told = true;
      }
      // Those of other calls go with the first message.
      if (is_told) call_.StartSendInitialMetadata();
    }
    void OnReadDone(bool ok) override {
      if (ok) return call_.Answer();
      absl::MutexLock lock(&call_.mutex_);
      call_.LetGo();  // It says in OnDone why nothing comes any more.
    }
    void OnWriteDone(bool ok) override {
      absl::MutexLock lock(&call_.mutex_);
      if (ok && !call_.ended_ && !call_.is_over_) call_.StartRead(&call_.up_);
    }
    void OnDone(const grpc::Status& status) override {
      std::optional<grpc::Status> fault;
      if (status.ok()) fault = call_.proxy_.Take(call_.method_, Moment::kInsteadOfIt);
      call_.End(fault.value_or(status));
      const std::shared_ptr<Call> last = std::move(call_.of_coordinator_);
    }

   private:
    Call& call_;
  };

  // A message of the coordinator's has come.
  void Answer() {
    if (const auto fault = proxy_.Take(method_, Moment::kInsteadOfIt)) {
      End(*fault);
      upstream_context_.TryCancel();
      return;
    }
    auto fault = proxy_.Take(method_, Moment::kAfterAnswer);
    if (!fault.has_value()) {
      fault = proxy_.Take(method_, Moment::kWithAPage);
      const grpc::Slice nothing;
      if (fault.has_value()) down_ = grpc::ByteBuffer(&nothing, 1);
    }
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (!fault.has_value()) {
      StartWrite(&down_);
      return;
    }
    StartWriteAndFinish(&down_, {}, *fault);
    ended_ = true;
    LetGo();
    upstream_context_.TryCancel();
  }
  void End(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    Finish(status);
    ended_ = true;
    LetGo();
  }
  // No operation of the coordinator's side is started any more.
  void LetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!std::exchange(is_over_, true)) upstream_.RemoveHold();
  }

  FaultyProxy& proxy_;
  grpc::GenericCallbackServerContext& context_;  // Until it has ended.
  const std::string method_;
  grpc::ClientContext upstream_context_;
  Upstream upstream_;
  grpc::ByteBuffer up_;
  grpc::ByteBuffer down_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // Towards the client.
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // Towards the coordinator.
  std::shared_ptr<Call> of_client_;
  std::shared_ptr<Call> of_coordinator_;
};

FaultyProxy::FaultyProxy(const std::string& target)
    : stub_(std::make_unique<grpc::GenericStub>(
          MakeChannel(target, 0, ChannelSecurity::Plaintext()))) {
  grpc::ServerBuilder builder;
  ConfigureServer(builder, {});
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FaultyProxy::~FaultyProxy() { server_->Shutdown(std::chrono::system_clock::now()); }

void FaultyProxy::Fail(const std::string& method, Moment moment, const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  fault_ = Fault{method, moment, status};
}

bool FaultyProxy::Failed() {
  absl::MutexLock lock(&mutex_);
  return !fault_.has_value();
}

std::optional<grpc::Status> FaultyProxy::Take(const std::string& method, Moment moment) {
  absl::MutexLock lock(&mutex_);
  if (!fault_.has_value() || fault_->method != method || fault_->moment != moment) {
    return std::nullopt;
  }
  return std::exchange(fault_, std::nullopt)->status;
}

grpc::ServerGenericBidiReactor* FaultyProxy::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  return Call::Make(*this, *context);
}

}  // namespace causeway
