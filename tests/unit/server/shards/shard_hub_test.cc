#include "server/shards/shard_hub.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/params/fragment_plan.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/store/memory_store.h"
#include "server/store/run_directory.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/shards/four_fragments.h"

namespace causeway::server {
namespace {

class SilentSink final : public SessionSink {
 public:
  void Send(const v1::CoordinatorMessage& message) override {
    if (message.has_placement()) placements.push_back(message.placement());
  }
  void Close(const absl::Status&) override {}
  std::vector<v1::Placement> placements;
};

// More than a piece of 1 MiB holds.
constexpr size_t kGivenValues = (size_t{1} << 18) + 3;

// A lead whose fragments 1 and 3 are at the shard "a", which the test is.
class ShardHubTest : public testing::Test {
 protected:
  ShardHubTest() {
    hub_ = std::make_unique<ShardHub>(ShardHub::Options{
        .file_system = FileSystem::Real(),
        .folder = folder_.path(),
        .deal = {{"lead", {0, 2}, false}, {"a", {1, 3}, false}},
        .initial = [](std::span<const int> fragments, const auto& take) -> absl::Status {
          for (const int fragment : fragments) {
            const std::vector<float> values(kGivenValues, static_cast<float>(fragment));
            RETURN_IF_ERROR(take(fragment, values));
          }
          return absl::OkStatus();
        },
        .process_nonce = 5,
        .patience = absl::ZeroDuration(),
        .clock = &clock_,
        .silence = absl::Seconds(10)});
    Coordinator::Options options;
    options.config = FourFragments(1);
    options.run_id = "run-1";
    options.part = PartOptions{.fragments = {0, 2}, .shards = hub_.get()};
    const FragmentPlan plan = FragmentPlan::Create(options.config).value();
    options.initial_parameters.resize(
        static_cast<size_t>(plan.range(0).size() + plan.range(2).size()));
    options.clock = &clock_;
    options.store = &store_;
    coordinator_ = Coordinator::Create(std::move(options)).value();
    hub_->Begin(*coordinator_);
  }

  static v1::ShardHello Hello(uint64_t process = 1) {
    v1::ShardHello hello;
    hello.set_wire_version(kWireVersion);
    hello.set_name("a");
    hello.set_address("10.0.0.2:7070");
    hello.set_process_nonce(process);
    hello.set_run_id("run-1");
    hello.add_fragments(1);
    hello.add_fragments(3);
    return hello;
  }
  // Its folder holds nothing.
  static v1::ShardHello Empty() {
    v1::ShardHello hello = Hello();
    hello.clear_run_id();
    hello.clear_fragments();
    return hello;
  }

  // The last that it says of its past.
  absl::Status TellAccounts(ShardHub::Line& line) {
    v1::ShardReport report;
    report.mutable_accounts();
    return hub_->Take(line, report);
  }

  absl::StatusOr<v1::Welcome> Join() {
    const v1::DescribeResponse run = coordinator_->Describe();
    v1::Join join;
    join.set_worker_id("w");
    join.set_run_id(run.run_id());
    join.set_wire_version(kWireVersion);
    join.set_config_hash(run.config_hash());
    join.set_plan_hash(run.plan_hash());
    join.set_data_vocabulary_size(128);
    join.set_process_nonce(7);
    return coordinator_->Join(join, sink_);
  }

  void ExpectRefused(const v1::ShardHello& hello, absl::StatusCode code, const std::string& word) {
    const absl::Status status = hub_->Admit(hello).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(word), std::string::npos) << status;
    EXPECT_EQ(hub_->Attach(hello).status(), status);
  }

