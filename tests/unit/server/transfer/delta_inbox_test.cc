#include "server/transfer/delta_inbox.h"

#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/transfer/fake_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);

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

class DeltaInboxTest : public ::testing::Test {
 protected:
  // Remembers what it is told.
  class Bearer final : public DeltaBearer {
   public:
    void EndOffer(uint64_t transfer, const absl::StatusOr<v1::PushResponse>& result) override {
      EXPECT_TRUE(ends_.try_emplace(transfer, result).second) << "told twice";
    }
    bool ended(uint64_t transfer) const { return ends_.contains(transfer); }
    const absl::StatusOr<v1::PushResponse>& end(uint64_t transfer) const {
      return ends_.at(transfer);
    }
    absl::StatusCode code(uint64_t transfer) const { return end(transfer).status().code(); }

   private:
    std::map<uint64_t, absl::StatusOr<v1::PushResponse>> ends_;
  };
  using Delta = std::shared_ptr<DeltaInbox::Delta>;

  explicit DeltaInboxTest(int64_t memory_chunks = 100)
      : memory_(memory_chunks * kChunk),
        inbox_(std::make_shared<DeltaInbox>(
            coordinator_, DeltaInbox::Options{.memory = &memory_,
                                              .run_long = [](const auto& task) { task(); },
                                              .clock = &clock_})) {}

  absl::StatusOr<Delta> TryOffer(const std::shared_ptr<Bearer>& bearer, uint64_t transfer,
                                 const v1::PushHeader& header) {
    return inbox_->Offer(bearer, transfer, header, accepted_);
  }
  Delta Offer(const std::shared_ptr<Bearer>& bearer, uint64_t transfer,
              const v1::PushHeader& header) {
    const absl::StatusOr<Delta> delta = TryOffer(bearer, transfer, header);
    EXPECT_TRUE(delta.ok()) << delta.status();
    return delta.ok() ? *delta : nullptr;
  }
  void Put(const Delta& delta, const std::vector<uint8_t>& object, int64_t chunk) {
    inbox_->Moved("a");
    const auto place = delta->chunks->PlaceOf(chunk);
    ASSERT_TRUE(place.has_value());
    if (place->empty()) return;
    std::memcpy(place->data(), object.data() + chunk * kChunk, place->size());
    if (delta->chunks->Placed(chunk, Checksum64(*place))) inbox_->Whole(delta);
  }
  void Put(const Delta& delta, const std::vector<uint8_t>& object,
           std::initializer_list<int64_t> chunks) {
    for (const int64_t chunk : chunks) Put(delta, object, chunk);
  }
  void ExpectNothingKept() {
    EXPECT_EQ(inbox_->counters().deltas, 0u);
    EXPECT_EQ(memory_.taken(), 0);
  }
  static int64_t Held(const Delta& delta) { return delta->chunks->held().held_chunks(); }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    inbox_->Tick();
  }

  FakeClock clock_;
  FakeCoordinator coordinator_;
  ByteBudget memory_;
  std::shared_ptr<DeltaInbox> inbox_;
  v1::PushResponse accepted_;
  const std::vector<uint8_t> object_ = MakeObject(2 * kChunk, 1);
  const std::shared_ptr<Bearer> bearer_ = std::make_shared<Bearer>();
};

TEST_F(DeltaInboxTest, WhoeverOffersTheObjectHearsOfItsEnd) {
  const std::vector<uint8_t> object = MakeObject(3 * kChunk + 17, 1);
  v1::PushHeader header = HeaderOf(object);
  header.set_tokens(666);
  const auto other = std::make_shared<Bearer>();
  const Delta delta = Offer(bearer_, 1, header);
  EXPECT_EQ(Offer(other, 7, header), delta);
  for (const int64_t chunk : {3, 1, 0}) Put(delta, object, chunk);
  EXPECT_FALSE(bearer_->ended(1));
  Put(delta, object, 2);
  ASSERT_TRUE(bearer_->ended(1) && other->ended(7));
  for (const auto& end : {bearer_->end(1), other->end(7)}) {
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->durable_bytes(), std::ssize(object));
    EXPECT_FALSE(end->duplicate());
    EXPECT_TRUE(end->quarantined());
  }
  coordinator_.ExpectOnly(object);
  ExpectNothingKept();
  EXPECT_EQ(Offer(bearer_, 2, header), nullptr) << "it was accepted before";
  EXPECT_TRUE(accepted_.duplicate());
}

