// Both ends of lanes, from a worker's transfer to the coordinator and back, over streams that are
// memory.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/transfer/lane_registry.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/transfer/fake_coordinator.h"
#include "tests/unit/server/transfer/memory_lanes.h"

namespace causeway::server {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);

std::shared_ptr<std::vector<uint8_t>> SharedObject(int64_t bytes, uint64_t seed) {
  return std::make_shared<std::vector<uint8_t>>(MakeObject(bytes, seed));
}

bool Passes(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
}

// One life of the coordinator's transfers; what was contributed outlives it.
struct Server {
  Server(FakeCoordinator& coordinator, MemoryLanes& net, FakeClock& clock, uint64_t process,
         int64_t memory_chunks)
      : memory(memory_chunks * kChunk),
        cache(100 * kChunk),
        inbox(std::make_shared<DeltaInbox>(
            coordinator,
            DeltaInbox::Options{
                .memory = &memory, .run_long = net.runner(), .clock = &clock, .process = process})),
        outbox(std::make_shared<AnswerOutbox>(
            coordinator, AnswerOutbox::Options{.cache = &cache, .run_long = net.runner()})),
        registry(coordinator, *inbox, *outbox, {.run_long = net.runner(), .clock = &clock}) {}

  ByteBudget memory;
  ByteBudget cache;
  std::shared_ptr<DeltaInbox> inbox;
  std::shared_ptr<AnswerOutbox> outbox;
  LaneRegistry registry;
};

class OneSeedTest : public ::testing::Test {
 protected:
  explicit OneSeedTest(bool entropy = false) : entropy_(entropy) { Begin(3, 1); }
  ~OneSeedTest() override { End(); }

  // Everything anew.
  void Begin(int lanes, uint64_t seed, int64_t memory_chunks = 100) {
    End();
    lanes_ = lanes;
    memory_chunks_ = memory_chunks;
    coordinator_ = std::make_unique<FakeCoordinator>(entropy_);
    net_ = std::make_unique<MemoryLanes>(seed);
    Serve();
    client_ = MakeClient(1);
  }
  void End() {
    if (client_ != nullptr) client_->Cancel();
    if (net_ != nullptr) {
      net_->Run();
      net_->CutAll();
      net_->Run();
    }
    client_ = nullptr;
    server_ = nullptr;
    net_ = nullptr;
  }
  void Serve() {
    server_ =
        std::make_unique<Server>(*coordinator_, *net_, clock_, ++processes_ << 32, memory_chunks_);
    net_->Serve(&server_->registry);
  }
  // The coordinator's process dies; another one takes its place.
  void Restart() {
    net_->CutAll();
    net_->Run();  // Finishes what it had begun: the store has it.
    Serve();
  }
  std::shared_ptr<LaneClient> MakeClient(uint64_t process, int64_t down = 0, int64_t up = 0) {
    LaneClient::Options options;
    options.greeting = GreetingOf("a", process);
    options.greeting.set_max_bytes_per_second(down);
    options.clock = &clock_;
    options.run_long = net_->runner();
    options.max_upload_bytes_per_second = up;
    options.lanes = [this] { return lanes_; };
    options.passes = Passes;
    options.dial = [this](int lane, const auto& self) { net_->Dial(lane, self); };
    return std::make_shared<LaneClient>(std::move(options));
  }

  LaneClient::Handle Offer(const std::shared_ptr<std::vector<uint8_t>>& object, int64_t round = 1,
                           int64_t due_step = 0, bool maybe_held = false) {
    LaneClient::Offered offered = OfferedOf(object, 0, round, entropy_);
    offered.due_step = due_step;
    offered.maybe_held = maybe_held;
    return client_->Offer(std::move(offered));
  }
  LaneClient::Handle Want(int64_t round, int64_t bytes, int64_t due_step = 0) {
    LaneClient::Wanted wanted;
    wanted.want.set_object(v1::Want::ANSWER);
    wanted.want.set_round(round);
    wanted.want.set_due_step(due_step);
    wanted.expected_bytes = bytes;
    return client_->Want(std::move(wanted));
  }
  // Lets things happen, and no time pass, until that is so.
  template <typename Condition>
  void StepUntil(const Condition& condition) {
    while (!condition()) {
      client_->Tick();
      net_->Step();
    }
  }
  // Lets everything happen, and time pass where nothing does.
  LaneClient::Result Finish(const LaneClient::Handle& handle) {
    const absl::Duration deadline = clock_.Monotonic() + absl::Minutes(30);
    while (!client_->Done(handle)) {
      client_->Tick();
      if (net_->Step()) continue;
      clock_.Advance(absl::Milliseconds(50));
      server_->registry.Tick();
      server_->inbox->Tick();
      if (clock_.Monotonic() > deadline) {
        ADD_FAILURE() << "half an hour passed";
        client_->GiveUp(handle);
      }
    }
    return client_->Await(handle);
  }
  void ExpectPulled(const LaneClient::Result& pulled, const std::vector<uint8_t>& bytes) {
    ASSERT_TRUE(pulled.status.ok()) << pulled.status;
    EXPECT_TRUE(std::ranges::equal(*pulled.bytes, bytes));
  }

