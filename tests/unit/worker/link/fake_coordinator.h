// A coordinator whose answers a test writes, behind a real connection on this machine.
#ifndef CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_COORDINATOR_H_
#define CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_COORDINATOR_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "worker/link/session.h"

namespace causeway::worker {

class FakeCoordinator final : private v1::Session::Service, private v1::Exchange::Service {
 public:
  using PullWriter = grpc::ServerWriter<v1::PullResponse>;
  using PullAnswer = std::function<grpc::Status(const v1::PullRequest&, PullWriter&)>;

  FakeCoordinator();
  ~FakeCoordinator() override;

  v1::Session::StubInterface& session_stub() { return *session_stub_; }
  v1::Exchange::StubInterface& exchange_stub() { return *exchange_stub_; }
  Session::Options SessionOptions();

  // What the next calls end with, in order; without one, a call succeeds.
  void RefuseNextAttach(const grpc::Status& status);
  void AnswerNextPush(const grpc::Status& status);
  void AnswerNextPull(PullAnswer answer);

  // Cancels the present session's stream, as a server does that stops.
  void BreakSession();
  void Send(const v1::CoordinatorMessage& message);

  // Waits for the first message that fits, of any session so far.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& fits);
  std::vector<v1::WorkerMessage> Joins();
  std::vector<v1::PushHeader> pushes();

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;
  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status Push(grpc::ServerContext* context, grpc::ServerReader<v1::PushRequest>* reader,
                    v1::PushResponse* response) override;
  grpc::Status Pull(grpc::ServerContext* context, const v1::PullRequest* request,
                    PullWriter* writer) override;

  absl::Mutex mutex_;
  std::deque<grpc::Status> attach_refusals_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::Status> push_answers_ ABSL_GUARDED_BY(mutex_);
  std::deque<PullAnswer> pull_answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::PushHeader> pushes_ ABSL_GUARDED_BY(mutex_);
  grpc::ServerContext* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Session::Stub> session_stub_;
  std::unique_ptr<v1::Exchange::Stub> exchange_stub_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_COORDINATOR_H_
