#include "server/service/pull_table.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/codec/entropy_stage.h"
#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/service/fake_coordinator.h"

namespace causeway::server {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);

PullObject MakeObject(int64_t round, int64_t bytes) {
  PullObject object;
  object.bytes.resize(static_cast<size_t>(bytes));
  for (size_t i = 0; i < object.bytes.size(); ++i) {
    object.bytes[i] = static_cast<uint8_t>(RandomBits(static_cast<uint64_t>(round), 0, i / 8) % 3);
  }
  object.header.set_round(round);
  object.header.set_total_bytes(bytes);
  object.header.set_object_hash(TreeHash(object.bytes));
  return object;
}

// A connection: takes what it is given, and says so when the test lets it.
class Stream final : public PullStream {
 public:
  void SendHeader(const v1::PullHeader& header) override {
    EXPECT_FALSE(sending_ || end_.has_value());
    sending_ = true;
    header_ = header;
  }
  void SendChunk(const OutgoingChunk& chunk) override {
    EXPECT_FALSE(sending_ || end_.has_value());
    sending_ = true;
    chunks_.push_back(chunk);
  }
  void End(const absl::Status& status) override {
    if (!end_.has_value()) end_ = status;
  }

  bool sending() const { return sending_; }
  bool ended() const { return end_.has_value(); }
  absl::StatusCode code() const { return end_.value().code(); }
  const std::optional<v1::PullHeader>& header() const { return header_; }
  const std::vector<OutgoingChunk>& chunks() const { return chunks_; }
  // What was given last has left.
  void Leave(PullTable& table) {
    EXPECT_TRUE(sending_);
    sending_ = false;
    table.Sent(this);
  }

 private:
  bool sending_ = false;
  std::optional<v1::PullHeader> header_;
  std::vector<OutgoingChunk> chunks_;
  std::optional<absl::Status> end_;
};

class PullTableTest : public ::testing::Test {
 protected:
  explicit PullTableTest(bool entropy = false)
      : coordinator_(entropy),
        table_(std::make_shared<PullTable>(
            coordinator_, PullTable::Options{.cache = &cache_,
                                             .run_long = [](const auto& task) { task(); },
                                             .clock = &clock_})) {}

  static v1::PullRequest Answer(int64_t round, uint64_t group = 0, int64_t due_step = 0) {
    v1::PullRequest request;
    request.set_run_id("fake-1");
    request.set_worker_id("a");
    request.set_object(v1::PullRequest::ANSWER);
    request.set_round(round);
    request.set_stripe_group(group);
    request.set_due_step(due_step);
    return request;
  }
  std::shared_ptr<Stream> Open(const v1::PullRequest& request) {
    auto stream = std::make_shared<Stream>();
    table_->Open(request, stream);
    return stream;
  }
  // Lets all streams send until nothing moves any more.
  void Run(const std::vector<std::shared_ptr<Stream>>& streams) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& stream : streams) {
        if (!stream->sending() || stream->ended()) continue;
        stream->Leave(*table_);
        moved = true;
      }
    }
  }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    table_->Tick();
  }

  FakeClock clock_;
  FakeCoordinator coordinator_;
  ByteBudget cache_{100 * kChunk};
  std::shared_ptr<PullTable> table_;
};

// The chunks that the streams were given, put together.
void ExpectWhole(const std::vector<std::shared_ptr<Stream>>& streams, const PullObject& object,
                 const ChunkSet& held_before) {
  ChunkSet held = held_before;
  for (const auto& stream : streams) {
    for (const OutgoingChunk& chunk : stream->chunks()) {
      const auto index = CheckChunk(chunk.fields, object.header.total_bytes());
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_TRUE(held.Add(*index)) << "chunk " << *index << " was sent twice, or for nothing";
      EXPECT_EQ(chunk.fields.checksum, Checksum64(chunk.data));
      const auto expected = std::span(object.bytes)
                                .subspan(static_cast<size_t>(chunk.fields.offset),
                                         static_cast<size_t>(held.Size(*index)));
      if (chunk.fields.unpacked_bytes == 0) {
        EXPECT_TRUE(std::ranges::equal(chunk.data, expected));
        continue;
      }
      std::vector<uint8_t> plain(expected.size());
      const absl::string_view packed(reinterpret_cast<const char*>(chunk.data.data()),
                                     chunk.data.size());
      ASSERT_TRUE(EntropyUnpack(packed, plain).ok());
      EXPECT_TRUE(std::ranges::equal(plain, expected));
    }
  }
  EXPECT_TRUE(held.complete());
}