// The merge may take seconds, and a sender that waits for it holds a delta that is durable.
TEST_F(DeltaInboxTest, TheSenderIsToldBeforeTheRoundIsMerged) {
  std::vector<int> merged;
  uint64_t transfer = 1;
  coordinator_.on_merge = [&](int fragment) {
    EXPECT_TRUE(bearer_->ended(transfer));
    EXPECT_EQ(memory_.taken(), 0);
    merged.push_back(fragment);
  };
  const Delta accepted = Offer(bearer_, 1, HeaderOf(object_, 1, 3));
  for (const int64_t chunk : {0, 1}) Put(accepted, object_, chunk);
  EXPECT_TRUE(bearer_->end(1).ok());
  // The round may have waited for this one to be verified.
  transfer = 2;
  coordinator_.verdict = absl::InvalidArgumentError("malformed");
  const Delta refused = Offer(bearer_, 2, HeaderOf(object_, 1, 4));
  for (const int64_t chunk : {0, 1}) Put(refused, object_, chunk);
  EXPECT_EQ(bearer_->code(2), kInvalidArgument);
  EXPECT_EQ(merged, std::vector<int>({3, 4}));
}

TEST_F(DeltaInboxTest, CutAnywhereItGoesOnWithWhatIsMissing) {
  const std::vector<uint8_t> object = MakeObject(4 * kChunk + 1, 2);
  for (int64_t cut = 0; cut <= 4; ++cut) {
    v1::PushHeader header = HeaderOf(object, 1 + cut);
    {
      const auto gone = std::make_shared<Bearer>();
      const Delta delta = Offer(gone, 1, header);
      // From the end, so that what is held is no prefix.
      for (int64_t i = 0; i < cut; ++i) Put(delta, object, 4 - i);
    }
    Advance(absl::Minutes(5));
    header.set_incarnation(2);
    const auto transfer = static_cast<uint64_t>(cut);
    const Delta delta = Offer(bearer_, transfer, header);
    EXPECT_EQ(Held(delta), cut);
    for (int64_t i = 0; i < 5 - cut; ++i) Put(delta, object, i);
    ASSERT_TRUE(bearer_->ended(transfer));
    EXPECT_TRUE(bearer_->end(transfer).ok()) << bearer_->end(transfer).status();
    coordinator_.ExpectOnly(object);
    EXPECT_EQ(coordinator_.contributions[0].first.incarnation(), 2u) << "of who brought the last";
    coordinator_.contributions.clear();
  }
  EXPECT_EQ(inbox_->counters().resumed_chunks, 0 + 1 + 2 + 3 + 4);
}

TEST_F(DeltaInboxTest, TheSameChunkOverTwoLanesAtOnceHasOnePlace) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 3);
  const Delta delta = Offer(bearer_, 1, HeaderOf(object));
  ChunkAssembly& chunks = *delta->chunks;
  EXPECT_EQ(chunks.PlaceOf(1)->size(), kChunkBytes);
  EXPECT_FALSE(chunks.PlaceOf(1).has_value()) << "somebody is writing there";
  chunks.Placed(1, absl::DataLossError("damaged"));
  EXPECT_EQ(chunks.PlaceOf(1)->size(), kChunkBytes) << "it was damaged: it may come again";
  chunks.Placed(1, 5);
  EXPECT_TRUE(chunks.PlaceOf(1)->empty()) << "it is there";
  EXPECT_EQ(Held(delta), 1);
}