  FakeClock clock_;
  TemporaryFolder folder_;
  MemoryStore store_;
  std::unique_ptr<ShardHub> hub_;
  std::shared_ptr<SilentSink> sink_ = std::make_shared<SilentSink>();
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(ShardHubTest, WorkersAreWelcomeOnceEveryShardHasCome) {
  const absl::Status early = Join().status();
  EXPECT_TRUE(absl::IsUnavailable(early)) << early;
  EXPECT_NE(early.message().find("missing: a"), std::string::npos) << early;
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(absl::IsUnavailable(Join().status()));  // Which text comes next, it has not said.
  ASSERT_TRUE(TellAccounts(**line).ok());
  const auto welcome = Join();
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  ASSERT_EQ(welcome->shards_size(), 1);
  EXPECT_EQ(welcome->shards(0).address(), "10.0.0.2:7070");
  EXPECT_EQ(welcome->shards(0).fragments_size(), 2);
  EXPECT_EQ(welcome->published_versions_size(), 4);
  // One that is away again keeps nobody out.
  hub_->Detach(*line, absl::UnavailableError("gone"));
  EXPECT_TRUE(Join().ok());
}

TEST_F(ShardHubTest, AShardThatCannotBeIsRefusedWithTheReason) {
  v1::ShardHello other = Hello();
  other.set_name("b");
  ExpectRefused(other, absl::StatusCode::kNotFound, "names a");
  other = Hello();
  other.set_wire_version(kWireVersion + 1);
  ExpectRefused(other, absl::StatusCode::kFailedPrecondition, "same release");
  other = Hello();
  other.set_run_id("run-2");
  ExpectRefused(other, absl::StatusCode::kFailedPrecondition, "run-2");
  other = Hello();
  other.set_fragments(1, 2);
  ExpectRefused(other, absl::StatusCode::kFailedPrecondition, "has fragments 1,2");
}

TEST_F(ShardHubTest, AShardGetsTheGivenValuesOfItsOwnFragmentsInPieces) {
  std::vector<v1::ShardValues> pieces;
  const auto send = [&](const v1::ShardValues& piece) {
    pieces.push_back(piece);
    return absl::OkStatus();
  };
  EXPECT_FALSE(hub_->Admit(Empty())->given_values());
  EXPECT_TRUE(absl::IsNotFound(hub_->SendInitial(Empty(), send)));
  ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), JoinPath(folder_.path(), kInitialFile),
                                  absl::string_view("given"))
                  .ok());
  EXPECT_TRUE(hub_->Admit(Empty())->given_values());
  ASSERT_TRUE(hub_->SendInitial(Empty(), send).ok());
  ASSERT_EQ(pieces.size(), 4U);
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].fragment(), i < 2 ? 1 : 3);
    EXPECT_EQ(pieces[i].values().size(), i % 2 == 0 ? size_t{1} << 20 : 3 * sizeof(float));
    EXPECT_EQ(pieces[i].last(), i % 2 == 1);
  }
  EXPECT_EQ(pieces[1].hash(), TreeHash(std::vector<float>(kGivenValues, 1)));
  EXPECT_EQ(pieces[3].hash(), TreeHash(std::vector<float>(kGivenValues, 3)));
  v1::ShardHello other = Empty();
  other.set_name("b");
  EXPECT_TRUE(absl::IsNotFound(hub_->SendInitial(other, send)));
}

TEST_F(ShardHubTest, AShardThatHasBegunNeedsItsFolder) {
  const auto welcome = hub_->Admit(Empty());
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_EQ(welcome->run_id(), "run-1");
  EXPECT_EQ(welcome->fragments(1), 3);
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok()) << line.status();
  hub_->Detach(*line, absl::UnavailableError("gone"));
  ExpectRefused(Empty(), absl::StatusCode::kFailedPrecondition, "another folder");
  const auto deal = ReadDeal(*FileSystem::Real(), folder_.path());
  ASSERT_TRUE(deal.ok() && deal->has_value()) << deal.status();
  EXPECT_TRUE((**deal)[1].begun);
  EXPECT_FALSE((**deal)[0].begun);
}