TEST_F(PullTableTest, StripesShareTheChunksAsTheyHaveRoom) {
  const PullObject object = MakeObject(1, 7 * kChunk + 3);
  const auto first = Open(Answer(1, 5));
  const auto second = Open(Answer(1, 5));
  EXPECT_FALSE(first->sending()) << "the round is not published";
  EXPECT_EQ(coordinator_.asked_for_answers, 1);
  coordinator_.Publish(0, 1, object);
  ASSERT_TRUE(first->header().has_value() && second->header().has_value());
  EXPECT_EQ(second->header()->object_hash(), object.header.object_hash());
  second->Leave(*table_);
  // The first one's connection is slow.
  for (int i = 0; i < 6; ++i) second->Leave(*table_);
  first->Leave(*table_);
  EXPECT_FALSE(second->ended()) << "its last chunk has not left";
  Run({first, second});
  EXPECT_EQ(first->chunks().size(), 1u);
  EXPECT_EQ(second->chunks().size(), 7u);
  EXPECT_EQ(first->code(), absl::StatusCode::kOk);
  EXPECT_EQ(second->code(), absl::StatusCode::kOk);
  ExpectWhole({first, second}, object, ChunkSet(object.header.total_bytes()));
  EXPECT_EQ(coordinator_.pulled_bytes, object.header.total_bytes());
  EXPECT_EQ(first->chunks()[0].data.data() - second->chunks()[0].data.data(),
            first->chunks()[0].fields.offset - second->chunks()[0].fields.offset)
      << "both borrow the object's memory";
}

TEST_F(PullTableTest, WhatTheWorkerHoldsIsNotSent) {
  const PullObject object = MakeObject(1, 3 * kChunk);
  coordinator_.Publish(0, 1, object);
  ChunkSet held(3 * kChunk);
  held.Add(1);
  v1::PullRequest request = Answer(1, 5);
  request.set_held_chunks(held.ToWire());
  const auto first = Open(request);
  const auto second = Open(Answer(1, 5));  // The first stream's count.
  Run({first, second});
  ExpectWhole({first, second}, object, held);

  held.Add(0);
  held.Add(2);
  request.set_held_chunks(held.ToWire());
  request.set_stripe_group(6);
  const auto nothing = Open(request);
  Run({nothing});
  EXPECT_TRUE(nothing->header().has_value());
  EXPECT_TRUE(nothing->chunks().empty());
  EXPECT_EQ(nothing->code(), absl::StatusCode::kOk);
}

TEST_F(PullTableTest, AChunkOnAStreamThatBrokeIsAskedForInANewGroup) {
  const PullObject object = MakeObject(1, 4 * kChunk);
  coordinator_.Publish(0, 1, object);
  const auto first = Open(Answer(1, 5));
  const auto second = Open(Answer(1, 5));
  first->Leave(*table_);
  second->Leave(*table_);
  ASSERT_EQ(first->chunks().size(), 1u);
  table_->Close(first.get());
  Run({second});
  EXPECT_EQ(second->code(), absl::StatusCode::kOk);
  EXPECT_EQ(second->chunks().size(), 3u);
  ChunkSet held(4 * kChunk);
  for (const OutgoingChunk& chunk : second->chunks()) held.Add(chunk.fields.offset / kChunk);
  v1::PullRequest again = Answer(1, 6);
  again.set_held_chunks(held.ToWire());
  const auto third = Open(again);
  Run({third});
  ExpectWhole({third}, object, held);
}

