// The three services over a real connection to this machine.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/base/checksum.h"
#include "common/codec/codec.h"
#include "common/transfer/chunk_assembly.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/describe_run.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/common/transfer/proto_chunk.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

// One fragment of several chunks, FP32 both ways, one worker.
constexpr char kOneFragment[] =
    "model { vocabulary_size: 4096 width: 128 mlp_width: 128 } "
    "sync { steps_between_syncs: 5 entropy_down: true } membership { start_workers: 1 }";

class CoordinatorServerTest : public ::testing::Test {
 protected:
  explicit CoordinatorServerTest(absl::Duration join_timeout = absl::Hours(1)) {
    Coordinator::Options options = OptionsOf(CompleteSmallConfig(kOneFragment), "served-1", store_);
    options.events = &events_;
    coordinator_ = *Coordinator::Create(std::move(options));
    initial_ = InitialOf(coordinator_->plan());
    server_.emplace(*coordinator_, CoordinatorServer::Options{.join_timeout = join_timeout});
    const auto channel = server_->Connect();
    session_ = v1::Session::NewStub(channel);
    exchange_ = v1::Exchange::NewStub(channel);
    admin_ = v1::Admin::NewStub(channel);
  }

  v1::WorkerMessage JoinMessage(const std::string& id) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(DescribeRun(*session_).value(), id);
    return message;
  }

  std::unique_ptr<OpenSession> Attach(const std::string& id) {
    auto attached = std::make_unique<OpenSession>(*session_, JoinMessage(id));
    EXPECT_TRUE(attached->welcome.has_value());
    return attached;
  }

  static constexpr int kMessages = 20;
  // To every session.
  void SayMuch() {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(coordinator_->orders().Pause(std::string(size_t{1} << 20, 'x')).ok());
    }
  }

  v1::PushHeader MakePush(const OpenSession& worker, std::vector<uint8_t>& object) {
    const Codec& codec = **FindCodec(v1::FP32);
    std::vector<float> local = initial_;
    for (float& value : local) value += 0.05f;
    object.resize(codec.EncodedBytes(local.size()));
    EXPECT_TRUE(codec.Encode(initial_, local, {}, object).ok());
    v1::PushHeader header = HeaderOf("served-1", "a", worker.welcome->incarnation(), /*fragment=*/0,
                                     /*round=*/1, v1::FP32, object);
    header.set_tokens(10);
    return header;
  }

  absl::Status Push(const v1::PushHeader& header, const std::vector<uint8_t>& object,
                    v1::PushResponse* response) {
    return PlainLane(*exchange_, "served-1", "a").Push(header, object, response);
  }

  struct Pulled {
    absl::Status status;
    v1::PullHeader header;
    std::vector<uint8_t> bytes;
  };
  Pulled Pull(v1::Want::Object object, int64_t round) {
    v1::Want want;
    want.set_object(object);
    want.set_round(round);
    Pulled pulled;
    pulled.status =
        PlainLane(*exchange_, "served-1", "a").Pull(want, &pulled.bytes, &pulled.header);
    return pulled;
  }

  AwaitedEvents events_;
  MemoryStore store_;
  std::vector<float> initial_;
  std::unique_ptr<Coordinator> coordinator_;
  std::optional<LocalServer> server_;
  std::unique_ptr<v1::Session::Stub> session_;
  std::unique_ptr<v1::Exchange::Stub> exchange_;
  std::unique_ptr<v1::Admin::Stub> admin_;
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
  ASSERT_EQ(state.bytes.size(), initial_.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(state.bytes.data(), initial_.data(), state.bytes.size()), 0);

  std::vector<uint8_t> object;
  const v1::PushHeader header = MakePush(*worker, object);
  ASSERT_GT(object.size(), 2 * kChunkBytes);
  v1::PushResponse response;
  ASSERT_EQ(Push(header, object, &response), absl::OkStatus());
  EXPECT_EQ(response.durable_bytes(), header.total_bytes());
  EXPECT_FALSE(response.duplicate());
  ASSERT_EQ(Push(header, object, &response), absl::OkStatus());
  EXPECT_TRUE(response.duplicate());

  const Pulled pulled = Pull(v1::Want::ANSWER, 1);
  ASSERT_TRUE(pulled.status.ok()) << pulled.status;
  EXPECT_EQ(TreeHash(pulled.bytes), pulled.header.object_hash());
  std::vector<float> published = initial_;
  ASSERT_TRUE((*FindCodec(pulled.header.codec()))->Apply(pulled.bytes, published).ok());
  EXPECT_EQ(published, coordinator_->PublishedParameters());
  EXPECT_NE(published, initial_);

  const uint64_t hash = TreeHash(std::span<const float>(published));
  ASSERT_TRUE(worker->stream->Write(AppliedOf(/*fragment=*/0, /*round=*/1, hash)));
  ASSERT_TRUE(worker->stream->Write(LeaveFor(v1::Leave::FINISHED)));
  worker->stream->WritesDone();
  EXPECT_TRUE(worker->End().ok());
  EXPECT_TRUE(coordinator_->Finished());
  const v1::RunStatus status = coordinator_->GetStatus();
  EXPECT_EQ(status.workers(0).bytes_up(), header.total_bytes());
  // entropy_down: fewer cross than there are.
  EXPECT_GT(status.workers(0).bytes_down(), 0);
  EXPECT_LT(status.workers(0).bytes_down(), std::ssize(state.bytes) + std::ssize(pulled.bytes));
}

