#include "worker/link/pull_receiver.h"

#include <algorithm>
#include <string>

#include "common/base/checksum.h"
#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/proto_chunk.h"

namespace causeway::worker {
namespace {

class PullReceiverTest : public ::testing::Test {
 protected:
  PullReceiverTest() : object_(3 * kChunkBytes + 100), receiver_(Request(), Bytes()) {
    for (size_t i = 0; i < object_.size(); ++i) object_[i] = static_cast<uint8_t>(i / 999);
    header_.set_round(4);
    header_.set_total_bytes(Bytes());
    header_.set_object_hash(TreeHash(object_));
    receiver_.BeginGroup(17);
  }

  static v1::PullRequest Request() {
    v1::PullRequest request;
    request.set_object(v1::PullRequest::STATE);
    request.set_fragment(2);
    return request;
  }
  int64_t Bytes() const { return static_cast<int64_t>(object_.size()); }

  absl::StatusOr<PullReceiver::Received> Receive(const v1::PullResponse& response,
                                                 bool& has_header) {
    const std::string message = response.SerializeAsString();
    return receiver_.Receive(
        FlatMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()}),
        has_header);
  }
  absl::Status Header(bool& has_header) {
    v1::PullResponse response;
    *response.mutable_header() = header_;
    return Receive(response, has_header).status();
  }
  v1::PullResponse Chunk(size_t chunk, bool packed = false) const {
    const size_t offset = chunk * kChunkBytes;
    v1::PullResponse response;
    FillChunk(static_cast<int64_t>(offset),
              std::span(object_).subspan(offset, std::min(kChunkBytes, object_.size() - offset)),
              packed, *response.mutable_chunk());
    return response;
  }

  std::vector<uint8_t> object_;
  v1::PullHeader header_;
  PullReceiver receiver_;
};

TEST_F(PullReceiverTest, ChunksOfSeveralStreamsComeInAnyOrder) {
  bool a = false;
  bool b = false;
  ASSERT_TRUE(Header(a).ok());
  ASSERT_TRUE(Receive(Chunk(3), a).ok());
  ASSERT_TRUE(Header(b).ok());
  ASSERT_TRUE(Receive(Chunk(0), b).ok());
  ASSERT_TRUE(Receive(Chunk(2), a).ok());
  EXPECT_FALSE(receiver_.complete());
  const auto packed = Receive(Chunk(1, true), b);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_LT(packed->data_bytes, static_cast<int64_t>(kChunkBytes) / 2) << "as it crossed the link";
  EXPECT_TRUE(receiver_.complete());
  ASSERT_TRUE(receiver_.EndGroup(absl::OkStatus()).ok());
  const PulledObject object = receiver_.TakeObject();
  EXPECT_EQ(object.round, 4);
  EXPECT_TRUE(std::ranges::equal(object.bytes, object_));
}

// The coordinator refuses streams of one group that ask for different rounds.
TEST_F(PullReceiverTest, AStreamThatOpensAfterAnotherHasItsHeaderAsksForTheSame) {
  const v1::PullRequest first = receiver_.Request();
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(1), stream).ok());
  const v1::PullRequest second = receiver_.Request();
  EXPECT_EQ(second.round(), first.round());
  EXPECT_EQ(second.stripe_group(), first.stripe_group());
}

TEST_F(PullReceiverTest, TheNextGroupAsksForWhatIsMissing) {
  bool stream = false;
  EXPECT_EQ(receiver_.Request().round(), 0);
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(0), stream).ok());
  ASSERT_TRUE(Receive(Chunk(2), stream).ok());
  const absl::Status cut = absl::UnavailableError("cut");
  EXPECT_EQ(receiver_.EndGroup(cut), cut);
  receiver_.BeginGroup(18);
  const v1::PullRequest request = receiver_.Request();
  EXPECT_EQ(request.stripe_group(), 18u);
  EXPECT_EQ(request.round(), 4) << "this version and no other";
  EXPECT_EQ(request.held_chunks(), std::string("\x05", 1));
  stream = false;
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(1), stream).ok());
  ASSERT_TRUE(Receive(Chunk(3), stream).ok());
  EXPECT_TRUE(receiver_.EndGroup(cut).ok()) << "it is whole, however the streams ended";
}

TEST_F(PullReceiverTest, AChunkThatComesTwiceIsTakenOnce) {
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(0), stream).ok());
  const auto again = Receive(Chunk(0), stream);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->again);
  EXPECT_EQ(receiver_.received_bytes(), static_cast<int64_t>(kChunkBytes));
}

TEST_F(PullReceiverTest, ADamagedChunkIsNotHeld) {
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  v1::PullResponse damaged = Chunk(0);
  ++(*damaged.mutable_chunk()->mutable_data())[5];
  EXPECT_EQ(Receive(damaged, stream).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.received_bytes(), 0);
  EXPECT_TRUE(Receive(Chunk(0), stream).ok());
}

TEST_F(PullReceiverTest, WhatDoesNotFitIsDataLoss) {
  bool stream = false;
  EXPECT_EQ(Receive(Chunk(0), stream).status().code(), absl::StatusCode::kDataLoss)
      << "a chunk before the header";
  ASSERT_TRUE(Header(stream).ok());
  v1::PullResponse beyond = Chunk(3);
  beyond.mutable_chunk()->set_offset(4 * static_cast<int64_t>(kChunkBytes));
  v1::PullResponse between = Chunk(0);
  between.mutable_chunk()->set_offset(1);
  v1::PullResponse cut = Chunk(0);
  cut.mutable_chunk()->mutable_data()->pop_back();
  for (const v1::PullResponse& wrong : {beyond, between, cut, v1::PullResponse()}) {
    EXPECT_EQ(Receive(wrong, stream).status().code(), absl::StatusCode::kDataLoss);
  }
  header_.set_total_bytes(7);
  EXPECT_EQ(Header(stream).code(), absl::StatusCode::kDataLoss);
}

TEST_F(PullReceiverTest, AStateThatMovesOnIsPulledFromTheStart) {
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(0), stream).ok());
  EXPECT_EQ(receiver_.EndGroup(absl::NotFoundError("version 4 is no longer kept")).code(),
            absl::StatusCode::kUnavailable);
  receiver_.BeginGroup(18);
  EXPECT_EQ(receiver_.Request().round(), 0);
  EXPECT_TRUE(receiver_.Request().held_chunks().empty());
}

TEST_F(PullReceiverTest, AnotherObjectThanBeforeEndsTheStreamAndStartsAgain) {
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  ASSERT_TRUE(Receive(Chunk(0), stream).ok());
  header_.set_object_hash(1);
  EXPECT_EQ(Header(stream).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(receiver_.EndGroup(absl::OkStatus()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(receiver_.received_bytes(), 0);
}

TEST_F(PullReceiverTest, AnObjectThatDoesNotHashToItsHeaderIsNotTaken) {
  header_.set_object_hash(1);
  bool stream = false;
  ASSERT_TRUE(Header(stream).ok());
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Receive(Chunk(i), stream).ok());
  EXPECT_EQ(receiver_.EndGroup(absl::OkStatus()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.received_bytes(), 0);
}

}  // namespace
}  // namespace causeway::worker