TEST_F(PullTableTest, AStripeThatComesLateFindsItsGroupDone) {
  const PullObject object = MakeObject(1, 2 * kChunk);
  coordinator_.Publish(0, 1, object);
  const auto first = Open(Answer(1, 5));
  Run({first});
  EXPECT_EQ(first->code(), absl::StatusCode::kOk);
  table_->Close(first.get());
  Advance(absl::Seconds(30));
  const auto late = Open(Answer(1, 5));
  Run({late});
  EXPECT_TRUE(late->header().has_value());
  EXPECT_TRUE(late->chunks().empty());
  EXPECT_EQ(late->code(), absl::StatusCode::kOk);
  table_->Close(late.get());
  EXPECT_EQ(table_->counters().groups, 1u);
  Advance(absl::Seconds(61));
  EXPECT_EQ(table_->counters().groups, 0u);
}

TEST_F(PullTableTest, AGroupIsOfOneObject) {
  const auto first = Open(Answer(1, 5));
  const auto second = Open(Answer(2, 5));
  EXPECT_EQ(second->code(), absl::StatusCode::kInvalidArgument);
  v1::PullRequest other = Answer(2, 5);
  other.set_worker_id("b");
  EXPECT_FALSE(Open(other)->ended()) << "numbers are the worker's own";
}

