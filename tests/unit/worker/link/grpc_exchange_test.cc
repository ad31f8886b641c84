#include "worker/link/grpc_exchange.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "common/rpc/chunk.h"
#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/link/fake_coordinator.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

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
        plan_(FragmentPlan::Create(config_.model(), config_.sync()).value()),
        session_(Session::Attach(coordinator_.SessionOptions()).value()),
        exchange_({.stub = &coordinator_.exchange_stub(),
                   .session = session_.get(),
                   .plan = &plan_,
                   .run_id = "run-1",
                   .worker_id = "a",
                   .sync = config_.sync()}) {
    object_.resize(static_cast<size_t>(plan_.arena_size()) * sizeof(float));
    for (size_t i = 0; i < object_.size(); ++i) object_[i] = static_cast<uint8_t>(i / 1000);
  }

  Contribution MakeContribution() {
    return {.fragment = 0, .round = 1, .tokens = 10, .send_step = 5, .object = object_};
  }

  v1::PullResponse Header(int64_t version, int64_t start_offset) const {
    v1::PullResponse response;
    v1::PullHeader& header = *response.mutable_header();
    header.set_round(version);
    header.set_codec(v1::FP32);
    header.set_total_bytes(static_cast<int64_t>(object_.size()));
    header.set_object_hash(TreeHash(object_));
    header.set_start_offset(start_offset);
    return response;
  }
  // All but the first are packed.
  v1::PullResponse ChunkAt(size_t offset) const {
    const auto data =
        std::span(object_).subspan(offset, std::min(kChunkBytes, object_.size() - offset));
    v1::PullResponse response;
    FillChunk(static_cast<int64_t>(offset), data, offset != 0, *response.mutable_chunk());
    return response;
  }
  void NoteStart(const v1::PullRequest& request) {
    absl::MutexLock lock(&mutex_);
    starts_.push_back(request.start_offset());
  }
  // Answers with the object from wherever the request starts.
  FakeCoordinator::PullAnswer Whole(int64_t version) {
    return [this, version](const v1::PullRequest& request, FakeCoordinator::PullWriter& writer) {
      NoteStart(request);
      writer.Write(Header(version, request.start_offset()));
      for (auto offset = static_cast<size_t>(request.start_offset()); offset < object_.size();
           offset += kChunkBytes) {
        writer.Write(ChunkAt(offset));
      }
      return grpc::Status::OK;
    };
  }
  FakeCoordinator::PullAnswer BreaksAfterOneChunk(int64_t version) {
    return [this, version](const v1::PullRequest& request, FakeCoordinator::PullWriter& writer) {
      NoteStart(request);
      writer.Write(Header(version, 0));
      writer.Write(ChunkAt(0));
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the link broke");
    };
  }

  std::vector<int64_t> starts() {
    absl::MutexLock lock(&mutex_);
    return starts_;
  }

  // Used by the coordinator's threads until it is gone.
  absl::Mutex mutex_;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool release_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int64_t> starts_ ABSL_GUARDED_BY(mutex_);  // Of the pulls.
  FakeCoordinator coordinator_;
  const v1::RunConfig config_;
  const FragmentPlan plan_;
  std::vector<uint8_t> object_;
  std::unique_ptr<Session> session_;
  GrpcExchange exchange_;
};

TEST_F(GrpcExchangeTest, APushThatAStoppingServerCancelsIsRepeated) {
  coordinator_.AnswerNextPush({grpc::StatusCode::CANCELLED, "the server stops"});
  const absl::Status pushed = exchange_.Push(MakeContribution());
  ASSERT_TRUE(pushed.ok()) << "CANCELLED means that this side gave up: " << pushed;
  const std::vector<v1::PushHeader> pushes = coordinator_.pushes();
  ASSERT_EQ(pushes.size(), 2u);
  EXPECT_EQ(pushes[0].object_hash(), pushes[1].object_hash());
  EXPECT_EQ(pushes[1].attempt(), 2u);
}

TEST_F(GrpcExchangeTest, APushUnderAnOldIncarnationIsRepeatedUnderTheNewOne) {
  coordinator_.BreakSession();
  coordinator_.AnswerNextPush({grpc::StatusCode::UNAVAILABLE, "incarnation 1 is fenced off"});
  ASSERT_TRUE(exchange_.Push(MakeContribution()).ok());
  EXPECT_EQ(coordinator_.pushes().size(), 2u);
}

TEST_F(GrpcExchangeTest, ARefusalIsFinal) {
  coordinator_.AnswerNextPush({grpc::StatusCode::ABORTED, "the round closed"});
  EXPECT_EQ(exchange_.Push(MakeContribution()).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(coordinator_.pushes().size(), 1u);
}

TEST_F(GrpcExchangeTest, APullThatBreaksComesBackForTheRest) {
  coordinator_.AnswerNextPull(BreaksAfterOneChunk(1));
  coordinator_.AnswerNextPull(Whole(1));
  const absl::StatusOr<PulledObject> pulled = exchange_.PullAnswer(0, 1);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->bytes, object_);
  EXPECT_THAT(starts(), ElementsAre(0, kChunkBytes));
  // What crossed the link, of which all but the first chunk was packed.
  EXPECT_GT(exchange_.bytes_down(), static_cast<int64_t>(kChunkBytes));
  EXPECT_LT(exchange_.bytes_down(), static_cast<int64_t>(object_.size()) / 2);
}

TEST_F(GrpcExchangeTest, AStateThatMovedOnIsPulledFromTheStart) {
  coordinator_.AnswerNextPull(BreaksAfterOneChunk(4));
  coordinator_.AnswerNextPull([](const v1::PullRequest& request, FakeCoordinator::PullWriter&) {
    EXPECT_EQ(request.round(), 4);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "version 4 is no longer kept");
  });
  coordinator_.AnswerNextPull(Whole(5));
  const absl::StatusOr<PulledObject> pulled = exchange_.PullState(0);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->round, 5);
  EXPECT_EQ(pulled->bytes, object_);
  EXPECT_THAT(starts(), ElementsAre(0, 0));
}

TEST_F(GrpcExchangeTest, AnObjectThatIsDamagedEveryTimeIsAnError) {
  for (int i = 0; i < 2; ++i) {
    coordinator_.AnswerNextPull(
        [this](const v1::PullRequest&, FakeCoordinator::PullWriter& writer) {
          v1::PullResponse header = Header(1, 0);
          header.mutable_header()->set_object_hash(1);
          writer.Write(header);
          for (size_t at = 0; at < object_.size(); at += kChunkBytes) writer.Write(ChunkAt(at));
          return grpc::Status::OK;
        });
  }
  EXPECT_EQ(exchange_.PullAnswer(0, 1).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(GrpcExchangeTest, CancelEndsAPullThatWaitsAndAllLaterCalls) {
  coordinator_.AnswerNextPull([this](const v1::PullRequest&, FakeCoordinator::PullWriter&) {
    absl::MutexLock lock(&mutex_);
    waiting_ = true;
    mutex_.Await(absl::Condition(&release_));
    return grpc::Status::OK;
  });
  std::thread canceller([this] {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
    exchange_.Cancel();
  });
  EXPECT_EQ(exchange_.PullAnswer(0, 1).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(exchange_.Push(MakeContribution()).code(), absl::StatusCode::kCancelled);
  absl::MutexLock lock(&mutex_);
  release_ = true;
}

}  // namespace
}  // namespace causeway::worker
