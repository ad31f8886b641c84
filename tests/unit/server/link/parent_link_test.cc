#include "server/link/parent_link.h"

#include <grpcpp/grpcpp.h>

#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::server {
namespace {

// A parent that describes its run as the test says.
class DescribingParent final : private v1::Session::Service {
 public:
  explicit DescribingParent(v1::DescribeResponse run, grpc::Status status = grpc::Status::OK)
      : run_(std::move(run)), status_(std::move(status)) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, {});
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::Session::Service*>(this));
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~DescribingParent() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest* request,
                        v1::DescribeResponse* response) override {
    EXPECT_EQ(request->wire_version(), kWireVersion);
    *response = run_;
    return status_;
  }

  const v1::DescribeResponse run_;
  const grpc::Status status_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::DescribeResponse HubsRun(const std::string& changes = "") {
  v1::DescribeResponse run;
  run.set_run_id("run-1");
  run.set_wire_version(kWireVersion);
  run.set_software_version("9.9.9");
  v1::RunConfig& config = *run.mutable_config();
  config = CompleteSmallConfig("membership { max_workers: 80 } " + changes);
  run.set_config_hash(RunConfigHash(config));
  run.set_plan_hash(FragmentPlan::Create(config)->hash());
  return run;
}

absl::StatusOr<ReachedRun> Reach(const v1::DescribeResponse& run, int sites = 4,
                                 const grpc::Status& status = grpc::Status::OK) {
  const DescribingParent parent(run, status);
  ParentOptions options;
  options.address = parent.address();
  options.region_id = "eu";
  options.sites = sites;
  return ReachParent(options);
}

void ExpectRefused(const absl::StatusOr<ReachedRun>& reached, const std::vector<std::string>& words,
                   absl::StatusCode code = kFailedPrecondition) {
  for (const std::string& word : words) {
    EXPECT_THAT(reached, StatusIs(code, testing::HasSubstr(word)));
  }
}

TEST(ReachParentTest, AHubAndARegionAreParents) {
  v1::DescribeResponse run = HubsRun();
  auto reached = Reach(run).value();
  EXPECT_EQ(reached.run.run_id(), "run-1");
  run.add_regions("us");
  EXPECT_TRUE(Reach(run).ok());
}

TEST(ReachParentTest, ARegionHasANameAndSites) {
  ParentOptions options;
  options.address = "127.0.0.1:1";
  options.sites = 1;
  ExpectRefused(ReachParent(options), {"--region_id"}, kInvalidArgument);
  options.region_id = "eu";
  options.sites = 0;
  ExpectRefused(ReachParent(options), {"--sites=N"}, kInvalidArgument);
}

TEST(ReachParentTest, WhatStandsBeforeAParentIsNamed) {
  std::string gone;
  {
    const DescribingParent parent(HubsRun());
    gone = parent.address();
  }
  ParentOptions options;
  options.address = gone;
  options.region_id = "eu";
  options.sites = 1;
  options.connect_timeout = absl::Milliseconds(20);
  ExpectRefused(ReachParent(options), {gone + " refuses the connection: nothing listens there"},
                kUnavailable);
  setenv("grpc_proxy", absl::StrCat("http://", gone).c_str(), /*overwrite=*/1);
  setenv("no_grpc_proxy", "elsewhere", /*overwrite=*/1);
  ExpectRefused(ReachParent(options),
                {absl::StrCat("the proxy ", gone, " (grpc_proxy) refuses the connection"),
                 "unset grpc_proxy"},
                kUnavailable);
  unsetenv("grpc_proxy");
  unsetenv("no_grpc_proxy");
}

TEST(ReachParentTest, ARunThatThisRegionCannotBePartOfIsRefused) {
  const auto refused = [](auto change, const std::vector<std::string>& words) {
    v1::DescribeResponse run = HubsRun();
    change(run);
    ExpectRefused(Reach(run), words);
  };
  refused([](auto& run) { run.set_plan_hash(run.plan_hash() + 1); },
          {"other fragments", "9.9.9", "the same release on both"});
  refused([](auto& run) { run.set_config_hash(run.config_hash() + 1); },
          {"configuration otherwise", "9.9.9", "the same release on both"});
  refused([](auto& run) { run.add_regions("eu"), run.add_regions("west"); },
          {"below this region", "eu > west", "must not form a ring"});
  refused([](auto& run) { run.set_awaits_model(true); },
          {"waits for its model", "when the first site has brought it"});
}

TEST(ReachParentTest, AParentOfAnotherWireVersionSaysSo) {
  ExpectRefused(
      Reach(HubsRun(), 4,
            ToGrpcStatus(absl::FailedPreconditionError("wire_version differs: install 9.9.9"))),
      {"the coordinator at 127.0.0.1:", "wire_version", "install 9.9.9"});
}

TEST(ReachParentTest, ARegionHasNoMoreSitesThanFit) {
  ExpectRefused(Reach(HubsRun(), 81), {"--sites=81", "80", "membership.max_workers"});
  ExpectRefused(Reach(HubsRun(), 65), {"--sites=65", "a region 64 at most"});
  EXPECT_TRUE(Reach(HubsRun(), 64).ok());
}

TEST(ReachParentTest, ARegionWeighsAsItsTokens) {
  ExpectRefused(Reach(HubsRun("membership { weighting: UNIFORM }")), {"UNIFORM", "TOKENS"});
}

}  // namespace
}  // namespace causeway::server