TEST_F(PullTableTest, HostileRequestsAreRefused) {
  coordinator_.Publish(0, 1, MakeObject(1, 2 * kChunk));
  const auto code = [this](const std::function<void(v1::PullRequest&)>& change) {
    v1::PullRequest request = Answer(1);
    change(request);
    const auto stream = Open(request);
    const absl::StatusCode result = stream->ended() ? stream->code() : absl::StatusCode::kOk;
    table_->Close(stream.get());
    return result;
  };
  using Request = v1::PullRequest;
  EXPECT_EQ(code([](Request&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](Request& r) { r.set_run_id("x"); }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](Request& r) { r.set_round(5000); }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](Request& r) { r.clear_object(); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.set_held_chunks("\x04"); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.set_held_chunks(std::string(1 << 20, '\0')); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.set_worker_id(std::string(65, 'x')); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.set_max_bytes_per_second(-1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_->counters().streams, 0u);
  EXPECT_EQ(table_->counters().groups, 0u);
  EXPECT_EQ(table_->counters().waiting_rounds, 0u);
}

TEST_F(PullTableTest, AStateThatMovedOnIsNotResumed) {
  coordinator_.Publish(0, 0, MakeObject(7, 2 * kChunk));
  v1::PullRequest request = Answer(7);
  request.set_object(v1::PullRequest::STATE);
  EXPECT_FALSE(Open(request)->ended());
  request.set_round(6);
  EXPECT_EQ(Open(request)->code(), absl::StatusCode::kNotFound);
  request.set_round(0);
  EXPECT_EQ(Open(request)->header()->round(), 7);
  request.set_fragment(3);
  EXPECT_EQ(Open(request)->code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PullTableTest, PullsThatStopWaitingLeaveNothingBehind) {
  for (int i = 0; i < 100; ++i) {
    const auto stream = Open(Answer(1, static_cast<uint64_t>(i)));
    EXPECT_FALSE(stream->ended());
    const std::weak_ptr<Stream> watch = stream;
    table_->Close(stream.get());
    EXPECT_EQ(stream.use_count(), 1);
  }
  EXPECT_EQ(coordinator_.waiting(), 1u) << "the coordinator is asked once";
  EXPECT_EQ(table_->counters().streams, 0u);
  EXPECT_EQ(table_->counters().groups, 0u);
  const PullObject object = MakeObject(1, 2 * kChunk);
  const auto stays = Open(Answer(1, 200));
  coordinator_.Publish(0, 1, object);
  Run({stays});
  ExpectWhole({stays}, object, ChunkSet(2 * kChunk));
  EXPECT_EQ(table_->counters().waiting_rounds, 0u);
}

TEST_F(PullTableTest, ThePublicationMayComeAfterTheTableIsGone) {
  Open(Answer(1));
  table_ = nullptr;
  coordinator_.Publish(0, 1, MakeObject(1, kChunk));
}

TEST_F(PullTableTest, WhatIsDueFirstGoesFirst) {
  coordinator_.Publish(0, 1, MakeObject(1, 3 * kChunk));
  coordinator_.Publish(0, 2, MakeObject(2, 2 * kChunk));
  const auto later = Open(Answer(1, 1, 200));
  later->Leave(*table_);
  ASSERT_EQ(later->chunks().size(), 1u);
  const auto sooner = Open(Answer(2, 2, 100));
  later->Leave(*table_);
  EXPECT_FALSE(later->sending()) << "it is parked";
  v1::PullRequest foreign = Answer(1, 1, 300);
  foreign.set_worker_id("b");
  const auto of_another_worker = Open(foreign);
  of_another_worker->Leave(*table_);
  EXPECT_EQ(of_another_worker->chunks().size(), 1u);
  sooner->Leave(*table_);
  sooner->Leave(*table_);
  EXPECT_EQ(sooner->chunks().size(), 2u);
  EXPECT_TRUE(later->sending()) << "nothing is left of the other but what is on its way";
  Run({later, sooner});
  EXPECT_EQ(later->chunks().size(), 3u);
  EXPECT_EQ(later->code(), absl::StatusCode::kOk);
}

TEST_F(PullTableTest, WhatIsDueFirstButDoesNotMoveHoldsNobodyUp) {
  coordinator_.Publish(0, 1, MakeObject(1, 3 * kChunk));
  coordinator_.Publish(0, 2, MakeObject(2, 3 * kChunk));
  const auto stuck = Open(Answer(2, 2, 100));
  stuck->Leave(*table_);
  const auto later = Open(Answer(1, 1, 200));
  later->Leave(*table_);
  EXPECT_FALSE(later->sending());
  Advance(absl::Seconds(6));
  EXPECT_TRUE(later->sending());
  later->Leave(*table_);
  EXPECT_EQ(later->chunks().size(), 2u);
  table_->Close(stuck.get());
  Run({later});
  EXPECT_EQ(later->code(), absl::StatusCode::kOk);
}

TEST_F(PullTableTest, AStreamThatBreaksLetsTheParkedOnesGo) {
  coordinator_.Publish(0, 1, MakeObject(1, 3 * kChunk));
  coordinator_.Publish(0, 2, MakeObject(2, 3 * kChunk));
  const auto sooner = Open(Answer(2, 2, 100));
  sooner->Leave(*table_);
  const auto later = Open(Answer(1, 1, 200));
  later->Leave(*table_);
  EXPECT_FALSE(later->sending());
  table_->Close(sooner.get());
  EXPECT_TRUE(later->sending());
}

TEST_F(PullTableTest, AllPullsOfAWorkerKeepTheRateTogether) {
  constexpr int64_t kRate = 4 * kChunk;  // Per second.
  coordinator_.Publish(0, 1, MakeObject(1, 50 * kChunk));
  coordinator_.Publish(1, 1, MakeObject(1, 50 * kChunk));
  std::vector<std::shared_ptr<Stream>> streams;
  for (const int fragment : {0, 1}) {
    for (int stripe = 0; stripe < 2; ++stripe) {
      v1::PullRequest request = Answer(1, static_cast<uint64_t>(fragment) + 1);
      request.set_fragment(fragment);
      request.set_max_bytes_per_second(kRate);
      streams.push_back(Open(request));
    }
  }
  Run(streams);
  for (int tick = 0; tick < 500; ++tick) {
    Advance(absl::Milliseconds(20));
    Run(streams);
    const double allowed = absl::ToDoubleSeconds(clock_.Monotonic()) * kRate;
    EXPECT_LE(coordinator_.pulled_bytes, allowed + 1.3 * kChunk);
  }
  EXPECT_GE(coordinator_.pulled_bytes, 38 * kChunk) << "of 40 in ten seconds";
  // The latest request counts.
  const auto free = Open(Answer(1, 9));
  Run(streams);
  Advance(absl::Milliseconds(20));
  Run(streams);
  for (const auto& stream : streams) EXPECT_EQ(stream->code(), absl::StatusCode::kOk);
  EXPECT_TRUE(free->sending());
}

TEST_F(PullTableTest, AWorkerThatTakesNothingIsGivenUp) {
  coordinator_.Publish(0, 1, MakeObject(1, 3 * kChunk));
  const auto waiting = Open(Answer(2, 1));
  const auto slow = Open(Answer(1, 2));
  const auto stuck = Open(Answer(1, 2));
  slow->Leave(*table_);
  Advance(absl::Seconds(50));
  slow->Leave(*table_);
  Advance(absl::Seconds(50));
  EXPECT_FALSE(stuck->ended()) << "the worker's link is slow, but it moves";
  Advance(absl::Seconds(11));
  EXPECT_EQ(stuck->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(slow->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(waiting->ended()) << "for a round nobody can wait too long";
}

TEST_F(PullTableTest, NoWorkerTakesTheStreamsOfOthers) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (size_t i = 0; i < PullTable::Options().max_streams_of_worker; ++i) {
    streams.push_back(Open(Answer(1)));
    ASSERT_FALSE(streams.back()->ended()) << "stream " << i;
  }
  EXPECT_EQ(Open(Answer(1, /*group=*/1))->code(), absl::StatusCode::kResourceExhausted);
  v1::PullRequest other = Answer(1);
  other.set_worker_id("b");
  EXPECT_FALSE(Open(other)->ended());
  table_->Close(streams.back().get());
  EXPECT_FALSE(Open(Answer(1))->ended()) << "one has ended";
}

class SmallPullTableTest : public PullTableTest {
 protected:
  SmallPullTableTest() {
    table_ = std::make_shared<PullTable>(
        coordinator_, PullTable::Options{.cache = &cache_,
                                         .run_long = [](const auto& task) { task(); },
                                         .clock = &clock_,
                                         .max_bytes_of_worker = 5 * kChunk});
    for (const int64_t round : {1, 2, 3}) {
      coordinator_.Publish(0, round, MakeObject(round, 2 * kChunk));
    }
  }
};

TEST_F(SmallPullTableTest, AWorkerThatDoesNotReadFillsNoMoreThanItsShareOfTheMemory) {
  const auto first = Open(Answer(1));
  const auto second = Open(Answer(2));
  EXPECT_EQ(Open(Answer(3))->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Open(Answer(2))->ended()) << "the same object takes no more room";
  v1::PullRequest other = Answer(3);
  other.set_worker_id("b");
  EXPECT_FALSE(Open(other)->ended()) << "others have their own share";
  table_->Close(first.get());
  EXPECT_FALSE(Open(Answer(3))->ended()) << "there is room again";
}

TEST_F(SmallPullTableTest, AnObjectCountsUntilItsLastChunkHasLeft) {
  ChunkSet held(2 * kChunk);
  held.Add(0);
  v1::PullRequest rest = Answer(1);
  rest.set_held_chunks(held.ToWire());
  const auto first = Open(rest);
  first->Leave(*table_);  // The header: all chunks are dealt out now.
  ASSERT_EQ(first->chunks().size(), 1u);
  const auto second = Open(Answer(2));
  EXPECT_EQ(Open(Answer(3))->code(), absl::StatusCode::kResourceExhausted);
  first->Leave(*table_);
  ASSERT_EQ(first->code(), absl::StatusCode::kOk);
  table_->Close(first.get());
  EXPECT_FALSE(Open(Answer(3))->ended());
}

TEST_F(SmallPullTableTest, WhatAWorkerMayNotHoldIsNotReadForIt) {
  const int64_t state = coordinator_.plan().range(0).size() * int64_t{sizeof(float)};
  coordinator_.Publish(0, 0, MakeObject(0, state));
  table_->BoundBytesOfWorker(state + kChunk);
  v1::PullRequest request = Answer(0);
  request.set_object(v1::PullRequest::STATE);
  const auto first = Open(request);
  EXPECT_FALSE(first->ended());
  const auto answer = Open(Answer(1));
  EXPECT_EQ(answer->code(), absl::StatusCode::kResourceExhausted);
  table_->BoundBytesOfWorker(state);
  EXPECT_EQ(Open(request)->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Open(Answer(2))->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(coordinator_.asked_for_states, 1);
  EXPECT_EQ(coordinator_.asked_for_answers, 1);
}

// Threads that the test runs one task of at a time.
class SlowPullTableTest : public PullTableTest {
 protected:
  SlowPullTableTest() {
    table_ = std::make_shared<PullTable>(
        coordinator_, PullTable::Options{.cache = &cache_,
                                         .run_long = [this](auto task) { tasks_.push_back(task); },
                                         .clock = &clock_});
    coordinator_.Publish(0, 0, MakeObject(0, kChunk));
  }
  std::deque<std::function<void()>> tasks_;
};

TEST_F(SlowPullTableTest, NobodyWaitsForWhatAnotherHasReadForItself) {
  v1::PullRequest request = Answer(0);
  request.set_object(v1::PullRequest::STATE);
  std::vector<std::shared_ptr<Stream>> greedy;
  for (int i = 0; i < 100; ++i) greedy.push_back(Open(request));
  request.set_worker_id("b");
  const auto honest = Open(request);
  ASSERT_EQ(tasks_.size(), 2u) << "one of each worker";
  for (int i = 0; i < 2; ++i) {
    tasks_.front()();
    tasks_.pop_front();
  }
  EXPECT_TRUE(honest->sending());
  for (; !tasks_.empty(); tasks_.pop_front()) tasks_.front()();
  EXPECT_TRUE(std::ranges::all_of(greedy, &Stream::sending)) << "in the end";
}

TEST_F(PullTableTest, FinishedGroupsAreForgottenInTheirOrder) {
  coordinator_.Publish(0, 1, MakeObject(1, kChunk));
  const auto finish = [&](uint64_t group) {
    const auto stream = Open(Answer(1, group));
    Run({stream});
    table_->Close(stream.get());
  };
  finish(1);
  Advance(absl::Seconds(40));
  finish(2);
  finish(1);  // A stripe that comes late finds it done, and it stays as long again.
  EXPECT_EQ(table_->counters().groups, 2u);
  Advance(absl::Seconds(30));
  EXPECT_EQ(table_->counters().groups, 2u);
  Advance(absl::Seconds(31));
  EXPECT_EQ(table_->counters().groups, 0u);
}

class PackedPullTableTest : public PullTableTest {
 protected:
  PackedPullTableTest() : PullTableTest(true) {}
};

TEST_F(PackedPullTableTest, ChunksArePackedOnceForAllWorkers) {
  const PullObject object = MakeObject(1, 3 * kChunk);
  coordinator_.Publish(0, 1, object);
  std::vector<std::shared_ptr<Stream>> streams;
  for (const char* const worker : {"a", "b"}) {
    v1::PullRequest request = Answer(1);
    request.set_worker_id(worker);
    streams.push_back(Open(request));
  }
  Run(streams);
  for (const auto& stream : streams) {
    ExpectWhole({stream}, object, ChunkSet(3 * kChunk));
    EXPECT_GT(stream->chunks()[0].fields.unpacked_bytes, 0);
  }
  EXPECT_EQ(streams[0]->chunks()[0].data.data(), streams[1]->chunks()[0].data.data());
  EXPECT_LT(coordinator_.pulled_bytes, 3 * kChunk);
  for (const auto& stream : streams) table_->Close(stream.get());
  EXPECT_EQ(cache_.taken(), 0) << "nobody pulls it any more";
}

TEST_F(PackedPullTableTest, WithoutRoomForThemTheyArePackedAgain) {
  ASSERT_TRUE(cache_.Take(cache_.bytes()));
  const PullObject object = MakeObject(1, 2 * kChunk);
  coordinator_.Publish(0, 1, object);
  const auto first = Open(Answer(1));
  const auto second = Open(Answer(1));
  Run({first, second});
  ExpectWhole({first}, object, ChunkSet(2 * kChunk));
  ExpectWhole({second}, object, ChunkSet(2 * kChunk));
  EXPECT_NE(first->chunks()[0].data.data(), second->chunks()[0].data.data());
}

}  // namespace
}  // namespace causeway::server
