// Both ends of lanes on many threads; lanes_test.cc has the same on one, message by message.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/transfer/lane_registry.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/server/transfer/fake_coordinator.h"
#include "tests/unit/server/transfer/memory_lanes.h"

namespace causeway::server {
namespace {

constexpr int kThreads = 6;
constexpr int kLanes = 3;
constexpr int kFragments = 3;
constexpr int64_t kRounds = 6;
// The clock runs as fast as it can: nothing stalls by it.
constexpr absl::Duration kNever = absl::Hours(100'000);
// Every so many messages the lane breaks that carries the next one.
constexpr int64_t kMessagesBetweenCuts = 23;

std::vector<uint8_t> ObjectOf(uint64_t seed) { return MakeObject(2 * kChunkBytes + 17, seed); }

uint64_t Seed(int fragment, int64_t round, bool up) {
  return static_cast<uint64_t>(1000 * fragment + 2 * round + (up ? 1 : 0));
}

// A worker's thread: one fragment's rounds, one after the other.
void ExchangeRounds(LaneClient& client, int fragment) {
  for (int64_t round = 1; round <= kRounds; ++round) {
    const auto object =
        std::make_shared<std::vector<uint8_t>>(ObjectOf(Seed(fragment, round, true)));
    LaneClient::Offered offered = OfferedOf(object, fragment, round, /*pack=*/true);
    offered.due_step = round;
    LaneClient::Wanted wanted;
    wanted.want.set_object(v1::Want::ANSWER);
    wanted.want.set_fragment(fragment);
    wanted.want.set_round(round);
    wanted.expected_bytes = std::ssize(*object);
    const auto push = client.Offer(std::move(offered));
    const auto pull = client.Want(std::move(wanted));
    const LaneClient::Result pushed = client.Await(push);
    EXPECT_TRUE(pushed.status.ok()) << pushed.status;
    const LaneClient::Result pulled = client.Await(pull);
    ASSERT_TRUE(pulled.status.ok()) << pulled.status;
    EXPECT_TRUE(std::ranges::equal(*pulled.bytes, ObjectOf(Seed(fragment, round, false))));
  }
}

TEST(LaneThreadsTest, ThreadsAndCutsLoseNothingAndCountNothingTwice) {
  FakeClock clock;
  FakeCoordinator coordinator(/*entropy_down=*/true);
  // A round is published once its delta is there.
  coordinator.on_contribution = [&](const v1::PushHeader& header) {
    PullObject answer =
        MakeAnswer(header.round(), ObjectOf(Seed(header.fragment(), header.round(), false)));
    answer.header.set_fragment(header.fragment());
    coordinator.Publish(header.fragment(), header.round(), answer);
  };
  WorkQueue queue(kThreads);
  MemoryLanes net(queue.runner());
  std::atomic<int64_t> messages = 0;
  std::atomic<int64_t> cuts = 0;
  net.on_message = [&](MemoryLanes::Message& message) {
    message.cut = ++messages % kMessagesBetweenCuts == 0;
    cuts += message.cut;
  };
  ByteBudget memory(int64_t{100} << 20);
  ByteBudget cache(int64_t{4} << 20);
  const auto inbox =
      std::make_shared<DeltaInbox>(coordinator, DeltaInbox::Options{.memory = &memory,
                                                                    .run_long = net.runner(),
                                                                    .clock = &clock,
                                                                    .stall = kNever,
                                                                    .keep_idle = kNever});
  const auto outbox = std::make_shared<AnswerOutbox>(
      coordinator, AnswerOutbox::Options{.cache = &cache, .run_long = net.runner()});
  LaneRegistry registry(coordinator, *inbox, *outbox,
                        {.run_long = net.runner(), .clock = &clock, .stall = kNever});
  net.Serve(&registry);

  LaneClient::Options options;
  options.clock = &clock;
  options.run_long = net.runner();
  options.greeting = GreetingOf("a", 1);
  options.lanes = [] { return kLanes; };
  options.stall = [] { return kNever; };
  options.poll = absl::Milliseconds(1);
  options.passes = [](const absl::Status& status) { return !absl::IsInvalidArgument(status); };
  options.dial = [&net](int lane, const auto& self) { net.Dial(lane, self); };
  auto client = std::make_shared<LaneClient>(std::move(options));

  std::vector<std::thread> threads;
  std::atomic<int> at_work = kFragments;
  for (int fragment = 0; fragment < kFragments; ++fragment) {
    threads.emplace_back([&, fragment] {
      ExchangeRounds(*client, fragment);
      --at_work;
    });
  }
  while (at_work > 0) {
    clock.Advance(absl::Milliseconds(1));
    registry.Tick();
    inbox->Tick();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  client->Cancel();
  registry.EndAll(absl::UnavailableError("the coordinator stops"));
  queue.Stop();
  EXPECT_EQ(coordinator.contributions.size(), static_cast<size_t>(kFragments * kRounds)) << "once";
  for (const auto& [header, bytes] : coordinator.contributions) {
    EXPECT_TRUE(bytes == ObjectOf(Seed(header.fragment(), header.round(), true)));
  }
  EXPECT_GT(cuts, 3);
  EXPECT_EQ(memory.taken(), 0);
}

}  // namespace
}  // namespace causeway::server