  const bool entropy_;
  int lanes_ = 1;
  int64_t memory_chunks_ = 100;
  uint64_t processes_ = 0;
  FakeClock clock_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<MemoryLanes> net_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<LaneClient> client_;
};

class LanesTest : public OneSeedTest, public ::testing::WithParamInterface<int> {};

// Counts chunks by direction and number.
struct Chunks {
  Chunks() = default;
  explicit Chunks(MemoryLanes& net) {
    net.on_message = [this](MemoryLanes::Message& message) { Count(message); };
  }
  void Count(const MemoryLanes::Message& message) {
    if (!message.content->has_chunk()) return;
    ++(message.up ? up : down)[message.content->chunk().offset() / kChunk];
  }
  int64_t All() const {
    int64_t all = 0;
    for (const auto* const way : {&up, &down}) {
      for (const auto& [chunk, times] : *way) all += times;
    }
    return all;
  }
  std::map<int64_t, int> up;
  std::map<int64_t, int> down;
};

TEST_P(LanesTest, EveryChunkCrossesOnceBothWays) {
  Begin(3, static_cast<uint64_t>(GetParam()));
  Chunks chunks(*net_);
  const auto object = SharedObject(7 * kChunk + 5, 1);
  const auto answer = SharedObject(6 * kChunk + 1, 2);
  const auto push = Offer(object);
  const auto pull = Want(1, std::ssize(*answer));
  const LaneClient::Result pushed = Finish(push);
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  EXPECT_EQ(pushed.accepted.durable_bytes(), std::ssize(*object));
  coordinator_->ExpectOnly(*object);
  EXPECT_FALSE(client_->Done(pull));
  coordinator_->Publish(0, 1, MakeAnswer(1, *answer));
  ExpectPulled(Finish(pull), *answer);
  EXPECT_EQ(chunks.up.size(), 8u);
  EXPECT_EQ(chunks.down.size(), 7u);
  EXPECT_EQ(chunks.All(), 15);
  net_->Run();
  EXPECT_EQ(server_->inbox->counters().deltas, 0u);
  EXPECT_EQ(server_->memory.taken(), 0);
}

// Says what is done to the lanes at one message.
enum class Blow { kCutOne, kCutAll, kCutAllUnnoticed, kRestartCoordinator, kRestartWorker };

