#include "worker/link/grpc_exchange.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/link/fake_coordinator.h"

namespace causeway::worker {
namespace {

// One fragment of more than two chunks, FP32 both ways.
v1::RunConfig OneFragmentConfig() {
  v1::RunConfig config = ParseRunConfig(
                             "model { layers: 1 width: 128 heads: 2 mlp_width: 128 "
                             "vocabulary_size: 4096 sequence_length: 8 } "
                             "sync { steps_between_syncs: 5 }",
                             "test")
                             .value();
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  return config;
}

class GrpcExchangeTest : public ::testing::Test {
 protected:
  GrpcExchangeTest()
      : config_(OneFragmentConfig()),
        plan_(FragmentPlan::Create(config_).value()),
        object_(std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(plan_.arena_size()) *
                                                       sizeof(float))),
        session_(Session::Attach(coordinator_.SessionOptions()).value()),
        link_(coordinator_.LinkOptions(2)),
        exchange_({.link = &link_,
                   .session = session_.get(),
                   .plan = &plan_,
                   .run_id = "run-1",
                   .worker_id = "a",
                   .sync = config_.sync()}) {
    for (size_t i = 0; i < object_->size(); ++i) (*object_)[i] = static_cast<uint8_t>(i / 1000);
  }

  Contribution MakeContribution() {
    return {.fragment = 0,
            .round = 1,
            .tokens = 10,
            .draws = {{2, 4, 6}},
            .send_step = 5,
            .due_step = 7,
            .object = *object_,
            .leaves = {},
            .owner = object_};
  }

  FakeCoordinator coordinator_;
  const v1::RunConfig config_;
  const FragmentPlan plan_;
  const std::shared_ptr<std::vector<uint8_t>> object_;
  std::unique_ptr<Session> session_;
  Link link_;
  GrpcExchange exchange_;
};

TEST_F(GrpcExchangeTest, AContributionArrivesUnderItsName) {
  ASSERT_TRUE(exchange_.Push(MakeContribution()).ok());
  const std::vector<v1::PushHeader> headers = coordinator_.exchange().headers();
  ASSERT_FALSE(headers.empty());
  EXPECT_EQ(headers[0].run_id(), "run-1");
  EXPECT_EQ(headers[0].worker_id(), "a");
  EXPECT_EQ(headers[0].incarnation(), 1u);
  EXPECT_EQ(headers[0].round(), 1);
  EXPECT_EQ(headers[0].codec(), v1::FP32);
  EXPECT_EQ(headers[0].tokens(), 10);
  EXPECT_EQ(headers[0].send_step(), 5);
  EXPECT_TRUE(std::ranges::equal(coordinator_.exchange().object(0), *object_,
                                 [](char a, uint8_t b) { return uint8_t(a) == b; }));
  EXPECT_EQ(exchange_.bytes_up(), static_cast<int64_t>(object_->size()));
}

TEST_F(GrpcExchangeTest, APushUnderAnOldIncarnationIsRepeatedUnderTheNewOne) {
  for (int i = 0; i < 2; ++i) {
    coordinator_.exchange().RefuseNextPush(
        {grpc::StatusCode::UNAVAILABLE, "incarnation 1 is fenced off"});
  }
  coordinator_.BreakSession();
  ASSERT_TRUE(exchange_.Push(MakeContribution()).ok());
  EXPECT_GE(coordinator_.exchange().headers().size(), 3u);
}

TEST_F(GrpcExchangeTest, AnAnswerIsAskedForByItsNameAndDueStep) {
  v1::PullHeader header;
  header.set_round(3);
  header.set_codec(v1::FP32);
  header.set_total_bytes(static_cast<int64_t>(object_->size()));
  header.set_object_hash(TreeHash(*object_));
  header.set_published_hash(9);
  coordinator_.exchange().Publish(header, std::string(object_->begin(), object_->end()));
  const absl::StatusOr<PulledObject> pulled = exchange_.PullAnswer(0, 3, 8);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->round, 3);
  EXPECT_EQ(pulled->published_hash, 9u);
  EXPECT_TRUE(std::ranges::equal(pulled->bytes, *object_));
  const v1::PullRequest request = coordinator_.exchange().pulls()[0];
  EXPECT_EQ(request.object(), v1::PullRequest::ANSWER);
  EXPECT_EQ(request.run_id(), "run-1");
  EXPECT_EQ(request.worker_id(), "a");
  EXPECT_EQ(request.round(), 3);
  EXPECT_EQ(request.due_step(), 8);
  EXPECT_EQ(exchange_.bytes_down(), static_cast<int64_t>(object_->size()));
}

