// Lanes over real connections: a LaneClient and its dialer at one end, a coordinator's server at
// the other. What they decide is tested without sockets (tests/unit/server/transfer/lanes_test.cc).
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/thread_pool.h"
#include "common/rpc/status.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {
namespace {

class GrpcLanesTest : public ::testing::Test {
 protected:
  static constexpr int kLanes = 3;

  GrpcLanesTest() : unpacker_(2) {
    EXPECT_TRUE(session_.stream->Write(ReadyAt(0)));
    dialer_ = std::make_unique<LaneDialer>([this](int lane) { return server_.Connect(lane); });
    client_ = MakeClient(kRunId);
  }
  ~GrpcLanesTest() override {
    client_->Cancel();
    dialer_ = nullptr;
    session_.context.TryCancel();
    session_.End();
  }

  std::shared_ptr<LaneClient> MakeClient(const std::string& run_id) {
    LaneClient::Options options;
    options.greeting.set_wire_version(kWireVersion);
    options.greeting.set_run_id(run_id);
    options.greeting.set_worker_id("a");
    options.greeting.set_process(1);
    options.run_long = unpacker_.runner();
    options.dial = [this](int lane, const auto& self) { dialer_->Dial(lane, self); };
    options.lanes = [] { return kLanes; };
    options.incarnation = [this] { return session_.welcome->incarnation(); };
    options.passes = IsRetryable;
    return std::make_shared<LaneClient>(std::move(options));
  }
  LaneClient::Handle Offer(const Delta& delta) {
    const auto object = std::make_shared<std::vector<uint8_t>>(delta.object);
    LaneClient::Offered offered;
    offered.header = delta.header;
    offered.source = std::make_shared<ChunkSource>(
        ChunkSource::Options{.bytes = *object, .leaves = {}, .owner = object});
    return client_->Offer(std::move(offered));
  }
  LaneClient::Handle Want(v1::Want::Object object, int64_t round) {
    LaneClient::Wanted wanted;
    wanted.want.set_object(object);
    wanted.want.set_round(round);
    // FP32 both ways.
    wanted.expected_bytes = std::ssize(run_.initial()) * int64_t{sizeof(float)};
    return client_->Want(std::move(wanted));
  }

  SmallRun run_{32'768};  // Objects of 4 MiB and more.
  WorkQueue unpacker_;
  LocalServer server_{run_.coordinator()};
  OpenSession session_{*v1::Session::NewStub(server_.Connect(kLanes)),
                       MakeJoin(run_.coordinator(), "a")};
  std::unique_ptr<LaneDialer> dialer_;
  std::shared_ptr<LaneClient> client_;
};

TEST_F(GrpcLanesTest, AStateADeltaAndItsAnswerCross) {
  const LaneClient::Result state = client_->Await(Want(v1::Want::STATE, 0));
  ASSERT_TRUE(state.status.ok()) << state.status;
  EXPECT_EQ(TreeHash(*state.bytes), TreeHash(std::span<const float>(run_.initial())));
  const LaneClient::Handle answer = Want(v1::Want::ANSWER, 1);
  const Delta delta = MakeDelta(1, run_.initial());
  const LaneClient::Result pushed = client_->Await(Offer(delta));
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  EXPECT_EQ(pushed.accepted.durable_bytes(), delta.header.total_bytes());
  const LaneClient::Result pulled = client_->Await(answer);
  ASSERT_TRUE(pulled.status.ok()) << pulled.status;
  EXPECT_EQ(TreeHash(*pulled.bytes), pulled.header.object_hash());
  EXPECT_EQ(client_->lanes(), kLanes);
}

TEST_F(GrpcLanesTest, AServerThatComesBackFindsItsLanesAgain) {
  ASSERT_TRUE(client_->Await(Want(v1::Want::STATE, 0)).status.ok());
  server_.Stop();
  const LaneClient::Handle state = Want(v1::Want::STATE, 0);
  EXPECT_FALSE(client_->AwaitAWhile(state));
  server_.Serve();
  const LaneClient::Result result = client_->Await(state);
  EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST_F(GrpcLanesTest, CancelEndsWhatWaits) {
  const LaneClient::Handle answer = Want(v1::Want::ANSWER, 1);
  std::thread cancel([this] { client_->Cancel(); });
  EXPECT_EQ(client_->Await(answer).status.code(), absl::StatusCode::kCancelled);
  cancel.join();
}

TEST_F(GrpcLanesTest, AnotherRunIsRefusedForGood) {
  client_ = MakeClient("another");
  EXPECT_EQ(client_->Await(Want(v1::Want::STATE, 0)).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace causeway::server