TEST_P(LanesTest, ABlowAtAnyMessageLosesNothingAndCountsNothingTwice) {
  const auto object = SharedObject(5 * kChunk + 5, 1);
  const auto answer = SharedObject(4 * kChunk + 1, 2);
  for (const Blow blow : {Blow::kCutOne, Blow::kCutAll, Blow::kCutAllUnnoticed,
                          Blow::kRestartCoordinator, Blow::kRestartWorker}) {
    for (int64_t at = 1;; ++at) {
      SCOPED_TRACE(absl::StrCat("blow ", static_cast<int>(blow), " at message ", at));
      Begin(2, static_cast<uint64_t>(GetParam()));
      coordinator_->Publish(0, 1, MakeAnswer(1, *answer));
      Chunks chunks;
      bool struck = false;
      net_->on_message = [&](MemoryLanes::Message& message) {
        chunks.Count(message);
        if (net_->messages() != at) return;
        struck = true;
        message.cut = blow != Blow::kCutAllUnnoticed;
      };
      auto push = Offer(object);
      auto pull = Want(1, std::ssize(*answer));
      bool dealt = false;
      while (!client_->Done(push) || !client_->Done(pull)) {
        client_->Tick();
        if (!net_->Step()) {
          clock_.Advance(absl::Milliseconds(50));
          server_->registry.Tick();
        }
        if (!struck || std::exchange(dealt, true)) continue;
        if (blow == Blow::kCutAll) net_->CutAll();
        if (blow == Blow::kCutAllUnnoticed) {
          for (const int lane : {0, 1}) net_->CutUnnoticed(lane);
        }
        if (blow == Blow::kRestartCoordinator) Restart();
        if (blow == Blow::kRestartWorker) {
          client_->Cancel();
          net_->Run();
          client_ = MakeClient(2);
          push = Offer(object, 1, 0, /*maybe_held=*/true);
          pull = Want(1, std::ssize(*answer));
        }
      }
      const LaneClient::Result pushed = client_->Await(push);
      ASSERT_TRUE(pushed.status.ok()) << pushed.status;
      ExpectPulled(client_->Await(pull), *answer);
      coordinator_->ExpectOnly(*object);
      // Counts what one lane had under way, at most all of it.
      if (blow == Blow::kCutOne) {
        EXPECT_LE(chunks.All(), 11 + 11);
      }
      if (HasFailure() || !struck) break;
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LanesTest, ::testing::Range(1, 6));

TEST_F(OneSeedTest, AWorkerThatStartsAgainSendsOnlyWhatIsMissing) {
  const auto object = SharedObject(6 * kChunk, 1);
  Chunks chunks;
  net_->on_message = [&](MemoryLanes::Message& message) {
    chunks.Count(message);
    message.cut = chunks.up.size() == 4;
  };
  Offer(object);
  for (int i = 0; i < 1000 && chunks.up.size() < 4; ++i) {
    client_->Tick();
    net_->Step();
  }
  net_->CutAll();
  client_->Cancel();
  net_->Run();
  chunks = {};
  net_->on_message = [&](MemoryLanes::Message& message) { chunks.Count(message); };
  client_ = MakeClient(2);
  EXPECT_TRUE(Finish(Offer(object, 1, 0, /*maybe_held=*/true)).status.ok());
  EXPECT_EQ(chunks.up.size(), 3u) << "three had come before the cut";
  coordinator_->ExpectOnly(*object);
}

TEST_F(OneSeedTest, WhatIsDueFirstGoesFirstBothWays) {
  Begin(1, 1);
  std::vector<uint64_t> order;
  net_->on_message = [&](MemoryLanes::Message& message) {
    if (message.content->has_chunk()) order.push_back(message.content->chunk().transfer());
  };
  const auto late = SharedObject(8 * kChunk, 1);
  const auto urgent = SharedObject(2 * kChunk, 2);
  const auto first = Offer(late, 1, 100);    // Transfer 1.
  const auto second = Offer(urgent, 2, 50);  // Transfer 2.
  EXPECT_TRUE(Finish(second).status.ok());
  EXPECT_TRUE(Finish(first).status.ok());
  const auto last = std::find(order.rbegin(), order.rend(), uint64_t{2}).base();
  EXPECT_LE(std::count(order.begin(), last, uint64_t{1}), 1);
  order.clear();
  coordinator_->Publish(0, 1, MakeAnswer(1, *late));
  coordinator_->Publish(0, 2, MakeAnswer(2, *urgent));
  const auto late_answer = Want(1, std::ssize(*late), 100);     // Transfer 3.
  const auto urgent_answer = Want(2, std::ssize(*urgent), 50);  // Transfer 4.
  EXPECT_TRUE(Finish(urgent_answer).status.ok());
  EXPECT_TRUE(Finish(late_answer).status.ok());
  const auto last_down = std::find(order.rbegin(), order.rend(), uint64_t{4}).base();
  EXPECT_LE(std::count(order.begin(), last_down, uint64_t{3}), 2);
}

TEST_F(OneSeedTest, ALaneThatStandsStillLeavesItsShareToTheOthers) {
  Begin(2, 1);
  const auto object = SharedObject(12 * kChunk, 1);
  const auto answer = SharedObject(12 * kChunk, 2);
  coordinator_->Publish(0, 1, MakeAnswer(1, *answer));
  const auto push = Offer(object);
  const auto pull = Want(1, std::ssize(*answer));
  for (int i = 0; i < 40; ++i) {
    client_->Tick();
    net_->Step();
  }
  net_->Freeze(0);
  EXPECT_TRUE(Finish(push).status.ok());
  EXPECT_TRUE(Finish(pull).status.ok());
  coordinator_->ExpectOnly(*object);
}

TEST_F(OneSeedTest, AChunkThatIsDamagedOnceComesAgain) {
  for (const bool up : {true, false}) {
    Begin(2, 1);
    bool damaged = false;
    net_->on_message = [&](MemoryLanes::Message& message) {
      if (message.up != up || !message.content->has_chunk() || std::exchange(damaged, true)) return;
      (*message.content->mutable_chunk()->mutable_data())[7] ^= 1;
    };
    const auto object = SharedObject(3 * kChunk, 1);
    coordinator_->Publish(0, 1, MakeAnswer(1, *object));
    EXPECT_TRUE(Finish(Offer(object)).status.ok());
    ExpectPulled(Finish(Want(1, std::ssize(*object))), *object);
    coordinator_->ExpectOnly(*object);
    EXPECT_TRUE(damaged);
  }
}

TEST_F(OneSeedTest, AnObjectThatIsDamagedEveryTimeIsAnError) {
  net_->on_message = [&](MemoryLanes::Message& message) {
    if (!message.content->has_chunk() || message.content->chunk().offset() != kChunk) return;
    (*message.content->mutable_chunk()->mutable_data())[7] ^= 1;
  };
  const auto object = SharedObject(3 * kChunk, 1);
  coordinator_->Publish(0, 1, MakeAnswer(1, *object));
  EXPECT_EQ(Finish(Offer(object)).status.code(), kDataLoss);
  EXPECT_EQ(Finish(Want(1, std::ssize(*object))).status.code(), kDataLoss);
}

// Version 0 is resumed with round 0, which is also how the present version is asked for.
TEST_F(OneSeedTest, AStateThatMovesOnWhileItIsSentComesWholeFromOneVersion) {
  Begin(1, 1);
  const auto version0 = SharedObject(6 * kChunk, 1);
  const auto version1 = SharedObject(6 * kChunk, 2);
  coordinator_->Publish(0, 0, MakeAnswer(0, *version0));
  std::vector<v1::Want> wants;
  std::vector<int> refusals;
  Chunks chunks;
  net_->on_message = [&](MemoryLanes::Message& message) {
    chunks.Count(message);
    const v1::LaneControl& control = message.content->control();
    if (control.has_want()) wants.push_back(control.want());
    if (control.has_outcome()) refusals.push_back(control.outcome().code());
  };
  LaneClient::Wanted wanted;
  wanted.want.set_object(v1::Want::STATE);
  wanted.expected_bytes = std::ssize(*version0);
  const auto pull = client_->Want(std::move(wanted));
  StepUntil([&] { return chunks.down.size() >= 3; });
  Restart();
  coordinator_->Publish(0, 0, MakeAnswer(1, *version1));
  const LaneClient::Result pulled = Finish(pull);
  ASSERT_TRUE(pulled.status.ok()) << pulled.status;
  EXPECT_EQ(pulled.header.round(), 1);
  EXPECT_TRUE(std::ranges::equal(*pulled.bytes, *version1));
  ASSERT_GE(wants.size(), 3u);
  EXPECT_EQ(wants[1].round(), 0);
  EXPECT_FALSE(wants[1].held_chunks().empty()) << "it was resumed";
  EXPECT_EQ(refusals, std::vector{static_cast<int>(kNotFound)});
}

TEST_F(OneSeedTest, ARefusalIsFinalAndLeavesTheLanesAlone) {
  coordinator_->admission = absl::AbortedError("the round closed");
  EXPECT_EQ(Finish(Offer(SharedObject(9 * kChunk, 1))).status.code(), kAborted);
  EXPECT_EQ(Finish(Want(5000, kChunk)).status.code(), kFailedPrecondition);
  coordinator_->admission = absl::OkStatus();
  EXPECT_EQ(net_->lanes(), 3);
  EXPECT_TRUE(Finish(Offer(SharedObject(9 * kChunk, 1))).status.ok());
  EXPECT_EQ(net_->lanes(), 3);
}

// A cut breaks several lanes, and they come back one after the other.
TEST_F(OneSeedTest, OutcomesAreHeardBesideLanesOfWhichOnlyTheWorkerKnowsThatTheyBroke) {
  Begin(2, 1);
  EXPECT_TRUE(Finish(Offer(SharedObject(kChunk, 1), 1)).status.ok());
  net_->Run();
  for (const int lane : {0, 1}) net_->CutUnnoticed(lane);
  lanes_ = 1;  // The other one is not back yet.
  EXPECT_TRUE(Finish(Offer(SharedObject(kChunk, 2), 2)).status.ok());
  EXPECT_EQ(Finish(Want(5000, kChunk)).status.code(), kFailedPrecondition);
  const auto late = Offer(SharedObject(60 * kChunk, 3), 3);
  StepUntil([&] { return server_->inbox->counters().deltas > 0; });
  coordinator_->Close(0, 3);
  EXPECT_EQ(Finish(late).status.code(), kAborted);
}

TEST_F(OneSeedTest, ARefusalThatPassesIsTriedAgainAndNothingIsSentTwice) {
  Chunks chunks;
  const auto object = SharedObject(4 * kChunk, 1);
  coordinator_->verdict = absl::UnavailableError("not yet");
  coordinator_->admission = absl::UnavailableError("fenced");
  const auto push = Offer(object);
  for (int i = 0; i < 2000; ++i) {
    client_->Tick();
    if (!net_->Step()) clock_.Advance(absl::Milliseconds(50));
  }
  EXPECT_FALSE(client_->Done(push));
  coordinator_->verdict = absl::OkStatus();
  coordinator_->admission = absl::OkStatus();
  net_->on_message = [&](MemoryLanes::Message& message) { chunks.Count(message); };
  EXPECT_TRUE(Finish(push).status.ok());
  coordinator_->ExpectOnly(*object);
  for (const auto& [chunk, times] : chunks.up) EXPECT_EQ(times, 1) << chunk;
}

TEST_F(OneSeedTest, WithoutRoomThoseWhoWaitComeLater) {
  Begin(2, 1, /*memory_chunks=*/5);
  std::vector<LaneClient::Handle> pushes;
  for (int64_t round = 1; round <= 4; ++round) {
    pushes.push_back(Offer(SharedObject(3 * kChunk, static_cast<uint64_t>(round)), round));
  }
  for (const auto& push : pushes) EXPECT_TRUE(Finish(push).status.ok());
  EXPECT_EQ(coordinator_->contributions.size(), 4u);
  EXPECT_EQ(server_->memory.taken(), 0);
}

TEST_F(OneSeedTest, ALimitedRateIsKeptBothWays) {
  client_->Cancel();
  net_->Run();
  client_ = MakeClient(2, /*down=*/kChunk, /*up=*/kChunk);
  const auto object = SharedObject(10 * kChunk, 1);
  coordinator_->Publish(0, 1, MakeAnswer(1, *object));
  for (const bool up : {true, false}) {
    const absl::Duration begin = clock_.Monotonic();
    EXPECT_TRUE(Finish(up ? Offer(object) : Want(1, std::ssize(*object))).status.ok());
    EXPECT_GE(clock_.Monotonic() - begin, absl::Seconds(8));
    EXPECT_LE(clock_.Monotonic() - begin, absl::Seconds(12));
  }
}

TEST_F(OneSeedTest, WhatIsGivenUpIsSentNoMore) {
  Begin(1, 1);
  const auto answer = SharedObject(20 * kChunk, 2);
  coordinator_->Publish(0, 1, MakeAnswer(1, *answer));
  Chunks chunks(*net_);
  const auto pull = Want(1, std::ssize(*answer));
  StepUntil([&] { return chunks.All() >= 2; });
  client_->GiveUp(pull);
  EXPECT_EQ(Finish(pull).status.code(), kCancelled);
  net_->Run();
  EXPECT_LT(chunks.All(), 20);
}

class PackedLanesTest : public OneSeedTest {
 protected:
  PackedLanesTest() : OneSeedTest(true) {}
};

TEST_F(PackedLanesTest, PackedChunksCrossSmallerBothWays) {
  int64_t bytes = 0;
  net_->on_message = [&](MemoryLanes::Message& message) {
    bytes += std::ssize(message.content->chunk().data());
  };
  const auto object = SharedObject(6 * kChunk + 9, 1);
  coordinator_->Publish(0, 1, MakeAnswer(1, *object));
  EXPECT_TRUE(Finish(Offer(object)).status.ok());
  ExpectPulled(Finish(Want(1, std::ssize(*object))), *object);
  coordinator_->ExpectOnly(*object);
  EXPECT_LT(bytes, std::ssize(*object));
  net_->Run();
  EXPECT_GT(coordinator_->pulled_bytes, 0);
  EXPECT_LT(coordinator_->pulled_bytes, bytes) << "half of what crossed";
}

TEST_F(OneSeedTest, AnotherWireVersionIsRefusedWithALine) {
  v1::Greeting greeting = GreetingOf("a", 1);
  greeting.set_wire_version(kWireVersion - 1);
  EXPECT_THAT(server_->registry.Join(greeting),
              StatusIs(kFailedPrecondition, ::testing::HasSubstr("wire_version differs")));
}

}  // namespace
}  // namespace causeway::server