TEST_F(DeltaInboxTest, LeavesAreMeasuredAsTheyComeAndTheCoordinatorHearsWhichWere) {
  std::vector<uint8_t> object = MakeObject(3 * kChunk + 5, 3);
  for (const bool valid : {true, false}) {
    object[2 * kChunkBytes] = valid ? 0 : 0xff;
    const uint64_t transfer = valid ? 1 : 2;
    const Delta delta = Offer(bearer_, transfer, HeaderOf(object));
    for (const int64_t chunk : {2, 0, 3, 1}) Put(delta, object, chunk);
    EXPECT_TRUE(bearer_->end(transfer).ok());
    std::vector<std::vector<double>> squares = {{0}, {1}, {2}, {3}};
    if (!valid) squares[2].clear();
    EXPECT_EQ(coordinator_.squares, squares);
  }
}

TEST_F(DeltaInboxTest, AnObjectThatDoesNotHashToItsHeaderIsDroppedWhole) {
  const std::vector<uint8_t> object = MakeObject(2 * kChunk, 4);
  v1::PushHeader header = HeaderOf(object);
  header.set_object_hash(7);
  Delta delta = Offer(bearer_, 1, header);
  Put(delta, object, {0, 1});
  EXPECT_EQ(bearer_->code(1), kDataLoss);
  delta = nullptr;
  EXPECT_EQ(memory_.taken(), 0);
  EXPECT_EQ(Held(Offer(bearer_, 2, header)), 0);
}

TEST_F(DeltaInboxTest, AnotherObjectOfTheSameKeyTakesThePlace) {
  const std::vector<uint8_t> other = MakeObject(2 * kChunk, 2);
  const Delta first = Offer(bearer_, 1, HeaderOf(object_));
  Put(first, object_, 0);
  const Delta second = Offer(bearer_, 2, HeaderOf(other));
  EXPECT_EQ(bearer_->code(1), kUnavailable);
  Put(first, object_, 1);  // In vain.
  EXPECT_TRUE(coordinator_.contributions.empty());
  Put(second, other, {0, 1});
  ASSERT_TRUE(bearer_->ended(2));
  coordinator_.ExpectOnly(other);
}

TEST_F(DeltaInboxTest, WhenTheRoundClosesDuringAnUploadItsBearersAreTold) {
  const auto other = std::make_shared<Bearer>();
  const Delta delta = Offer(bearer_, 1, HeaderOf(object_));
  Offer(other, 1, HeaderOf(object_));
  Put(delta, object_, 0);
  coordinator_.Close(0, 2);
  coordinator_.Close(1, 1);
  EXPECT_FALSE(bearer_->ended(1));
  coordinator_.Close(0, 1);
  EXPECT_EQ(bearer_->code(1), kAborted);
  EXPECT_EQ(other->code(1), kAborted);
  EXPECT_EQ(inbox_->counters().deltas, 0u);
}

TEST_F(DeltaInboxTest, NeitherOfTwoOffersAtOnceLeavesAnythingBehind) {
  bool first = true;
  coordinator_.on_begin = [&] {
    if (!std::exchange(first, false)) return;
    // Comes over another lane, and its callback takes the place of the first one's.
    EXPECT_TRUE(TryOffer(bearer_, 1, HeaderOf(object_)).ok());
    coordinator_.Close(0, 1);
  };
  EXPECT_THAT(TryOffer(bearer_, 1, HeaderOf(object_)), StatusIs(kAborted));
  EXPECT_EQ(bearer_->code(1), kAborted);
  ExpectNothingKept();
}

TEST_F(DeltaInboxTest, ARoundThatClosesAfterTheInboxIsGoneFindsNobody) {
  Offer(bearer_, 1, HeaderOf(object_));
  inbox_ = nullptr;
  coordinator_.Close(0, 1);
  EXPECT_FALSE(bearer_->ended(1));
}

