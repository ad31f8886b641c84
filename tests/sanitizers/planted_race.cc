// Races on purpose, to show that the thread sanitizer still finds them: two threads count without a
// lock.
//
//   planted_race thread      both are ours
//   planted_race callback    one is gRPC's, in the callback of a service: what is suppressed for
//   the
//                            library's sake must not cover what it calls
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "causeway/v1/session.grpc.pb.h"

namespace causeway {
namespace {

int64_t count = 0;

__attribute__((noinline)) void CountWithoutALock() { ++count; }

class RacingService final : public v1::Session::CallbackService {
 public:
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest*, v1::DescribeResponse*) override {
    CountWithoutALock();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void RaceInAThread() {
  std::thread other([] {
    for (int i = 0; i < 1000; ++i) CountWithoutALock();
  });
  for (int i = 0; i < 1000; ++i) CountWithoutALock();
  other.join();
}

void RaceInACallback() {
  RacingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::Session::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  std::atomic<bool> answered = false;
  std::thread caller([&] {
    for (int i = 0; i < 100; ++i) {
      grpc::ClientContext context;
      v1::DescribeResponse response;
      stub->Describe(&context, {}, &response);
    }
    answered = true;
  });
  // Seldom enough for the sanitizer to remember where an access was when it meets the other one.
  while (!answered) {
    CountWithoutALock();
    std::this_thread::yield();
  }
  caller.join();
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  const std::string place = argc == 2 ? argv[1] : "";
  if (place == "thread") {
    causeway::RaceInAThread();
  } else if (place == "callback") {
    causeway::RaceInACallback();
  } else {
    std::fprintf(stderr, "usage: planted_race thread|callback\n");
    return 2;
  }
  std::printf("%lld\n", static_cast<long long>(causeway::count));
  return 0;
}
