// Transfers over real connections: stripes, cuts, and peers that stand still.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/rpc/channel.h"
#include "common/transfer/chunk_set.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/coordinator_server.h"
#include "tests/unit/common/transfer/proto_chunk.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {
namespace {

class TransferStreamsTest : public ::testing::Test {
 protected:
  // One Exchange.Push over a connection of its own.
  struct Stripe {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Exchange::Stub> stub;
    grpc::ClientContext context;
    v1::PushResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::PushRequest>> writer;
  };

  void Start(absl::Duration stall) {
    CoordinatorServer::Options options;
    options.address = "127.0.0.1:0";
    options.stall = stall;
    auto server = CoordinatorServer::Start(options, run_.coordinator());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stubs_ = std::make_unique<Stubs>(Connect());
    session_ = stubs_->session->Attach(&session_context_);
    ASSERT_TRUE(session_->Write(MakeJoin(run_.coordinator(), "a")));
    v1::CoordinatorMessage message;
    ASSERT_TRUE(session_->Read(&message));
    v1::WorkerMessage ready;
    ready.mutable_ready()->set_step(0);
    ASSERT_TRUE(session_->Write(ready));
    delta_ = MakeDelta(1, run_.initial());
    delta_.header.set_incarnation(message.welcome().incarnation());
    chunks_ = ChunkSet(delta_.header.total_bytes()).chunks();
  }
  ~TransferStreamsTest() override {
    session_context_.TryCancel();
    EXPECT_TRUE(run_.coordinator().Shutdown().ok());
    server_->Stop(absl::Seconds(5));
  }

  std::shared_ptr<grpc::Channel> Connect() {
    return MakeChannel(absl::StrCat("127.0.0.1:", server_->port()), connections_++,
                       ChannelSecurity::Plaintext());
  }
  std::unique_ptr<Stripe> Open() {
    auto stripe = std::make_unique<Stripe>();
    stripe->channel = Connect();
    stripe->stub = v1::Exchange::NewStub(stripe->channel);
    stripe->writer = stripe->stub->Push(&stripe->context, &stripe->response);
    v1::PushRequest request;
    *request.mutable_header() = delta_.header;
    stripe->writer->Write(request);
    return stripe;
  }
  void Send(Stripe& stripe, int64_t chunk) {
    const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
    v1::PushRequest request;
    FillChunk(ChunkSet::Offset(chunk),
              std::span<const uint8_t>(delta_.object)
                  .subspan(offset, std::min(kChunkBytes, delta_.object.size() - offset)),
              chunk % 2 == 0, *request.mutable_chunk());
    stripe.writer->Write(request);
  }
  ChunkSet Held() {
    v1::QueryTransferRequest request;
    request.set_run_id(kRunId);
    request.set_worker_id("a");
    request.set_round(1);
    request.set_object_hash(delta_.header.object_hash());
    v1::QueryTransferResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stubs_->exchange->QueryTransfer(&context, request, &response).ok());
    return *ChunkSet::FromWire(delta_.header.total_bytes(), response.held_chunks());
  }
  // The coordinator takes messages in at its own time.
  void AwaitHeld(int64_t chunks) {
    while (Held().held_chunks() < chunks) std::this_thread::yield();
  }
  v1::PullRequest State() const {
    v1::PullRequest request;
    request.set_run_id(kRunId);
    request.set_worker_id("a");
    request.set_object(v1::PullRequest::STATE);
    return request;
  }

  SmallRun run_{32'768};  // Objects of 4 MiB and more.
  std::unique_ptr<CoordinatorServer> server_;
  int connections_ = 0;
  std::unique_ptr<Stubs> stubs_;
  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> session_;
  Delta delta_;
  int64_t chunks_ = 0;
};

TEST_F(TransferStreamsTest, ACutStripeTakesNothingAwayFromTheObject) {
  Start(absl::Seconds(60));
  ASSERT_GE(chunks_, 3);
  auto first = Open();
  auto second = Open();
  Send(*first, chunks_ - 1);
  AwaitHeld(1);
  first->context.TryCancel();
  EXPECT_EQ(first->writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  Send(*second, 0);
  AwaitHeld(2);
  EXPECT_TRUE(Held().Holds(chunks_ - 1));
  auto third = Open();
  auto idle = Open();
  third->writer->WritesDone();  // It has nothing left to send, and waits for the others.
  for (int64_t chunk = 1; chunk < chunks_ - 1; ++chunk) Send(*second, chunk);
  for (Stripe* const stripe : {second.get(), third.get(), idle.get()}) {
    const grpc::Status status = stripe->writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(stripe->response.durable_bytes(), delta_.header.total_bytes());
  }
}

TEST_F(TransferStreamsTest, WhoStandsStillIsEndedAndMayGoOn) {
  Start(absl::Milliseconds(300));
  grpc::ClientContext pull_context;
  const auto pull = stubs_->exchange->Pull(&pull_context, State());
  auto headless = std::make_unique<Stripe>();
  headless->channel = Connect();
  headless->stub = v1::Exchange::NewStub(headless->channel);
  headless->writer = headless->stub->Push(&headless->context, &headless->response);
  auto slow = Open();
  Send(*slow, 1);
  EXPECT_EQ(headless->writer->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(slow->writer->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(Held().held_chunks(), 1);
  auto again = Open();
  for (const int64_t chunk : {0, 2}) Send(*again, chunk);
  for (int64_t chunk = 3; chunk < chunks_; ++chunk) Send(*again, chunk);
  EXPECT_TRUE(again->writer->Finish().ok());
  pull_context.TryCancel();
  pull->Finish();
}

TEST_F(TransferStreamsTest, StripesOfAPullShareItsChunks) {
  Start(absl::Seconds(60));
  v1::PullRequest request = State();
  request.set_stripe_group(17);
  std::vector<std::thread> threads;
  std::vector<std::vector<v1::Chunk>> received(4);
  for (auto& chunks : received) {
    threads.emplace_back([&chunks, request, channel = Connect()] {
      grpc::ClientContext context;
      const auto stub = v1::Exchange::NewStub(channel);
      const auto reader = stub->Pull(&context, request);
      v1::PullResponse response;
      EXPECT_TRUE(reader->Read(&response));
      EXPECT_TRUE(response.has_header());
      while (reader->Read(&response)) chunks.push_back(response.chunk());
      EXPECT_TRUE(reader->Finish().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<v1::Chunk> all;
  for (const auto& chunks : received) all.insert(all.end(), chunks.begin(), chunks.end());
  std::ranges::sort(all, {}, &v1::Chunk::offset);
  std::vector<uint8_t> object;
  for (const v1::Chunk& chunk : all) ASSERT_TRUE(AppendChunk(chunk, object).ok());
  EXPECT_EQ(TreeHash(object), TreeHash(std::span<const float>(run_.initial())));
}

}  // namespace
}  // namespace causeway::server
