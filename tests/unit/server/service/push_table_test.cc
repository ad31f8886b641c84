#include "server/service/push_table.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/push_receiver.h"
#include "tests/unit/common/transfer/proto_chunk.h"
#include "tests/unit/server/service/fake_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);

std::vector<uint8_t> MakeObject(int64_t bytes, uint64_t seed) {
  std::vector<uint8_t> object(static_cast<size_t>(bytes));
  for (size_t i = 0; i < object.size(); i += 64) {
    object[i] = static_cast<uint8_t>(RandomBits(seed, 0, i));
  }
  return object;
}

v1::PushHeader HeaderOf(const std::vector<uint8_t>& object, int64_t round = 1, int fragment = 0) {
  v1::PushHeader header;
  header.set_worker_id("a");
  header.set_incarnation(1);
  header.set_fragment(fragment);
  header.set_round(round);
  header.set_total_bytes(static_cast<int64_t>(object.size()));
  header.set_object_hash(TreeHash(object));
  return header;
}

class PushTableTest : public ::testing::Test {
 protected:
  // A stream as the reactor drives it.
  class Stream final : public PushStream {
   public:
    void End(const absl::StatusOr<PushAccepted>& result) override {
      if (!result_.has_value()) result_ = result;
    }
    bool ended() const { return result_.has_value(); }
    absl::StatusCode code() const { return result_.value().status().code(); }
    const absl::StatusOr<PushAccepted>& result() const { return result_.value(); }

   private:
    std::optional<absl::StatusOr<PushAccepted>> result_;
  };

  struct Push {
    Push(PushTable& table_used, const v1::PushHeader& header)
        : table(table_used),
          receiver(table, stream.get(), [](const v1::PushHeader&) { return absl::OkStatus(); }) {
      EXPECT_TRUE(table.Open(stream, "worker a").ok());
      v1::PushRequest request;
      *request.mutable_header() = header;
      Receive(request).IgnoreError();  // The stream has ended with it.
    }
    ~Push() { table.Close(stream.get()); }
    Push(const Push&) = delete;
    Push& operator=(const Push&) = delete;

    absl::Status Receive(const v1::PushRequest& request) {
      const std::string bytes = request.SerializeAsString();
      const FlatMessage message({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
      const auto next = receiver.Receive(message);
      absl::Status status = next.status();
      if (next.ok() && *next == PushReceiver::Next::kUnpack) status = receiver.Unpack(message);
      if (next.ok() && *next == PushReceiver::Next::kDone) {
        stream->End(PushAccepted{.duplicate = true});
      }
      if (!status.ok()) stream->End(status);
      return status;
    }
    absl::Status Send(const std::vector<uint8_t>& object, int64_t chunk, bool entropy = false) {
      const auto offset = static_cast<size_t>(chunk * kChunk);
      v1::PushRequest request;
      FillChunk(chunk * kChunk,
                std::span(object).subspan(offset, std::min(kChunkBytes, object.size() - offset)),
                entropy, *request.mutable_chunk());
      return Receive(request);
    }
    // The client is gone.
    void Break() { table.Close(stream.get()); }

    PushTable& table;
    std::shared_ptr<Stream> stream = std::make_shared<Stream>();
    PushReceiver receiver;
  };

  explicit PushTableTest(int64_t memory_chunks = 100)
      : memory_(memory_chunks * kChunk),
        table_(
            coordinator_,
            {.memory = &memory_, .run_long = [](const auto& task) { task(); }, .clock = &clock_}) {}

  v1::QueryTransferResponse Query(const v1::PushHeader& header) {
    v1::QueryTransferRequest request;
    request.set_worker_id(header.worker_id());
    request.set_fragment(header.fragment());
    request.set_round(header.round());
    request.set_object_hash(header.object_hash());
    return table_.Query(request).value();
  }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    table_.Tick();
  }

