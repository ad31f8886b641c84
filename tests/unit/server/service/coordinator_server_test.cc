// The three services over a real connection to this machine. What crosses lanes: secure_run.h and
// grpc_exchange_test.cc.
#include <memory>
#include <string>

#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class CoordinatorServerTest : public ::testing::Test {
 protected:
  explicit CoordinatorServerTest(absl::Duration join_timeout = absl::Hours(1))
      : server_(run_.coordinator(), CoordinatorServer::Options{.join_timeout = join_timeout}) {}

  std::unique_ptr<OpenSession> Attach(const std::string& id) {
    auto attached =
        std::make_unique<OpenSession>(*stubs_.session, MakeJoin(run_.coordinator(), id));
    EXPECT_TRUE(attached->welcome.has_value());
    return attached;
  }

  static constexpr int kMessages = 20;
  // To every session.
  void SayMuch() {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(run_.coordinator().orders().Pause(std::string(size_t{1} << 20, 'x')).ok());
    }
  }

  // The answer of round 1, as transfer 1.
  static v1::Want FirstAnswer() {
    v1::Want want = WantOf(v1::Want::ANSWER, 1);
    want.set_transfer(1);
    return want;
  }

  AwaitedEvents events_;
  SmallRun run_{"", &events_};
  LocalServer server_;
  Stubs stubs_{server_.Connect()};
};

TEST_F(CoordinatorServerTest, ASessionThatDoesNotBeginWithAFittingJoinEnds) {
  const auto end_of = [&](const v1::WorkerMessage& message) {
    OpenSession session(*stubs_.session, message);
    v1::CoordinatorMessage answer;
    EXPECT_FALSE(session.welcome.has_value() || session.stream->Read(&answer));
    return session.stream->Finish();
  };
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  EXPECT_EQ(end_of(message).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  message = MakeJoin(run_.coordinator(), "a");
  message.mutable_join()->set_plan_hash(7);
  EXPECT_EQ(end_of(message).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(CoordinatorServerTest, ANewStreamOfTheSameProcessEndsTheOldOne) {
  const auto first = Attach("a");
  const auto second = Attach("a");
  EXPECT_EQ(second->welcome->incarnation(), 2u);
  EXPECT_EQ(first->End().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(CoordinatorServerTest, AWorkerThatDoesNotReadItsSessionCostsSomeMegabytesAndIsToldWhy) {
  const auto worker = Attach("a");
  SayMuch();
  const nlohmann::json ended = events_.Await("worker_disconnected");
  EXPECT_EQ(ended.at("worker"), "a");
  EXPECT_EQ(ended.at("code"), "RESOURCE_EXHAUSTED");
  v1::CoordinatorMessage answer;
  int read = 0;
  while (worker->stream->Read(&answer)) ++read;
  EXPECT_LT(read, kMessages);
  const grpc::Status status = worker->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "it may attach again";
  EXPECT_THAT(status.error_message(), HasSubstr("does not read its session"));
  EXPECT_EQ(Attach("a")->welcome->incarnation(), 2u);
}

class ImpatientServerTest : public CoordinatorServerTest {
 protected:
  // A window that does not grow: a message of 1 MiB never fits it, so its write stays under way.
  ImpatientServerTest() : CoordinatorServerTest(absl::Seconds(8)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stubs_.session = v1::Session::NewStub(grpc::CreateCustomChannel(
        server_.address(), grpc::InsecureChannelCredentials(), arguments));
  }
};

TEST_F(ImpatientServerTest, AStreamThatNobodyReadsIsGivenUpInTheEnd) {
  const auto worker = Attach("a");
  SayMuch();
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_checkpoint_step(-1);
  while (worker->stream->Write(heartbeat)) {
  }
  EXPECT_EQ(worker->End().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(CoordinatorServerTest, ShutdownEndsSessionsAndPulls) {
  const auto worker = Attach("a");
  PlainLane lane(*stubs_.exchange, kRunId, "a");
  ASSERT_TRUE(lane.Want(FirstAnswer()));
  ASSERT_TRUE(run_.coordinator().Shutdown().ok());
  EXPECT_EQ(worker->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(lane.AwaitOutcome(1), StatusIs(kUnavailable));
}

TEST_F(CoordinatorServerTest, OperatorsSeeAndDirectTheRun) {
  const auto worker = Attach("a");
  grpc::ClientContext status_context;
  v1::RunStatus status;
  ASSERT_TRUE(stubs_.admin->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(status.run_id(), kRunId);
  ASSERT_EQ(status.workers_size(), 1);
  EXPECT_EQ(status.workers(0).state(), v1::WorkerStatus::JOINING);
  const auto stop = [&](int64_t at_step, int64_t at_tokens) {
    grpc::ClientContext context;
    v1::StopRequest request;
    request.set_at_step(at_step);
    request.set_at_tokens(at_tokens);
    v1::StopResponse response;
    return stubs_.admin->Stop(&context, request, &response).error_code();
  };
  EXPECT_EQ(stop(0, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stop(5, 5), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stop(0, -5), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stop(0, 1'000'000), grpc::StatusCode::OK);
  EXPECT_EQ(stop(5, 0), grpc::StatusCode::OK);
  v1::CoordinatorMessage answer;
  do {
    ASSERT_TRUE(worker->stream->Read(&answer));
  } while (!answer.has_directive());
  EXPECT_EQ(answer.directive().action(), v1::Directive::STOP_AT_STEP);
  EXPECT_EQ(answer.directive().step(), 5);
}

}  // namespace
}  // namespace causeway::server