TEST_F(ShardHubTest, ASecondProcessOfAShardIsRefusedWhileTheFirstIsThere) {
  const auto line = hub_->Attach(Hello(1));
  ASSERT_TRUE(line.ok());
  ExpectRefused(Hello(2), absl::StatusCode::kAlreadyExists, "served already, at 10.0.0.2:7070");
  // The same process comes again before its former stream is noticed to be over.
  const auto again = hub_->Attach(Hello(1));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(hub_->NextOrder(**line), std::nullopt);
  hub_->Detach(*line, absl::UnavailableError("gone"));
  EXPECT_TRUE(hub_->NextOrder(**again).has_value());
  hub_->Detach(*again, absl::UnavailableError("gone"));
  EXPECT_TRUE(hub_->Attach(Hello(2)).ok());
}

TEST_F(ShardHubTest, AShardHearsTheNewestRosterAfterWhatWasSaidBeforeIt) {
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  ASSERT_TRUE(TellAccounts(**line).ok());
  ASSERT_TRUE(Join().ok());
  absl::Status answered = absl::UnknownError("not yet");
  v1::ShardCall call;
  call.mutable_applied()->set_worker_id("w");
  hub_->Call(3, call, [&](const absl::Status& status) { answered = status; });
  auto order = hub_->NextOrder(**line);
  ASSERT_TRUE(order.has_value() && order->has_call());
  EXPECT_EQ(order->call().applied().worker_id(), "w");
  v1::ShardReport report;
  report.mutable_answer()->set_number(order->call().number());
  report.mutable_answer()->set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  ASSERT_TRUE(hub_->Take(**line, report).ok());
  EXPECT_TRUE(absl::IsDataLoss(answered)) << answered;
  order = hub_->NextOrder(**line);
  ASSERT_TRUE(order.has_value() && order->has_roster());
  ASSERT_EQ(order->roster().members_size(), 1);
  EXPECT_EQ(order->roster().members(0).worker_id(), "w");
  EXPECT_EQ(order->roster().members(0).incarnation(), 1);
  EXPECT_EQ(order->roster().process_nonce(), 5U);
  EXPECT_EQ(hub_->TryNextOrder(**line), std::nullopt);
}

TEST_F(ShardHubTest, CallsToAShardThatIsAwayAreAnswered) {
  absl::Status answered;
  hub_->Call(1, {}, [&](const absl::Status& status) { answered = status; });
  EXPECT_TRUE(absl::IsUnavailable(answered));
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  answered = absl::OkStatus();
  hub_->Call(1, {}, [&](const absl::Status& status) { answered = status; });
  EXPECT_TRUE(answered.ok());
  hub_->Detach(*line, absl::UnavailableError("gone"));
  EXPECT_TRUE(absl::IsUnavailable(answered));
}

TEST_F(ShardHubTest, AShardThatHearsNothingIsGivenUp) {
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  hub_->Tell(coordinator_->Roster(), /*wait=*/true);
  EXPECT_EQ(hub_->NextOrder(**line), std::nullopt);
}

TEST_F(ShardHubTest, ASilentShardIsGivenUpAfterTheLeaseAndItsNextProcessIsWelcome) {
  bool cancelled = false;
  const auto line = hub_->Attach(Hello(), [&] { cancelled = true; });
  ASSERT_TRUE(line.ok());
  v1::ShardReport report;
  for (int i = 0; i < 4; ++i) {
    const v1::ShardRoster roster = coordinator_->Roster();
    hub_->Tell(roster, /*wait=*/false);
    clock_.Advance(absl::Seconds(9));  // Slow, and heard.
    report.set_heard(roster.number());
    ASSERT_TRUE(hub_->Take(**line, report).ok());
  }
  hub_->Tell(coordinator_->Roster(), /*wait=*/false);
  clock_.Advance(absl::Seconds(9));
  hub_->Tell(coordinator_->Roster(), /*wait=*/false);
  EXPECT_FALSE(cancelled);
  EXPECT_TRUE(absl::IsAlreadyExists(hub_->Attach(Hello(2)).status()));
  clock_.Advance(absl::Seconds(1));
  hub_->Tell(coordinator_->Roster(), /*wait=*/false);
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(hub_->NextOrder(**line), std::nullopt);
  // Its stream is not over yet.
  EXPECT_TRUE(hub_->Attach(Hello(2)).ok());
}