  FakeClock clock_;
  FakeCoordinator coordinator_;
  ByteBudget memory_;
  PushTable table_;
};

TEST_F(PushTableTest, StripesBringTheChunksOfOneObjectInAnyOrder) {
  const std::vector<uint8_t> object = MakeObject(5 * kChunk + 17, 1);
  const v1::PushHeader header = HeaderOf(object);
  {
    Push first(table_, header);
    Push second(table_, header);
    Push third(table_, header);
    EXPECT_TRUE(second.Send(object, 5, true).ok());
    EXPECT_TRUE(first.Send(object, 1).ok());
    EXPECT_TRUE(second.Send(object, 0, true).ok());
    EXPECT_TRUE(first.Send(object, 4).ok());
    EXPECT_TRUE(first.Send(object, 3).ok());
    EXPECT_FALSE(first.stream->ended());
    EXPECT_TRUE(second.Send(object, 2).ok());
    for (const Push* const push : {&first, &second, &third}) {
      ASSERT_TRUE(push->stream->ended());
      ASSERT_TRUE(push->stream->result().ok()) << push->stream->result().status();
      EXPECT_FALSE(push->stream->result()->duplicate);
    }
  }
  ASSERT_EQ(coordinator_.contributions.size(), 1u) << "once";
  EXPECT_TRUE(coordinator_.contributions[0].second == object);
  EXPECT_EQ(memory_.taken(), 0);
  EXPECT_EQ(table_.counters().assemblies, 0u);
  EXPECT_EQ(table_.counters().duplicate_chunks, 0);
}

TEST_F(PushTableTest, AStreamOfWhatWasAcceptedIsDoneAtOnce) {
  const std::vector<uint8_t> object = MakeObject(10, 1);
  Push push(table_, HeaderOf(object));
  EXPECT_TRUE(push.Send(object, 0).ok());
  Push again(table_, HeaderOf(object));
  ASSERT_TRUE(again.stream->ended());
  EXPECT_TRUE(again.stream->result()->duplicate);
}

TEST_F(PushTableTest, QuarantineIsToldToEveryStripe) {
  const std::vector<uint8_t> object = MakeObject(10, 1);
  v1::PushHeader header = HeaderOf(object);
  header.set_tokens(666);
  Push first(table_, header);
  Push second(table_, header);
  EXPECT_TRUE(first.Send(object, 0).ok());
  EXPECT_TRUE(first.stream->result()->quarantined);
  EXPECT_TRUE(second.stream->result()->quarantined);
}

TEST_F(PushTableTest, CutAnywhereItGoesOnWithWhatIsMissing) {
  const std::vector<uint8_t> object = MakeObject(4 * kChunk + 1, 2);
  for (int64_t cut = 0; cut <= 4; ++cut) {
    const v1::PushHeader header = HeaderOf(object, 1 + cut);
    {
      Push first(table_, header);
      // From the end, so that what is held is no prefix.
      for (int64_t i = 0; i < cut; ++i) EXPECT_TRUE(first.Send(object, 4 - i).ok());
      first.Break();
      EXPECT_FALSE(first.stream->ended());
    }
    clock_.Advance(absl::Minutes(5));
    const v1::QueryTransferResponse found = Query(header);
    EXPECT_EQ(found.state(),
              cut == 0 ? v1::QueryTransferResponse::UNKNOWN : v1::QueryTransferResponse::PARTIAL);
    const auto held = ChunkSet::FromWire(header.total_bytes(), found.held_chunks());
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(held->held_chunks(), cut);
    EXPECT_EQ(held->held_bytes(), found.durable_bytes());
    v1::PushHeader later = header;
    later.set_incarnation(2);
    Push second(table_, later);
    for (int64_t i = held->FirstMissing(); i < held->chunks(); i = held->FirstMissing(i + 1)) {
      EXPECT_TRUE(second.Send(object, i).ok());
    }
    ASSERT_TRUE(second.stream->ended());
    EXPECT_TRUE(second.stream->result().ok()) << second.stream->result().status();
    ASSERT_EQ(coordinator_.contributions.size(), 1u);
    EXPECT_TRUE(coordinator_.contributions[0].second == object);
    EXPECT_EQ(coordinator_.contributions[0].first.incarnation(), 2u) << "of who brought the last";
    coordinator_.contributions.clear();
  }
}

TEST_F(PushTableTest, ChunksThatCameBeforeAreCountedAndDropped) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 3);
  Push push(table_, HeaderOf(object));
  EXPECT_TRUE(push.Send(object, 0).ok());
  EXPECT_TRUE(push.Send(object, 0).ok());
  std::vector<uint8_t> other = object;
  other[5] ^= 1;
  EXPECT_TRUE(push.Send(other, 0).ok()) << "not even looked at";
  EXPECT_EQ(table_.counters().duplicate_chunks, 2);
  EXPECT_TRUE(push.Send(object, 1).ok());
  EXPECT_TRUE(push.stream->result().ok());
}

