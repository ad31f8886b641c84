// A coordinator whose answers a test writes, behind a real connection on this machine.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/client/session.h"

namespace causeway {

class FakeCoordinator final : private v1::Session::Service {
 public:
  FakeCoordinator();
  ~FakeCoordinator() override;

  Session::Options SessionOptions();

  // Ends the next call with that status, as that run's coordinator; calls succeed otherwise.
  void RefuseNextAttach(const grpc::Status& status, const std::string& run_id = "");

  // Cancels the present session's stream, as a server does that stops.
  void BreakSession();
  void Send(const v1::CoordinatorMessage& message);

  // Waits for the first message that fits, of any session so far.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& fits);
  std::vector<v1::WorkerMessage> Joins();

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;
  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override;

  absl::Mutex mutex_;
  // By whose coordinator.
  std::deque<std::pair<grpc::Status, std::string>> attach_refusals_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  grpc::ServerContext* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<v1::Session::StubInterface> session_stub_;
};

}  // namespace causeway
