// The whole preflight against servers that are not quite coordinators.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/preflight/preflight.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

// A coordinator of a later release.
class LaterProbe final : public v1::Probe::Service {
 public:
  grpc::Status Echo(grpc::ServerContext*, const v1::EchoRequest*,
                    v1::EchoResponse* response) override {
    response->set_unix_us(absl::ToUnixMicros(absl::Now()));
    return grpc::Status::OK;
  }
};
class LaterSession final : public v1::Session::Service {
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest* request,
                        v1::DescribeResponse*) override {
    EXPECT_EQ(request->wire_version(), kWireVersion);
    return ToGrpcStatus(absl::FailedPreconditionError("wire_version differs"));
  }
};

std::unique_ptr<grpc::Server> Serve(const std::vector<grpc::Service*>& services, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* const service : services) builder.RegisterService(service);
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
  LaterSession session;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve({&probe, &session}, port);
  const std::vector<CheckResult> results = Preflight(absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(Find(results, "coordinator").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "configuration").status, CheckStatus::kFailed);
  EXPECT_EQ(Find(results, "configuration").finding, "wire_version differs");
  EXPECT_EQ(Find(results, "clock").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "devices").status, CheckStatus::kOk);
  EXPECT_EQ(Find(results, "link").status, CheckStatus::kSkipped);
}

TEST(Preflight, AnotherGrpcServiceIsToldApart) {
  v1::Session::Service session;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve({&session}, port);
  const std::vector<CheckResult> results = Preflight(absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(Find(results, "way").status, CheckStatus::kOk);
  EXPECT_THAT(Find(results, "coordinator").finding, HasSubstr("knows nothing of causeway"));
  EXPECT_EQ(Find(results, "identity").status, CheckStatus::kSkipped);
}

TEST(CheckResult, ALineHasTheMarkTheNameTheFindingAndBelowItTheRemedy) {
  EXPECT_EQ(FormatCheck(Passed("tcp", "connected")), "ok    tcp            connected");
  EXPECT_EQ(FormatCheck(Skipped("rate up", "needs a coordinator")),
            "-     rate up        needs a coordinator");
  EXPECT_EQ(FormatCheck(Failed("disk", "full", "make room")),
            "FAIL  disk           full\n                     -> make room");
  EXPECT_EQ(FormatCheck(Warned("clock", "off", "use NTP")),
            "warn  clock          off\n                     -> use NTP");
}

TEST(CheckResult, TheVerdictCountsAndSaysWhereToBegin) {
  const CheckResult ok = Passed("a", "");
  const CheckResult warning = Warned("b", "", "");
  const CheckResult failure = Failed("disk", "", "");
  const CheckResult other = Failed("data", "", "");
  EXPECT_EQ(FormatVerdict(std::vector{ok, ok}), "This site can join: 2 ok.");
  EXPECT_EQ(FormatVerdict(std::vector{ok, warning, Skipped("c", "")}),
            "This site can join: 1 ok, 1 warning, 1 not checked.");
  EXPECT_EQ(FormatVerdict(std::vector{ok, failure, warning, warning, other}),
            "This site cannot join yet: 2 failed, 1 ok, 2 warnings. Begin with \"disk\".");
  EXPECT_FALSE(AnyFailed(std::vector{ok, warning}));
  EXPECT_TRUE(AnyFailed(std::vector{ok, failure}));
}

TEST(CheckResult, NumbersAreWrittenWithThreeDigitsAndTheirUnit) {
  EXPECT_EQ(FormatRate(125e6), "1.00 Gbit/s");
  EXPECT_EQ(FormatRate(101.5e6), "812 Mbit/s");
  EXPECT_EQ(FormatRate(12.5), "0.10 kbit/s");
  EXPECT_EQ(FormatBytes(0), "0.00 B");
  EXPECT_EQ(FormatBytes(1.4e9), "1.40 GB");
  EXPECT_EQ(FormatBytes(66.54e9), "66.5 GB");
  EXPECT_EQ(FormatTime(absl::Milliseconds(101)), "101 ms");
  EXPECT_EQ(FormatTime(absl::Seconds(90)), "90.0 s");
  EXPECT_EQ(FormatTime(absl::Hours(48)), "48.0 h");
  EXPECT_EQ(FormatTime(absl::Minutes(5)), "5.00 min");
}

}  // namespace
}  // namespace causeway::worker