TEST_F(PushTableTest, TheSameChunkOverTwoStripesAtOnceHasOnePlace) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 3);
  const v1::PushHeader header = HeaderOf(object);
  const auto first = std::make_shared<Stream>();
  ASSERT_TRUE(table_.Open(first, "worker a").ok());
  const auto assembly = table_.Attach(first.get(), header);
  ASSERT_TRUE(assembly.ok());
  EXPECT_EQ(table_.PlaceOf(**assembly, 1).size(), kChunkBytes);
  EXPECT_TRUE(table_.PlaceOf(**assembly, 1).empty()) << "somebody is writing there";
  table_.Placed(*assembly, 1, absl::DataLossError("damaged"));
  EXPECT_EQ(table_.PlaceOf(**assembly, 1).size(), kChunkBytes)
      << "it was damaged: it may come again";
  table_.Placed(*assembly, 1, 5);
  EXPECT_EQ(Query(header).durable_bytes(), kChunk);
  table_.Close(first.get());
}

TEST_F(PushTableTest, LeavesAreValidatedAsTheyComeAndTheCoordinatorHearsWhetherAllWere) {
  std::vector<uint8_t> object = MakeObject(3 * kChunk + 5, 3);
  for (const bool valid : {true, false}) {
    object[2 * kChunkBytes] = valid ? 0 : 0xff;
    Push push(table_, HeaderOf(object));
    for (const int64_t chunk : {2, 0, 3, 1}) {
      EXPECT_TRUE(push.Send(object, chunk, /*entropy=*/chunk == 1).ok());
    }
    EXPECT_TRUE(push.stream->result().ok());
    EXPECT_EQ(coordinator_.leaves_valid, valid);
  }
}

TEST_F(PushTableTest, NobodyTakesTheStreamsOfOthers) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (size_t i = 0; i < PushTable::Options().max_streams_of_sender; ++i) {
    streams.push_back(std::make_shared<Stream>());
    ASSERT_TRUE(table_.Open(streams.back(), "worker a").ok()) << "stream " << i;
  }
  const auto one_more = std::make_shared<Stream>();
  EXPECT_EQ(table_.Open(one_more, "worker a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table_.Open(one_more, "worker b").ok());
  table_.Close(streams.back().get());
  EXPECT_TRUE(table_.Open(streams.back(), "worker a").ok()) << "one has ended";
  table_.Close(one_more.get());
  for (const auto& stream : streams) table_.Close(stream.get());
  EXPECT_EQ(table_.counters().streams, 0U);
}

TEST_F(PushTableTest, ADamagedChunkEndsItsStripeAlone) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 4);
  Push good(table_, HeaderOf(object));
  Push bad(table_, HeaderOf(object));
  v1::PushRequest request;
  FillChunk(0, std::span(object).first(kChunkBytes), false, *request.mutable_chunk());
  request.mutable_chunk()->set_checksum(1);
  EXPECT_EQ(bad.Receive(request).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(good.stream->ended());
  EXPECT_TRUE(good.Send(object, 0).ok());
  EXPECT_TRUE(good.Send(object, 1).ok());
  EXPECT_TRUE(good.stream->result().ok());
}

