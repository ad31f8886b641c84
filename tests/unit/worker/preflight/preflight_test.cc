// The whole preflight against servers that are not quite coordinators.
#include "worker/preflight/preflight.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

// A coordinator of a later release.
class LaterProbe final : public v1::Probe::Service {
 public:
  grpc::Status Echo(grpc::ServerContext*, const v1::EchoRequest*,
                    v1::EchoResponse* response) override {
    response->set_wire_version(kWireVersion + 1);
    response->set_software_version("9.9.9");
    response->set_unix_us(absl::ToUnixMicros(absl::Now()));
    return grpc::Status::OK;
  }
};

class OnlySession final : public v1::Session::Service {};

std::unique_ptr<grpc::Server> Serve(grpc::Service& service, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

std::vector<CheckResult> Preflight(const std::string& coordinator) {
  PreflightOptions options;
  options.coordinator = coordinator;
  options.threads = 1;
  options.connections = 1;
  options.probe_time = absl::ZeroDuration();
  size_t shown = 0;
  std::vector<CheckResult> results =
      RunPreflight(options, *FileSystem::Real(), *Clock::Real(),
                   {.result = [&](const CheckResult&) { ++shown; }, .progress = nullptr});
  EXPECT_EQ(shown, results.size());
  return results;
}

const CheckResult& Find(const std::vector<CheckResult>& results, const std::string& name) {
  for (const CheckResult& result : results) {
    if (result.name == name) return result;
  }
  ADD_FAILURE() << "no check named " << name;
  return results[0];
}

TEST(Preflight, ALaterReleaseFailsByVersionAndTheRestGoesOn) {
  LaterProbe probe;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve(probe, port);
  const std::vector<CheckResult> results = Preflight(absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(Find(results, "coordinator").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "version").status, CheckStatus::kFailed);
  EXPECT_EQ(Find(results, "version").remedy, "install release 9.9.9 here");
  EXPECT_EQ(Find(results, "configuration").status, CheckStatus::kSkipped);
  EXPECT_EQ(Find(results, "clock").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "devices").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "link").status, CheckStatus::kSkipped);
}

TEST(Preflight, AnotherGrpcServiceIsToldApart) {
  OnlySession session;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve(session, port);
  const std::vector<CheckResult> results = Preflight(absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(Find(results, "protocol").status, CheckStatus::kOk);
  EXPECT_THAT(Find(results, "coordinator").finding, HasSubstr("knows nothing of causeway"));
  EXPECT_EQ(Find(results, "identity").status, CheckStatus::kSkipped);
}

TEST(Preflight, NobodyAtThePortStillLooksAtTheSite) {
  std::string address;
  {
    const Listener gone;
    address = gone.address();
  }
  const std::vector<CheckResult> results = Preflight(address);
  EXPECT_EQ(Find(results, "tcp").status, CheckStatus::kFailed);
  EXPECT_EQ(Find(results, "protocol").status, CheckStatus::kSkipped);
  EXPECT_EQ(Find(results, "coordinator").status, CheckStatus::kSkipped);
  EXPECT_EQ(Find(results, "disk").finding, "no --out was given");
  EXPECT_NE(Find(results, "devices").status, CheckStatus::kSkipped);
}

}  // namespace
}  // namespace causeway::worker
