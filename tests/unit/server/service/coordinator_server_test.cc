// The three services over a real connection to this machine.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/base/checksum.h"
#include "common/codec/codec.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/server/core/small_run.h"
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

  // Of round 1.
  Delta DeltaOf(const OpenSession& worker) {
    Delta delta = MakeDelta(1, run_.initial());
    delta.header.set_incarnation(worker.welcome->incarnation());
    return delta;
  }

  struct Pulled {
    absl::Status status;
    v1::PullHeader header;
    std::vector<uint8_t> bytes;
  };
  Pulled Pull(v1::Want::Object object, int64_t round) {
    Pulled pulled;
    pulled.status =
        PullAll(*stubs_.exchange, "a", WantOf(object, round), &pulled.bytes, &pulled.header);
    return pulled;
  }
  // The answer of round 1, as transfer 1.
  static v1::Want FirstAnswer() {
    v1::Want want = WantOf(v1::Want::ANSWER, 1);
    want.set_transfer(1);
    return want;
  }

  AwaitedEvents events_;
  // One fragment of several chunks, FP32 both ways, one worker.
  SmallRun run_{
      "model { vocabulary_size: 4096 width: 128 mlp_width: 128 } sync { entropy_down: true }",
      &events_};
  LocalServer server_;
  Stubs stubs_{server_.Connect()};
};

TEST_F(CoordinatorServerTest, ADeltaGoesUpAndItsAnswerComesDown) {
  const auto worker = Attach("a");
  ASSERT_TRUE(worker->stream->Write(ReadyAt(0)));
  v1::CoordinatorMessage answer;
  do {
    ASSERT_TRUE(worker->stream->Read(&answer));
  } while (!answer.has_directive());
  EXPECT_EQ(answer.directive().action(), v1::Directive::START);

  const Pulled state = Pull(v1::Want::STATE, 0);
  ASSERT_TRUE(state.status.ok()) << state.status;
  EXPECT_EQ(TreeHash(state.bytes), TreeHash(std::span<const float>(run_.initial())));

  const Delta delta = DeltaOf(*worker);
  ASSERT_GT(delta.object.size(), 2 * kChunkBytes);
  v1::PushResponse response;
  ASSERT_EQ(PushDelta(*stubs_.exchange, delta, &response), absl::OkStatus());
  EXPECT_EQ(response.durable_bytes(), delta.header.total_bytes());
  EXPECT_FALSE(response.duplicate());
  ASSERT_EQ(PushDelta(*stubs_.exchange, delta, &response), absl::OkStatus());
  EXPECT_TRUE(response.duplicate());

  const Pulled pulled = Pull(v1::Want::ANSWER, 1);
  ASSERT_TRUE(pulled.status.ok()) << pulled.status;
  EXPECT_EQ(TreeHash(pulled.bytes), pulled.header.object_hash());
  std::vector<float> published = run_.initial();
  ASSERT_TRUE((*FindCodec(pulled.header.codec()))->Apply(pulled.bytes, published).ok());
  EXPECT_EQ(published, run_.coordinator().PublishedParameters());
  EXPECT_NE(published, run_.initial());

  const uint64_t hash = TreeHash(std::span<const float>(published));
  ASSERT_TRUE(worker->stream->Write(AppliedOf(/*fragment=*/0, /*round=*/1, hash)));
  ASSERT_TRUE(worker->stream->Write(LeaveFor(v1::Leave::FINISHED)));
  worker->stream->WritesDone();
  EXPECT_TRUE(worker->End().ok());
  EXPECT_TRUE(run_.coordinator().Finished());
  const v1::RunStatus status = run_.coordinator().GetStatus();
  EXPECT_EQ(status.workers(0).bytes_up(), delta.header.total_bytes());
  // entropy_down: fewer cross than there are.
  EXPECT_GT(status.workers(0).bytes_down(), 0);
  EXPECT_LT(status.workers(0).bytes_down(), std::ssize(state.bytes) + std::ssize(pulled.bytes));
}

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