TEST_F(CoordinatorServerTest, AWaitingWantIsAnsweredWhenItsRoundIsPublished) {
  const auto worker = Attach("a");
  v1::Want want;
  want.set_transfer(7);
  want.set_object(v1::Want::ANSWER);
  want.set_round(1);
  {
    PlainLane cancelled(*exchange_, "served-1", "a");
    ASSERT_TRUE(cancelled.Want(want));
  }
  PlainLane lane(*exchange_, "served-1", "a");
  ASSERT_TRUE(lane.Want(want));
  ASSERT_TRUE(worker->stream->Write(ReadyAt(0)));
  std::vector<uint8_t> object;
  const v1::PushHeader header = MakePush(*worker, object);
  v1::PushResponse pushed;
  ASSERT_TRUE(Push(header, object, &pushed).ok());
  v1::LaneMessage message;
  ASSERT_TRUE(lane.Read(message));
  EXPECT_EQ(message.control().announcement().header().round(), 1);
}

TEST_F(CoordinatorServerTest, MalformedOffersGetTheCodesOfTheProtocol) {
  const auto worker = Attach("a");
  std::vector<uint8_t> object;
  const v1::PushHeader good = MakePush(*worker, object);
  const auto outcome_of = [&](const std::function<void(v1::PushHeader&)>& change) {
    v1::PushHeader header = good;
    change(header);
    return Push(header, object, nullptr).code();
  };
  EXPECT_EQ(outcome_of([](v1::PushHeader& h) { h.set_object_hash(0); }), kDataLoss);
  EXPECT_EQ(outcome_of([](v1::PushHeader& h) { h.set_total_bytes(1LL << 40); }), kInvalidArgument);
  EXPECT_EQ(outcome_of([](v1::PushHeader& h) { h.set_round(9); }), kFailedPrecondition);
  // Ends the lane.
  const auto end_of = [&](int64_t offset, size_t bytes) {
    PlainLane lane(*exchange_, "served-1", "a");
    lane.Offer(1, good);
    lane.Chunk(1, offset, std::vector<uint8_t>(bytes));
    return lane.Finish().code();
  };
  EXPECT_EQ(end_of(1, kChunkBytes), kOutOfRange);
  EXPECT_EQ(end_of(0, kChunkBytes - 1), kInvalidArgument);
  EXPECT_EQ(end_of(0, kChunkBytes + 1), kInvalidArgument);
  // A chunk that came damaged is asked for again.
  PlainLane lane(*exchange_, "served-1", "a");
  ASSERT_TRUE(lane.Offer(1, good));
  v1::LaneMessage message;
  FillChunk(0, std::span(object).first(kChunkBytes), false, *message.mutable_chunk());
  message.mutable_chunk()->set_transfer(1);
  message.mutable_chunk()->set_checksum(7);
  ASSERT_TRUE(lane.Write(message));
  do {
    ASSERT_TRUE(lane.Read(message));
  } while (!message.control().has_damage());
  EXPECT_EQ(message.control().damage().transfer(), 1u);
  EXPECT_EQ(message.control().damage().chunk(), 0);
  EXPECT_TRUE(store_.contributions().empty());
  ASSERT_TRUE(lane.Chunks(1, object));
  EXPECT_TRUE(lane.AwaitOutcome(1).ok());
}

TEST_F(CoordinatorServerTest, WantsOfWhatIsNotThereAreRefused) {
  EXPECT_THAT(Pull(v1::Want::ANSWER, 2).status, StatusIs(kFailedPrecondition));
  EXPECT_THAT(Pull(v1::Want::OBJECT_UNSPECIFIED, 1).status, StatusIs(kInvalidArgument));
  EXPECT_THAT(Pull(v1::Want::STATE, 7).status, StatusIs(kNotFound));
}

TEST_F(CoordinatorServerTest, ASessionThatDoesNotBeginWithAFittingJoinEnds) {
  const auto end_of = [&](const v1::WorkerMessage& message) {
    OpenSession session(*session_, message);
    v1::CoordinatorMessage answer;
    EXPECT_FALSE(session.welcome.has_value() || session.stream->Read(&answer));
    return session.stream->Finish();
  };
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  EXPECT_EQ(end_of(message).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  message = JoinMessage("a");
  message.mutable_join()->set_data_vocabulary_size(256);
  const grpc::Status status = end_of(message);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("256"));
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
    session_ = v1::Session::NewStub(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
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
  PlainLane lane(*exchange_, "served-1", "a");
  v1::Want want;
  want.set_transfer(1);
  want.set_object(v1::Want::ANSWER);
  want.set_round(1);
  ASSERT_TRUE(lane.Want(want));
  ASSERT_TRUE(coordinator_->Shutdown().ok());
  EXPECT_EQ(worker->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(lane.AwaitOutcome(1), StatusIs(kUnavailable));
}

TEST_F(CoordinatorServerTest, OperatorsSeeAndDirectTheRun) {
  const auto worker = Attach("a");
  grpc::ClientContext status_context;
  v1::RunStatus status;
  ASSERT_TRUE(admin_->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(status.run_id(), "served-1");
  ASSERT_EQ(status.workers_size(), 1);
  EXPECT_EQ(status.workers(0).state(), v1::WorkerStatus::JOINING);
  const auto stop = [&](int64_t at_step, int64_t at_tokens) {
    grpc::ClientContext context;
    v1::StopRequest request;
    request.set_at_step(at_step);
    request.set_at_tokens(at_tokens);
    v1::StopResponse response;
    return admin_->Stop(&context, request, &response).error_code();
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

TEST_F(CoordinatorServerTest, ATakenPortIsRefusedInOneLine) {
  const std::string& taken = server_->address();
  EXPECT_THAT(CoordinatorServer::Start({.address = taken}, *coordinator_),
              StatusIs(kUnavailable, HasSubstr(taken)));
  EXPECT_THAT(CoordinatorServer::Start({.address = "nowhere"}, *coordinator_),
              StatusIs(kInvalidArgument));
}

}  // namespace
}  // namespace causeway::server