TEST_F(PushTableTest, AnObjectThatDoesNotHashToItsHeaderIsDroppedWhole) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 4);
  v1::PushHeader header = HeaderOf(object);
  header.set_object_hash(7);
  Push push(table_, header);
  EXPECT_TRUE(push.Send(object, 0).ok());
  EXPECT_TRUE(push.Send(object, 1).ok());
  EXPECT_EQ(push.stream->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Query(header).state(), v1::QueryTransferResponse::UNKNOWN);
  EXPECT_EQ(memory_.taken(), 0);
}

TEST_F(PushTableTest, HostileMessagesEndTheStreamAndNothingElse) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 4);
  const v1::PushHeader header = HeaderOf(object);
  Push honest(table_, header);
  for (const int64_t offset :
       {int64_t{1}, kChunk - 1, 2 * kChunk, int64_t{-1}, -kChunk, INT64_MAX, INT64_MIN}) {
    Push push(table_, header);
    v1::PushRequest request;
    FillChunk(offset, std::span(object).first(10), false, *request.mutable_chunk());
    EXPECT_EQ(push.Receive(request).code(), absl::StatusCode::kOutOfRange) << offset;
  }
  {
    Push push(table_, header);
    v1::PushRequest request;
    FillChunk(kChunk, std::span(object).first(kChunkBytes - 1), false, *request.mutable_chunk());
    EXPECT_EQ(push.Receive(request).code(), absl::StatusCode::kInvalidArgument);
  }
  {
    Push push(table_, header);
    v1::PushRequest request;
    *request.mutable_header() = header;
    EXPECT_EQ(push.Receive(request).code(), absl::StatusCode::kInvalidArgument);
  }
  {
    Push push(table_, header);
    EXPECT_EQ(push.Receive({}).code(), absl::StatusCode::kInvalidArgument);
  }
  const auto headless = std::make_shared<Stream>();
  ASSERT_TRUE(table_.Open(headless, "worker a").ok());
  PushReceiver receiver(table_, headless.get(),
                        [](const v1::PushHeader&) { return absl::OkStatus(); });
  EXPECT_EQ(receiver.HalfClose().code(), absl::StatusCode::kInvalidArgument);
  v1::PushRequest chunk;
  FillChunk(0, std::span(object).first(10), false, *chunk.mutable_chunk());
  const std::string bytes = chunk.SerializeAsString();
  EXPECT_EQ(
      receiver.Receive(FlatMessage({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}))
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
  table_.Close(headless.get());
  EXPECT_TRUE(honest.Send(object, 0).ok());
  EXPECT_TRUE(honest.Send(object, 1).ok());
  EXPECT_TRUE(honest.stream->result().ok());
}

TEST_F(PushTableTest, WhoMayNotPushForTheWorkerIsRefusedAtItsHeader) {
  const std::vector<uint8_t> object = MakeObject(10, 1);
  const auto stream = std::make_shared<Stream>();
  ASSERT_TRUE(table_.Open(stream, "worker a").ok());
  PushReceiver receiver(table_, stream.get(), [](const v1::PushHeader& header) {
    return absl::PermissionDeniedError(header.worker_id());
  });
  v1::PushRequest request;
  *request.mutable_header() = HeaderOf(object);
  const std::string bytes = request.SerializeAsString();
  EXPECT_EQ(
      receiver.Receive(FlatMessage({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}))
          .status()
          .code(),
      absl::StatusCode::kPermissionDenied);
  table_.Close(stream.get());
  EXPECT_EQ(memory_.taken(), 0);
}

