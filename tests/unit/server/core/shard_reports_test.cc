#include "server/core/shard_reports.h"

#include <string>

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

class ShardReportsTest : public ::testing::Test {
 protected:
  static v1::RunConfig Config() {
    v1::RunConfig config = ToyConfig();
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    return config;
  }
  static v1::FragmentStatus Status(int64_t version, const std::string& contributed) {
    v1::FragmentStatus status;
    status.set_fragment(1);
    status.set_values(10);
    status.set_published_version(version);
    status.add_contributed(contributed);
    status.add_quarantined("c");
    return status;
  }
  static RoundRecord Round(int64_t round) {
    RoundRecord record;
    record.fragment = 1;
    record.round = round;
    record.published_hash = 7;
    return record;
  }

  const FragmentPlan plan_ = *FragmentPlan::Create(Config());
  const SyncSchedule schedule_{plan_.fragments(), 6, 1};
  ShardReports reports_{plan_, schedule_};
};

TEST_F(ShardReportsTest, AFragmentIsAsItsShardLastSaid) {
  EXPECT_EQ(reports_.open_round(1).round, 1) << "nothing was said";
  EXPECT_EQ(reports_.status(1).values(), plan_.range(1).size());
  ASSERT_TRUE(reports_.TakeStatus("east", Status(3, "a")).ok());
  const OpenRound open = reports_.open_round(1);
  EXPECT_EQ(open.fragment, 1);
  EXPECT_EQ(open.round, 4);
  EXPECT_EQ(open.send_step, schedule_.SendStep(1, 4));
  EXPECT_THAT(open.arrivals, ElementsAre(Key("a")));
  EXPECT_THAT(open.quarantined, ElementsAre(Key("c")));
  EXPECT_EQ(reports_.status(1).values(), 10);
  EXPECT_EQ(reports_.open_round(2).round, 1) << "another one";
}

TEST_F(ShardReportsTest, ARoundIsNewsUnlessAStatusWasFaster) {
  ASSERT_TRUE(reports_.TakeStatus("east", Status(3, "a")).ok());
  reports_.TakeRound(Round(3));
  EXPECT_THAT(reports_.open_round(1).arrivals, ElementsAre(Key("a")));
  reports_.TakeRound(Round(4));
  EXPECT_EQ(reports_.open_round(1).round, 5);
  EXPECT_THAT(reports_.open_round(1).arrivals, ElementsAre());
  EXPECT_THAT(reports_.open_round(1).quarantined, ElementsAre());
  EXPECT_EQ(reports_.status(1).published_hash(), 7u);
}

TEST_F(ShardReportsTest, AShardThatGoesBackServesAnOldCopy) {
  ASSERT_TRUE(reports_.TakeStatus("east", Status(3, "a")).ok());
  const absl::Status old = reports_.TakeStatus("east", Status(2, "b"));
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(old.message()), HasSubstr("shard east has version 2 of fragment 1"));
  EXPECT_EQ(reports_.open_round(1).round, 4);
}

TEST_F(ShardReportsTest, TheLastAccountsOfAllShardsAreAddedUp) {
  for (const int64_t bytes : {1, 10}) {
    v1::ShardAccounts accounts;
    accounts.set_hash_checks(bytes);
    accounts.set_hash_mismatches(2 * bytes);
    v1::ShardAccounts::Worker& worker = *accounts.add_workers();
    worker.set_worker_id("a");
    worker.set_bytes_up(3 * bytes);
    worker.set_bytes_down(4 * bytes);
    worker.set_state_bytes_down(5 * bytes);
    reports_.TakeAccounts("east", accounts);
    if (bytes == 10) reports_.TakeAccounts("west", accounts);
  }
  reports_.TakeRound(Round(4));
  RunSummary summary;
  summary.rounds = 1;
  summary.hash_checks = 1;
  summary.workers["a"].bytes_up = 1;
  summary.workers["b"] = {};
  reports_.AddTo(summary);
  EXPECT_EQ(summary.rounds, 5);
  EXPECT_EQ(summary.hash_checks, 21);
  EXPECT_EQ(summary.hash_mismatches, 40);
  EXPECT_EQ(summary.workers["a"].bytes_up, 61);
  EXPECT_EQ(summary.workers["a"].bytes_down, 80);
  EXPECT_EQ(summary.workers["a"].state_bytes_down, 100);
  EXPECT_EQ(summary.workers["b"].bytes_up, 0);
}

}  // namespace
}  // namespace causeway::server