TEST_F(ShardHubTest, ALeadEndsWhenEveryShardKnowsThatTheRunIsFinished) {
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  v1::ShardRoster roster = coordinator_->Roster();
  roster.set_finished(true);
  hub_->Tell(roster, /*wait=*/false);
  EXPECT_FALSE(hub_->AllHaveEnded());
  v1::ShardReport report;
  report.set_heard(roster.number() - 1);
  ASSERT_TRUE(hub_->Take(**line, report).ok());
  EXPECT_FALSE(hub_->AllHaveEnded());
  EXPECT_FALSE(hub_->NextOrder(**line)->roster().ended());
  report.set_heard(roster.number());
  ASSERT_TRUE(hub_->Take(**line, report).ok());
  roster = coordinator_->Roster();
  roster.set_finished(true);
  hub_->Tell(roster, /*wait=*/false);
  EXPECT_TRUE(hub_->NextOrder(**line)->roster().ended());
  hub_->Detach(*line, absl::UnavailableError("it has ended"));
  EXPECT_TRUE(hub_->AllHaveEnded());
  // The next process of the lead does not wait for a shard that has ended.
  auto deal = ReadDeal(*FileSystem::Real(), folder_.path());
  ASSERT_TRUE(deal.ok() && deal->has_value()) << deal.status();
  EXPECT_TRUE(
      ShardHub({.file_system = FileSystem::Real(), .folder = "", .deal = **deal}).AllHaveEnded());
  // Somebody has joined again.
  hub_->Tell(coordinator_->Roster(), /*wait=*/false);
  EXPECT_FALSE(hub_->AllHaveEnded());
  deal = ReadDeal(*FileSystem::Real(), folder_.path());
  ASSERT_TRUE(deal.ok() && deal->has_value()) << deal.status();
  EXPECT_FALSE((**deal)[1].ended);
}

TEST_F(ShardHubTest, WorkersHearWhereAShardHasMovedTo) {
  auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  ASSERT_TRUE(TellAccounts(**line).ok());
  ASSERT_TRUE(Join().ok());
  hub_->Detach(*line, absl::UnavailableError("gone"));
  v1::ShardHello moved = Hello(2);
  moved.set_address("10.0.0.3:7070");
  ASSERT_TRUE(hub_->Attach(moved).ok());
  ASSERT_EQ(sink_->placements.size(), 1U);
  EXPECT_EQ(sink_->placements[0].shards(0).address(), "10.0.0.3:7070");
}

TEST_F(ShardHubTest, TheLeadKnowsTheRoundsOfItsShards) {
  const auto line = hub_->Attach(Hello());
  ASSERT_TRUE(line.ok());
  v1::ShardReport report;
  report.mutable_round()->set_fragment(3);
  report.mutable_round()->set_round(5);
  report.mutable_round()->set_published_hash(77);
  ASSERT_TRUE(hub_->Take(**line, report).ok());
  report.mutable_round()->set_fragment(2);  // The lead's own: nobody else speaks of it.
  ASSERT_TRUE(hub_->Take(**line, report).ok());
  const v1::RunStatus status = coordinator_->GetStatus();
  EXPECT_EQ(status.fragments(3).published_version(), 5);
  EXPECT_EQ(status.fragments(3).published_hash(), 77U);
  EXPECT_EQ(status.fragments(2).published_version(), 0);
  ASSERT_TRUE(TellAccounts(**line).ok());
  EXPECT_EQ(Join()->published_versions(3), 5);
  // It comes back with an old copy of its folder.
  report.mutable_fragment()->set_fragment(3);
  report.mutable_fragment()->set_published_version(4);
  const absl::Status old = hub_->Take(**line, report);
  EXPECT_TRUE(absl::IsFailedPrecondition(old)) << old;
}

}  // namespace
}  // namespace causeway::server
