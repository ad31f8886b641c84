#include "common/client/grpc_exchange.h"

#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/checksum.h"
#include "common/codec/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway {
namespace {

using server::kRunId;
using server::SmallRun;

// The only worker of a small run, FP32 both ways.
class GrpcExchangeTest : public ::testing::Test {
 protected:
  GrpcExchangeTest()
      : server_(run_.coordinator()),
        session_(Session::Attach(SessionOptions()).value()),
        link_(LinkOptions()),
        exchange_(std::make_unique<GrpcExchange>(
            GrpcExchange::Options{.link = &link_,
                                  .session = session_.get(),
                                  .plan = &run_.coordinator().plan(),
                                  .sync = run_.coordinator().config().sync()})) {
    session_->Ready(0, /*anew=*/true);
    EXPECT_TRUE(session_->WaitForGo(absl::Minutes(1)).ok());
  }
  ~GrpcExchangeTest() override {
    exchange_ = nullptr;
    session_->Leave(v1::Leave::FINISHED, "");
  }

  Session::Options SessionOptions() {
    Session::Options options;
    options.channels = channels_;
    options.join = server::MakeJoin(run_.coordinator(), "a").join();
    options.progress.set_checkpoint_step(-1);
    return options;
  }
  Link::Options LinkOptions() const {
    Link::Options options;
    options.channels = channels_;
    options.connections = 2;
    return options;
  }
  Contribution MakeContribution() {
    object_ = std::make_shared<std::vector<uint8_t>>(server::MakeDelta(1, run_.initial()).object);
    Contribution contribution;
    contribution.round = 1;
    contribution.tokens = 10;
    contribution.send_step = 5;
    contribution.object = *object_;
    contribution.owner = object_;
    return contribution;
  }

  SmallRun run_{"model { vocabulary_size: 32768 }"};  // Objects of 4 MiB and more.
  server::LocalServer server_;
  const std::shared_ptr<RenewedChannels> channels_ =
      std::make_shared<RenewedChannels>(server_.address(), ChannelSecurity::Plaintext());
  std::unique_ptr<Session> session_;
  Link link_;
  std::unique_ptr<GrpcExchange> exchange_;
  std::shared_ptr<std::vector<uint8_t>> object_;
};

TEST_F(GrpcExchangeTest, AContributionAndItsAnswerCross) {
  std::vector<absl::Status> pushed;
  const absl::StatusOr<PulledObject> answer = exchange_->PushAndPull(
      MakeContribution(), [&](const absl::Status& status) { pushed.push_back(status); });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(pushed, testing::ElementsAre(absl::OkStatus()));
  EXPECT_EQ(answer->round, 1);
  std::vector<float> published = run_.initial();
  ASSERT_TRUE((*FindCodec(answer->codec))->Apply(answer->bytes, published).ok());
  EXPECT_EQ(published, run_.coordinator().PublishedParameters());
  EXPECT_EQ(TreeHash(std::span<const float>(published)), answer->published_hash);
  EXPECT_EQ(exchange_->bytes_up(), std::ssize(*object_));
  EXPECT_EQ(exchange_->bytes_down(), std::ssize(answer->bytes));
  EXPECT_EQ(link_.Report().resent_chunks(), 0);
}

TEST_F(GrpcExchangeTest, AStateCrosses) {
  const auto state = exchange_->PullState(0).value();
  EXPECT_EQ(TreeHash(state.bytes), TreeHash(std::span<const float>(run_.initial())));
}

TEST_F(GrpcExchangeTest, AServerThatComesBackFindsItsLanesAgain) {
  ASSERT_TRUE(exchange_->PullState(0).ok());
  server_.Stop();
  absl::Status pulled = absl::UnknownError("not pulled yet");
  std::thread pull([&] { pulled = exchange_->PullState(0).status(); });
  server_.Serve();
  pull.join();
  EXPECT_EQ(pulled, absl::OkStatus());
}

TEST_F(GrpcExchangeTest, ARefusedContributionGivesItsAnswerUp) {
  Contribution contribution = MakeContribution();
  contribution.object = contribution.object.first(100);
  absl::Status pushed;
  const absl::StatusOr<PulledObject> answer =
      exchange_->PushAndPull(contribution, [&](const absl::Status& status) { pushed = status; });
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pushed, answer.status());
}

TEST_F(GrpcExchangeTest, CancelEndsBothDirections) {
  std::thread cancel([this] { exchange_->Cancel(); });
  EXPECT_EQ(exchange_->PullAnswer(0, 1, 0).status().code(), absl::StatusCode::kCancelled);
  cancel.join();
  EXPECT_EQ(exchange_->Push(MakeContribution()).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace causeway