TEST_F(PushTableTest, AnotherObjectOfTheSameKeyTakesThePlace) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  const std::vector<uint8_t> other = MakeObject(2 * kChunk, 2);
  Push first(table_, HeaderOf(object));
  EXPECT_TRUE(first.Send(object, 0).ok());
  Push second(table_, HeaderOf(other));
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Query(HeaderOf(object)).state(), v1::QueryTransferResponse::UNKNOWN);
  EXPECT_TRUE(first.Send(object, 1).ok()) << "in vain";
  EXPECT_TRUE(second.Send(other, 0).ok());
  EXPECT_TRUE(second.Send(other, 1).ok());
  ASSERT_TRUE(second.stream->ended());
  ASSERT_EQ(coordinator_.contributions.size(), 1u);
  EXPECT_TRUE(coordinator_.contributions[0].second == other);
}

TEST_F(PushTableTest, ObjectsOfDifferentFragmentsAndRoundsGoSideBySide) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  const std::vector<uint8_t> other = MakeObject(2 * kChunk, 2);
  Push first(table_, HeaderOf(object, 1, 0));
  Push second(table_, HeaderOf(other, 1, 1));
  EXPECT_TRUE(first.Send(object, 1).ok());
  EXPECT_TRUE(second.Send(other, 1).ok());
  EXPECT_TRUE(first.Send(object, 0).ok());
  EXPECT_TRUE(first.stream->ended());
  EXPECT_FALSE(second.stream->ended());
  EXPECT_TRUE(second.Send(other, 0).ok());
  EXPECT_EQ(coordinator_.contributions.size(), 2u);
}

TEST_F(PushTableTest, WhenTheRoundClosesDuringAnUploadItsStreamsAreTold) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  Push first(table_, HeaderOf(object));
  Push second(table_, HeaderOf(object));
  EXPECT_TRUE(first.Send(object, 0).ok());
  Advance(absl::Seconds(2));
  EXPECT_FALSE(first.stream->ended());
  coordinator_.admission = absl::AbortedError("closed");
  Advance(absl::Seconds(2));
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(second.stream->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(table_.counters().assemblies, 0u);
}

TEST_F(PushTableTest, WhatAFencedWorkerHasBroughtIsKeptForItsNextIncarnation) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  Push first(table_, HeaderOf(object));
  EXPECT_TRUE(first.Send(object, 0).ok());
  coordinator_.admission = absl::UnavailableError("an older incarnation");
  Advance(absl::Seconds(2));
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kUnavailable);
  coordinator_.admission = absl::OkStatus();
  EXPECT_EQ(Query(HeaderOf(object)).durable_bytes(), kChunk);
}

TEST_F(PushTableTest, ACompleteObjectThatMayNotBeTakenNowIsTakenLater) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  Push first(table_, HeaderOf(object));
  EXPECT_TRUE(first.Send(object, 0).ok());
  coordinator_.admission = absl::ResourceExhaustedError("the disk is full");
  EXPECT_TRUE(first.Send(object, 1).ok());
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(coordinator_.contributions.empty());
  coordinator_.admission = absl::OkStatus();
  EXPECT_EQ(Query(HeaderOf(object)).durable_bytes(), 2 * kChunk);
  Push second(table_, HeaderOf(object));
  ASSERT_TRUE(second.stream->ended()) << "nothing need be sent";
  EXPECT_TRUE(second.stream->result().ok());
  EXPECT_EQ(coordinator_.contributions.size(), 1u);
}

TEST_F(PushTableTest, WhenAllStripesAreAtTheirEndTheMissingChunksAreAskedFor) {
  const std::vector<uint8_t> object = MakeObject(3 * kChunk, 1);
  Push first(table_, HeaderOf(object));
  EXPECT_TRUE(first.Send(object, 0).ok());
  EXPECT_TRUE(first.receiver.HalfClose().ok());
  Advance(absl::Seconds(9));
  EXPECT_FALSE(first.stream->ended()) << "another stripe may still come";
  Push second(table_, HeaderOf(object));
  Advance(absl::Seconds(11));
  EXPECT_FALSE(first.stream->ended()) << "it is open";
  EXPECT_TRUE(second.Send(object, 1).ok());
  EXPECT_TRUE(second.receiver.HalfClose().ok());
  Advance(absl::Seconds(11));
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.stream->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Query(HeaderOf(object)).durable_bytes(), 2 * kChunk);
}

