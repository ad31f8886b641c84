#include "tests/unit/common/client/fake_coordinator.h"

#include <chrono>

#include "gtest/gtest.h"

namespace causeway {

FakeCoordinator::FakeCoordinator() {
  grpc::ServerBuilder builder;
  ConfigureServer(builder, {});
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::Session::Service*>(this));
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
  session_stub_ = v1::Session::NewStub(MakeChannel(address_, 0, ChannelSecurity::Plaintext()));
}

FakeCoordinator::~FakeCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

Session::Options FakeCoordinator::SessionOptions() {
  Session::Options options;
  options.stub_of_now = [stub = session_stub_] { return stub; };
  options.join.set_worker_id("a");
  return options;
}

void FakeCoordinator::RefuseNextAttach(const grpc::Status& status, const std::string& run_id) {
  absl::MutexLock lock(&mutex_);
  attach_refusals_.emplace_back(status, run_id);
}

void FakeCoordinator::BreakSession() {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(session_, nullptr);
  session_->TryCancel();
}

void FakeCoordinator::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(stream_, nullptr);
  stream_->Write(message);
}

v1::WorkerMessage FakeCoordinator::Await(
    const std::function<bool(const v1::WorkerMessage&)>& fits) {
  absl::MutexLock lock(&mutex_);
  auto found = messages_.end();
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    found = std::find_if(messages_.begin(), messages_.end(), fits);
    return found != messages_.end();
  };
  mutex_.Await(absl::Condition(&there));
  return *found;
}

std::vector<v1::WorkerMessage> FakeCoordinator::Joins() {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WorkerMessage> joins;
  std::copy_if(messages_.begin(), messages_.end(), std::back_inserter(joins),
               [](const v1::WorkerMessage& message) { return message.has_join(); });
  return joins;
}

grpc::Status FakeCoordinator::Attach(grpc::ServerContext* context, Stream* stream) {
  v1::WorkerMessage message;
  if (!stream->Read(&message)) return grpc::Status::OK;
  {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
    if (!attach_refusals_.empty()) {
      const auto [refusal, run_id] = attach_refusals_.front();
      attach_refusals_.pop_front();
      TellRun(*context, run_id);
      return refusal;
    }
    v1::CoordinatorMessage answer;
    answer.mutable_welcome()->set_incarnation(++incarnation_);
    answer.mutable_welcome()->set_lease_ms(3'600'000);
    stream->Write(answer);
    session_ = context;
    stream_ = stream;
  }
  while (stream->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
  }
  absl::MutexLock lock(&mutex_);
  session_ = nullptr;
  stream_ = nullptr;
  return grpc::Status::OK;
}

}  // namespace causeway