TEST_F(DeltaInboxTest, ACompleteObjectThatMayNotBeTakenNowIsTakenLater) {
  uint64_t transfer = 0;
  for (const absl::Status& now : {absl::UnavailableError("an older incarnation"),
                                  absl::ResourceExhaustedError("the disk is full")}) {
    v1::PushHeader header = HeaderOf(object_, static_cast<int64_t>(++transfer));
    const Delta delta = Offer(bearer_, transfer, header);
    Put(delta, object_, 0);
    coordinator_.admission = now;
    Put(delta, object_, 1);
    EXPECT_EQ(bearer_->code(transfer), now.code());
    EXPECT_EQ(coordinator_.contributions.size(), (transfer - 1) / 2);
    coordinator_.admission = absl::OkStatus();
    header.set_incarnation(2);
    EXPECT_EQ(Held(Offer(bearer_, ++transfer, header)), 2);
    ASSERT_TRUE(bearer_->ended(transfer)) << "nothing need be sent";
    EXPECT_TRUE(bearer_->end(transfer).ok());
    EXPECT_EQ(coordinator_.contributions.back().first.incarnation(), 2u);
  }
}

TEST_F(DeltaInboxTest, WhatNobodyGoesOnWithIsDroppedAfterAWhile) {
  {
    const auto gone = std::make_shared<Bearer>();
    Put(Offer(gone, 1, HeaderOf(object_)), object_, 0);
  }
  Advance(absl::Minutes(9));
  EXPECT_EQ(inbox_->counters().deltas, 1u);
  EXPECT_EQ(memory_.taken(), 2 * kChunk);
  Advance(absl::Minutes(2));
  ExpectNothingKept();
}

class SmallDeltaInboxTest : public DeltaInboxTest {
 protected:
  SmallDeltaInboxTest() : DeltaInboxTest(4) {}
};

TEST_F(SmallDeltaInboxTest, TheLongestIdleObjectMakesRoom) {
  for (const int fragment : {0, 1}) {
    const auto gone = std::make_shared<Bearer>();
    Put(Offer(gone, 1, HeaderOf(object_, 1, fragment)), object_, 0);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(memory_.taken(), 4 * kChunk);
  EXPECT_NE(Offer(bearer_, 1, HeaderOf(object_, 1, 2)), nullptr);
  EXPECT_EQ(inbox_->counters().evicted, 1);
  EXPECT_EQ(Held(Offer(bearer_, 2, HeaderOf(object_, 1, 1))), 1) << "the other one was older";
}

TEST_F(SmallDeltaInboxTest, WhoSendsNothingForAMinuteMakesRoomAndIsTold) {
  const std::vector<uint8_t> object = MakeObject(3 * kChunk, 1);
  Put(Offer(bearer_, 1, HeaderOf(object)), object, 0);
  v1::PushHeader other = HeaderOf(object);
  other.set_worker_id("b");
  const auto next = std::make_shared<Bearer>();
  clock_.Advance(absl::Seconds(59));
  EXPECT_THAT(TryOffer(next, 1, other), StatusIs(kResourceExhausted));
  clock_.Advance(absl::Seconds(2));
  EXPECT_NE(Offer(next, 2, other), nullptr);
  EXPECT_EQ(bearer_->code(1), kUnavailable);
}

TEST_F(SmallDeltaInboxTest, WhereEverybodyIsSendingTheNextOneWaitsForRoom) {
  const Delta first = Offer(bearer_, 1, HeaderOf(object_, 1, 0));
  Offer(bearer_, 2, HeaderOf(object_, 1, 1));
  Put(first, object_, 0);
  EXPECT_THAT(TryOffer(bearer_, 3, HeaderOf(object_, 1, 2)),
              StatusIs(kResourceExhausted, HasSubstr("try again")));
  Put(first, object_, 1);
  EXPECT_TRUE(bearer_->end(1).ok());
  EXPECT_EQ(memory_.taken(), 2 * kChunk) << "an accepted object is the coordinator's";
  const Delta third = Offer(bearer_, 4, HeaderOf(object_, 1, 2));
  Put(third, object_, {0, 1});
  EXPECT_TRUE(bearer_->end(4).ok());
}

TEST_F(SmallDeltaInboxTest, AnObjectLargerThanTheMemoryIsRefused) {
  const std::vector<uint8_t> object = MakeObject(4 * kChunk + 1, 1);
  EXPECT_THAT(TryOffer(bearer_, 1, HeaderOf(object)), StatusIs(kResourceExhausted));
  EXPECT_EQ(memory_.taken(), 0);
}

}  // namespace
}  // namespace causeway::server
