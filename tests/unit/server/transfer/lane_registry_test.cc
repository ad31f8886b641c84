#include "server/transfer/lane_registry.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/transfer/fake_coordinator.h"

namespace causeway::server {
namespace {

// Takes what is written, and remembers its end.
class Stream final : public WorkerLaneStream {
 public:
  void Write(OutgoingMessage /*message*/) override {}
  void ReadOn() override {}
  void End(const absl::Status& status) override {
    if (!end_.has_value()) end_ = status;
  }
  absl::Status Admit(bool /*offers*/) override { return absl::OkStatus(); }
  bool greeted() override { return greeted_; }

  void Greet() { greeted_ = true; }
  bool ended() const { return end_.has_value(); }
  absl::StatusCode code() const { return end_.value().code(); }

 private:
  bool greeted_ = false;
  std::optional<absl::Status> end_;
};

class LaneRegistryTest : public ::testing::Test {
 protected:
  using Lanes = std::shared_ptr<WorkerLanes>;

  // Joins, and keeps the lane open.
  absl::Status Join(const v1::Greeting& greeting) {
    const auto worker = registry_.Join(greeting);
    if (!worker.ok()) return worker.status();
    const auto stream = std::make_shared<Stream>();
    open_.emplace_back(*worker, (*worker)->Open(greeting.lane(), stream));
    return absl::OkStatus();
  }
  void Close() {
    open_.back().first->Close(open_.back().second, absl::OkStatus());
    open_.pop_back();
  }
  ~LaneRegistryTest() override {
    while (!open_.empty()) Close();
  }

  const Runner run_ = [](const auto& task) { task(); };
  FakeClock clock_;
  FakeCoordinator coordinator_;
  ByteBudget memory_{int64_t{1} << 30};
  const std::shared_ptr<DeltaInbox> inbox_ = std::make_shared<DeltaInbox>(
      coordinator_, DeltaInbox::Options{.memory = &memory_, .run_long = run_, .clock = &clock_});
  const std::shared_ptr<AnswerOutbox> outbox_ = std::make_shared<AnswerOutbox>(
      coordinator_, AnswerOutbox::Options{.cache = &memory_, .run_long = run_});
  LaneRegistry registry_{coordinator_, *inbox_, *outbox_, {.run_long = run_, .clock = &clock_}};
  std::vector<std::pair<Lanes, LanePeer::LanePtr>> open_;
};

TEST_F(LaneRegistryTest, LanesOfOneProcessBelongTogether) {
  EXPECT_TRUE(Join(GreetingOf("a", 1, 0)).ok());
  EXPECT_TRUE(Join(GreetingOf("a", 1, 1)).ok());
  EXPECT_TRUE(Join(GreetingOf("a", 2, 0)).ok());
  EXPECT_TRUE(Join(GreetingOf("b", 1, 0)).ok());
  EXPECT_EQ(open_[0].first, open_[1].first);
  EXPECT_NE(open_[0].first, open_[2].first);
  EXPECT_NE(open_[0].first, open_[3].first);
  EXPECT_EQ(registry_.lanes(), 4u);
}

TEST_F(LaneRegistryTest, HostileGreetingsAreRefused) {
  const auto code = [this](const std::function<void(v1::Greeting&)>& change) {
    v1::Greeting greeting = GreetingOf("a", 1);
    change(greeting);
    return Join(greeting).code();
  };
  using Greeting = v1::Greeting;
  EXPECT_EQ(code([](Greeting&) {}), kOk);
  EXPECT_EQ(code([](Greeting& g) { g.set_run_id("x"); }), kFailedPrecondition);
  v1::Greeting former = GreetingOf("a", 1);
  former.set_wire_version(kWireVersion - 1);
  EXPECT_THAT(Join(former),
              StatusIs(kFailedPrecondition, testing::HasSubstr("wire_version differs")));
  EXPECT_EQ(code([](Greeting& g) { g.set_worker_id(std::string(65, 'x')); }), kInvalidArgument);
  EXPECT_EQ(code([](Greeting& g) { g.set_lane(16); }), kInvalidArgument);
  EXPECT_EQ(code([](Greeting& g) { g.set_lane(-1); }), kInvalidArgument);
  EXPECT_EQ(code([](Greeting& g) { g.set_max_bytes_per_second(-1); }), kInvalidArgument);
  EXPECT_EQ(registry_.lanes(), 1u);
}

TEST_F(LaneRegistryTest, NobodyTakesTheLanesOfOthers) {
  for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(Join(GreetingOf("a", i / 16, i % 16)).ok()) << i;
  EXPECT_THAT(Join(GreetingOf("a", 9)), StatusIs(kResourceExhausted));
  EXPECT_TRUE(Join(GreetingOf("b", 1)).ok());
  Close();
  Close();
  EXPECT_TRUE(Join(GreetingOf("a", 9)).ok()) << "one has ended";
}

TEST_F(LaneRegistryTest, WhoDoesNotGreetIsEndedAndTakesNoMoreThanAWorker) {
  std::vector<std::shared_ptr<Stream>> silent;
  for (int i = 0; i < 64; ++i) {
    silent.push_back(std::make_shared<Stream>());
    ASSERT_TRUE(registry_.Open("worker a", silent.back()).ok()) << i;
  }
  const auto one_more = std::make_shared<Stream>();
  EXPECT_THAT(registry_.Open("worker a", one_more), StatusIs(kResourceExhausted));
  EXPECT_TRUE(registry_.Open("worker b", one_more).ok());
  silent[0]->Greet();
  clock_.Advance(absl::Seconds(59));
  EXPECT_TRUE(registry_.Open("worker a", silent[0]).ok()) << "one has greeted";
  registry_.Tick();
  EXPECT_FALSE(silent[1]->ended());
  clock_.Advance(absl::Seconds(2));
  registry_.Tick();
  EXPECT_FALSE(silent[0]->ended());
  EXPECT_EQ(silent[1]->code(), kDeadlineExceeded);
}

}  // namespace
}  // namespace causeway::server
