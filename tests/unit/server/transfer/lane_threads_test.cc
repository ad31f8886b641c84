// Both ends of lanes on many threads, over streams that are memory: no library stands between them
// that the thread sanitizer does not see. lanes_test.cc has the same on one thread, message by
// message.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/thread_pool.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/transfer/lane_registry.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/transfer/owned_message.h"
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

// Lanes whose ends are served by any of several threads: each end takes one message at a time, in
// order, as a stream does.
class ThreadedLanes {
 public:
  ThreadedLanes() : queue_(kThreads) {}

  Runner runner() { return queue_.runner(); }
  // Outlives the lanes.
  void Serve(LaneRegistry* registry) { registry_ = registry; }
  void Dial(int number, const std::shared_ptr<LanePeer>& client) {
    const auto wire = std::make_shared<Wire>();
    const auto stream = std::make_shared<Stream>(*this, wire, 0);
    const LanePeer::LanePtr lane = client->Open(number, stream);
    {
      absl::MutexLock lock(&wire->mutex);
      wire->ends[0].peer = client;
      wire->ends[0].lane = lane;
    }
    client->Written(lane);
  }
  // Whatever is under way comes to its end.
  void Stop() { queue_.Stop(); }
  int64_t cuts() const { return cuts_; }

 private:
  struct End {
    std::shared_ptr<LanePeer> peer;
    LanePeer::LanePtr lane;
    std::deque<std::string> arriving;
    bool reads = true;
  };
  struct Wire {
    absl::Mutex mutex;
    bool broken ABSL_GUARDED_BY(mutex) = false;
    std::array<End, 2> ends ABSL_GUARDED_BY(mutex);  // 0 is the client's.
  };

  class Stream final : public WorkerLaneStream {
   public:
    Stream(ThreadedLanes& lanes, std::shared_ptr<Wire> wire, size_t end)
        : lanes_(lanes), wire_(std::move(wire)), end_(end) {}
    void Write(OutgoingMessage message) override {
      LanePeer::LanePtr lane;
      std::shared_ptr<LanePeer> peer;
      {
        std::string bytes = Serialize(message);
        absl::MutexLock lock(&wire_->mutex);
        if (wire_->broken) return;
        wire_->ends[1 - end_].arriving.push_back(std::move(bytes));
        lane = wire_->ends[end_].lane;
        peer = wire_->ends[end_].peer;
      }
      lanes_.queue_.Run([peer, lane] { peer->Written(lane); });
      lanes_.Look(wire_, 1 - end_);
    }
    void ReadOn() override {
      {
        absl::MutexLock lock(&wire_->mutex);
        wire_->ends[end_].reads = true;
      }
      lanes_.Look(wire_, end_);
    }
    void End(const absl::Status& status) override { lanes_.Cut(*wire_, status); }
    absl::Status Admit(bool) override { return absl::OkStatus(); }
    bool greeted() override { return true; }

   private:
    ThreadedLanes& lanes_;
    const std::shared_ptr<Wire> wire_;  // Until it is cut, each keeps the other.
    const size_t end_;
  };

  void Look(const std::shared_ptr<Wire>& wire, size_t end) {
    queue_.Run([this, wire, end] { Deliver(wire, end); });
  }

  void Cut(Wire& wire, const absl::Status& status) {
    std::array<End, 2> last;
    {
      absl::MutexLock lock(&wire.mutex);
      if (std::exchange(wire.broken, true)) return;
      last = std::exchange(wire.ends, {});
    }
    for (End& end : last) {
      if (end.peer == nullptr) continue;
      queue_.Run([peer = end.peer, lane = end.lane, status] { peer->Close(lane, status); });
    }
  }

  void Deliver(const std::shared_ptr<Wire>& wire, size_t at) {
    std::shared_ptr<LanePeer> peer;
    LanePeer::LanePtr lane;
    std::string bytes;
    {
      absl::MutexLock lock(&wire->mutex);
      End& end = wire->ends[at];
      if (wire->broken || !end.reads || end.arriving.empty()) return;
      end.reads = false;
      bytes = std::move(end.arriving.front());
      end.arriving.pop_front();
      peer = end.peer;
      lane = end.lane;
    }
    if (++messages_ % kMessagesBetweenCuts == 0) {
      ++cuts_;
      return Cut(*wire, absl::UnavailableError("the connection broke"));
    }
    if (peer == nullptr) {
      Join(wire, bytes);
    } else if (!peer->Receive(lane, OwnedMessage(std::move(bytes)))) {
      return;
    }
    {
      absl::MutexLock lock(&wire->mutex);
      wire->ends[at].reads = true;
    }
    Look(wire, at);
  }

  void Join(const std::shared_ptr<Wire>& wire, const std::string& bytes) {
    v1::LaneMessage message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    const v1::Greeting& greeting = message.control().greeting();
    const auto worker = registry_->Join(greeting);
    if (!worker.ok()) return Cut(*wire, worker.status());
    const LanePeer::LanePtr lane =
        (*worker)->Open(greeting.lane(), std::make_shared<Stream>(*this, wire, 1));
    bool broken = false;
    {
      absl::MutexLock lock(&wire->mutex);
      broken = wire->broken;
      if (!broken) {
        wire->ends[1].peer = *worker;
        wire->ends[1].lane = lane;
      }
    }
    if (broken) return (*worker)->Close(lane, absl::UnavailableError("the connection broke"));
    (*worker)->Written(lane);
  }

  LaneRegistry* registry_ = nullptr;
  std::atomic<int64_t> messages_ = 0;
  std::atomic<int64_t> cuts_ = 0;
  WorkQueue queue_;
};

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
  ThreadedLanes net;
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
  net.Stop();
  EXPECT_EQ(coordinator.contributions.size(), static_cast<size_t>(kFragments * kRounds)) << "once";
  for (const auto& [header, bytes] : coordinator.contributions) {
    EXPECT_TRUE(bytes == ObjectOf(Seed(header.fragment(), header.round(), true)));
  }
  EXPECT_GT(net.cuts(), 3);
  EXPECT_EQ(memory.taken(), 0);
}

}  // namespace
}  // namespace causeway::server
