// An HTTP/2 proxy between a client and a coordinator that ends calls in its own words.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"

namespace causeway {

// Plaintext, on loopback. Thread-safe.
class FaultyProxy final : public grpc::CallbackGenericService {
 public:
  // When a call is ended.
  enum class Moment {
    kAtOnce,       // Nothing of it reaches the coordinator.
    kAfterAnswer,  // The coordinator has answered something, which still comes through.
    kInsteadOfIt,  // The coordinator's first answer is lost: it has done what was asked.
    kWithAPage,    // The same, and an empty message comes: what gRPC makes of a page of HTML.
  };

  // `target`: HOST:PORT of the coordinator.
  explicit FaultyProxy(const std::string& target);
  // All calls have ended.
  ~FaultyProxy() override;

  const std::string& address() const { return address_; }
  // The next call of that method ("/causeway.v1.Session/Attach") ends so; of a call that is under
  // way the next message from the coordinator counts as its first answer. `status` goes over as it
  // is: ToGrpcStatus makes it the coordinator's.
  void Fail(const std::string& method, Moment moment, const grpc::Status& status);
  // Whether that has happened.
  bool Failed();

 private:
  class Call;
  struct Fault {
    std::string method;
    Moment moment;
    grpc::Status status;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
  // The fault, once, if it is this method's and this moment's.
  std::optional<grpc::Status> Take(const std::string& method, Moment moment);

  std::unique_ptr<grpc::GenericStub> stub_;
  absl::Mutex mutex_;
  std::optional<Fault> fault_ ABSL_GUARDED_BY(mutex_);
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace causeway