TEST_F(GrpcExchangeTest, CancelEndsBothDirections) {
  std::thread canceller([this] {
    coordinator_.exchange().AwaitPulls(1);
    exchange_.Cancel();
  });
  EXPECT_EQ(exchange_.PullAnswer(0, 1, 0).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(exchange_.Push(MakeContribution()).code(), absl::StatusCode::kCancelled);
}

TEST_F(GrpcExchangeTest, TheAnswerIsAskedForWhileTheContributionIsOnItsWay) {
  coordinator_.exchange().SetPushHook([](const v1::PushHeader&, int64_t) {
    return FakeExchangeService::Verdict{FakeExchangeService::Verdict::kHold, {}};
  });
  v1::PullHeader header;
  header.set_round(1);
  header.set_codec(v1::FP32);
  header.set_total_bytes(static_cast<int64_t>(object_->size()));
  header.set_object_hash(TreeHash(*object_));
  std::thread publisher([&] {
    coordinator_.exchange().AwaitPulls(1);
    EXPECT_LT(coordinator_.exchange().pushed().size(), 3u);
    coordinator_.exchange().Release();
    coordinator_.exchange().Publish(header, std::string(object_->begin(), object_->end()));
  });
  std::vector<absl::Status> pushed;
  const absl::StatusOr<PulledObject> answer = exchange_.PushAndPull(
      MakeContribution(), [&](const absl::Status& status) { pushed.push_back(status); });
  publisher.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(std::ranges::equal(answer->bytes, *object_));
  EXPECT_THAT(pushed, testing::ElementsAre(absl::OkStatus()));
}

TEST_F(GrpcExchangeTest, ARefusedContributionGivesItsAnswerUp) {
  for (int i = 0; i < 2; ++i) {
    coordinator_.exchange().RefuseNextPush({grpc::StatusCode::INVALID_ARGUMENT, "not finite"});
  }
  const absl::StatusOr<PulledObject> answer =
      exchange_.PushAndPull(MakeContribution(), [](const absl::Status&) {});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  // The push ends with the first stream that is refused, before the second one or after it.
  coordinator_.exchange().AcceptPushes();
  EXPECT_FALSE(exchange_
                   .PushAndPull(MakeContribution(),
                                [&](const absl::Status& pushed) {
                                  EXPECT_TRUE(pushed.ok()) << "the exchange goes on";
                                  exchange_.Cancel();
                                })
                   .ok());
}

TEST_F(GrpcExchangeTest, WhoIsLateGetsTheAnswerAllTheSame) {
  for (int i = 0; i < 2; ++i) {
    coordinator_.exchange().RefuseNextPush({grpc::StatusCode::ABORTED, "closed without a"});
  }
  v1::PullHeader header;
  header.set_round(1);
  header.set_total_bytes(static_cast<int64_t>(object_->size()));
  header.set_object_hash(TreeHash(*object_));
  coordinator_.exchange().Publish(header, std::string(object_->begin(), object_->end()));
  absl::Status late;
  EXPECT_TRUE(
      exchange_.PushAndPull(MakeContribution(), [&](const absl::Status& s) { late = s; }).ok());
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace causeway::worker