TEST_F(PushTableTest, StreamsThatDoNotMoveAreEndedAndTheirChunksKept) {
  const std::vector<uint8_t> object = MakeObject(3 * kChunk, 1);
  const std::vector<uint8_t> other = MakeObject(3 * kChunk, 2);
  const auto headless = std::make_shared<Stream>();
  ASSERT_TRUE(table_.Open(headless, "worker a").ok());
  Push first(table_, HeaderOf(object));
  Push second(table_, HeaderOf(other, 1, 1));
  EXPECT_TRUE(first.Send(object, 0).ok());
  Advance(absl::Seconds(59));
  EXPECT_TRUE(second.Send(other, 0).ok());
  Advance(absl::Seconds(59));
  EXPECT_EQ(headless->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(first.stream->ended()) << "the worker's link is busy with another object";
  Advance(absl::Seconds(2));
  EXPECT_EQ(first.stream->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(second.stream->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Query(HeaderOf(object)).durable_bytes(), kChunk);
  table_.Close(headless.get());
}

TEST_F(PushTableTest, WhatNobodyGoesOnWithIsDroppedAfterAWhile) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  {
    Push push(table_, HeaderOf(object));
    EXPECT_TRUE(push.Send(object, 0).ok());
  }
  Advance(absl::Minutes(9));
  EXPECT_EQ(Query(HeaderOf(object)).durable_bytes(), kChunk);
  Advance(absl::Minutes(2));
  EXPECT_EQ(Query(HeaderOf(object)).state(), v1::QueryTransferResponse::UNKNOWN);
  EXPECT_EQ(memory_.taken(), 0);
}

class SmallPushTableTest : public PushTableTest {
 protected:
  SmallPushTableTest() : PushTableTest(4) {}
};

TEST_F(SmallPushTableTest, TheLongestIdleObjectMakesRoom) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  for (const int fragment : {0, 1}) {
    Push push(table_, HeaderOf(object, 1, fragment));
    EXPECT_TRUE(push.Send(object, 0).ok());
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(memory_.taken(), 4 * kChunk);
  Push third(table_, HeaderOf(object, 1, 2));
  EXPECT_FALSE(third.stream->ended());
  EXPECT_EQ(table_.counters().evicted, 1);
  EXPECT_EQ(Query(HeaderOf(object, 1, 0)).state(), v1::QueryTransferResponse::UNKNOWN);
  EXPECT_EQ(Query(HeaderOf(object, 1, 1)).state(), v1::QueryTransferResponse::PARTIAL);
}

TEST_F(SmallPushTableTest, WhereEverybodyIsSendingTheNextOneWaitsForRoom) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 1);
  auto first = std::make_unique<Push>(table_, HeaderOf(object, 1, 0));
  Push second(table_, HeaderOf(object, 1, 1));
  EXPECT_TRUE(first->Send(object, 0).ok());
  {
    Push third(table_, HeaderOf(object, 1, 2));
    EXPECT_EQ(third.stream->code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(third.stream->result().status().message()), HasSubstr("try again"));
  }
  EXPECT_TRUE(first->Send(object, 1).ok());
  EXPECT_TRUE(first->stream->result().ok());
  EXPECT_EQ(memory_.taken(), 2 * kChunk) << "an accepted object is the coordinator's";
  Push third(table_, HeaderOf(object, 1, 2));
  EXPECT_FALSE(third.stream->ended());
  EXPECT_TRUE(third.Send(object, 0).ok());
  EXPECT_TRUE(third.Send(object, 1).ok());
  EXPECT_TRUE(third.stream->result().ok());
  first = nullptr;
}

TEST_F(SmallPushTableTest, AnObjectLargerThanTheMemoryIsRefused) {
  const std::vector<uint8_t> object = MakeObject(4 * kChunk + 1, 1);
  Push push(table_, HeaderOf(object));
  EXPECT_EQ(push.stream->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_.taken(), 0);
}

}  // namespace
}  // namespace causeway::server
