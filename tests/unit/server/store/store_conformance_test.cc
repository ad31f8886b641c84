// Holds every Store to its promises, whatever it keeps its things in.
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/memory_store.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// A store and what outlives it.
class StoreHarness {
 public:
  virtual ~StoreHarness() = default;
  virtual Store& store() = 0;
  // As after the end of the process that had it: Recover is to be called next.
  virtual void Reopen() = 0;
};

class MemoryHarness final : public StoreHarness {
 public:
  Store& store() override { return store_; }
  void Reopen() override {}

 private:
  MemoryStore store_;
};

class RunDirectoryHarness final : public StoreHarness {
 public:
  explicit RunDirectoryHarness(const RunDirectoryStore::Options& options) : options_(options) {
    Reopen();
  }
  Store& store() override { return *store_; }
  void Reopen() override {
    store_ = nullptr;
    auto store = RunDirectoryStore::Open(*FileSystem::Real(), parent_.File("run"), options_);
    if (!store.ok()) ADD_FAILURE() << store.status();
    store_ = *std::move(store);
  }

 private:
  const RunDirectoryStore::Options options_;
  const TemporaryFolder parent_;
  std::unique_ptr<RunDirectoryStore> store_;
};

using StoreHarnessFactory = std::function<std::unique_ptr<StoreHarness>()>;

class StoreConformanceTest : public testing::TestWithParam<StoreHarnessFactory> {
 protected:
  Store& store() { return harness_->store(); }
  // Recover, and BeginRun with ScriptedIdentity.
  void Begin() {
    const auto before = store().Recover().value();
    ASSERT_FALSE(before.has_value());
    ASSERT_EQ(store().BeginRun(ScriptedIdentity()), absl::OkStatus());
  }
  std::optional<RecoveredRun> Reopen() {
    harness_->Reopen();
    absl::StatusOr<std::optional<RecoveredRun>> run = store().Recover();
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *std::move(run) : std::nullopt;
  }

  const std::unique_ptr<StoreHarness> harness_ = GetParam()();
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest,
                         testing::Values([] { return std::make_unique<MemoryHarness>(); },
                                         [] {
                                           return std::make_unique<RunDirectoryHarness>(
                                               RunDirectoryStore::Options{});
                                         },
                                         [] {
                                           return std::make_unique<RunDirectoryHarness>(
                                               RunDirectoryStore::Options{.durable = false});
                                         }));

TEST_P(StoreConformanceTest, ARunThatHasBegunIsFoundAgain) {
  Begin();
  const std::optional<RecoveredRun> run = Reopen();
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->identity.SerializeAsString(), ScriptedIdentity().SerializeAsString());
  EXPECT_FALSE(run->state.started());
  EXPECT_TRUE(run->rounds.empty());
}

TEST_P(StoreConformanceTest, ContributionsAndRoundsComeBackWithTheirBytes) {
  Begin();
  for (const char* worker : {"bob", "alice"}) {
    ASSERT_TRUE(SaveDelta(store(), 1, 1, worker).ok());
  }
  ASSERT_TRUE(SaveMerged(store(), 1, 1).ok());
  for (int opening = 0; opening < 2; ++opening) {
    EXPECT_EQ(*store().ReadContribution(1, 1, "alice"), ScriptedObject(1, 1, "alice"));
    EXPECT_EQ(*store().ReadAnswer(1, 1), ScriptedObject(1, 1, "answer"));
    EXPECT_TRUE(absl::IsNotFound(store().ReadContribution(1, 1, "carol").status()));
    EXPECT_TRUE(absl::IsNotFound(store().ReadContribution(1, 2, "alice").status()));
    EXPECT_TRUE(absl::IsNotFound(store().ReadAnswer(1, 2).status()));
    EXPECT_TRUE(absl::IsNotFound(store().ReadAnswer(0, 1).status()));
    EXPECT_TRUE(absl::IsNotFound(store().ReadSnapshot(1, 1).status()));
    if (opening > 0) break;
    const std::optional<RecoveredRun> run = Reopen();
    ASSERT_EQ(run->contributions.size(), 2u);
    EXPECT_EQ(run->contributions[0].header().worker_id(), "alice");
    EXPECT_EQ(run->contributions[1].header().worker_id(), "bob");
    EXPECT_EQ(run->contributions[1].unix_s(), ScriptedContribution(1, 1, "bob").unix_s());
    ASSERT_EQ(run->rounds.size(), 1u);
    EXPECT_THAT(run->rounds[0].weights(), ElementsAreArray(ScriptedRound(1, 1).weights()));
    EXPECT_EQ(run->rounds[0].reason(), ScriptedRound(1, 1).reason());
  }
}

TEST_P(StoreConformanceTest, RecordsComeBackInOrder) {
  Begin();
  for (const int64_t round : {1, 2}) {
    for (const int fragment : {1, 0}) {
      for (const char* worker : {"b", "a"}) {
        ASSERT_TRUE(SaveDelta(store(), fragment, round, worker).ok());
      }
      ASSERT_TRUE(store().SaveRound(ScriptedRound(fragment, round), {}).ok());
    }
  }
  ASSERT_TRUE(store().SaveMembers(std::array{ScriptedMember("b", 1)}).ok());
  ASSERT_TRUE(store().SaveMembers(std::array{ScriptedMember("a", 1)}).ok());
  const std::optional<RecoveredRun> run = Reopen();
  std::vector<std::string> order;
  for (const auto& record : run->contributions) {
    order.push_back(absl::StrCat(record.header().fragment(), record.header().round(),
                                 record.header().worker_id()));
  }
  EXPECT_THAT(order, ElementsAre("01a", "01b", "02a", "02b", "11a", "11b", "12a", "12b"));
  order.clear();
  for (const auto& record : run->rounds) {
    order.push_back(absl::StrCat(record.fragment(), record.round()));
  }
  EXPECT_THAT(order, ElementsAre("01", "02", "11", "12"));
  ASSERT_EQ(run->members.size(), 2u);
  EXPECT_EQ(run->members[0].worker_id(), "a");
}

TEST_P(StoreConformanceTest, TheNewestStateOfMembersAndRunStands) {
  Begin();
  ASSERT_TRUE(store().SaveMembers(std::array{ScriptedMember("alice", 1)}).ok());
  v1::Member later = ScriptedMember("alice", 2);
  later.set_state(v1::Member::LOST);
  later.mutable_heartbeat()->set_tokens(7);
  ASSERT_TRUE(store().SaveMembers(std::array{later}).ok());
  v1::State state;
  state.set_started(true);
  state.set_pause_reason("lunch");
  ASSERT_TRUE(store().SaveRunState(state).ok());
  state.set_hash_mismatches(1);
  ASSERT_TRUE(store().SaveRunState(state).ok());
  const std::optional<RecoveredRun> run = Reopen();
  ASSERT_EQ(run->members.size(), 1u);
  EXPECT_EQ(run->members[0].incarnation(), 2u);
  EXPECT_EQ(run->members[0].SerializeAsString(), later.SerializeAsString());
  EXPECT_EQ(run->state.pause_reason(), "lunch");
  EXPECT_EQ(run->state.hash_mismatches(), 1);
}

TEST_P(StoreConformanceTest, ASnapshotComesBackAsItWas) {
  Begin();
  ASSERT_TRUE(store().SaveRound(ScriptedRound(0, 1), {}).ok());
  const std::vector<float> theta = {1.5f, -2.0f, 3.0f};
  const std::vector<float> published = {1.0f, -2.5f, -0.0f};
  const std::vector<float> momentum = {0.25f, 1e-30f, 0.0f};
  ASSERT_TRUE(store()
                  .SaveSnapshot({.fragment = 0,
                                 .version = 1,
                                 .published_hash = 42,
                                 .theta = theta,
                                 .published = published,
                                 .optimizer = {{"momentum", momentum}, {"empty", {}}}})
                  .ok());
  const std::optional<RecoveredRun> run = Reopen();
  ASSERT_EQ(run->snapshots.size(), 1u);
  EXPECT_EQ(run->snapshots[0].version(), 1);
  const auto read = store().ReadSnapshot(0, 1).value();
  EXPECT_EQ(read.published_hash, 42u);
  EXPECT_THAT(read.theta, ElementsAreArray(theta));
  EXPECT_THAT(read.published, ElementsAreArray(published));
  ASSERT_EQ(read.optimizer.size(), 2u);
  EXPECT_EQ(read.optimizer[0].first, "momentum");
  EXPECT_THAT(read.optimizer[0].second, ElementsAreArray(momentum));
  EXPECT_THAT(read.optimizer[1].second, IsEmpty());
}

TEST_P(StoreConformanceTest, ForgottenAnswersAreGoneAndTheirRoundsStay) {
  Begin();
  for (const int64_t round : {1, 2, 3}) {
    ASSERT_TRUE(SaveMerged(store(), 0, round).ok());
  }
  ASSERT_TRUE(store().ForgetAnswers(0, 3).ok());
  ASSERT_TRUE(store().ForgetAnswers(0, 2).ok());  // Asks for less: changes nothing.
  EXPECT_TRUE(absl::IsNotFound(store().ReadAnswer(0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(store().ReadAnswer(0, 2).status()));
  EXPECT_TRUE(store().ReadAnswer(0, 3).ok());
  EXPECT_EQ(Reopen()->rounds.size(), 3u);
  EXPECT_TRUE(store().ReadAnswer(0, 3).ok());
}

TEST_P(StoreConformanceTest, CallsOfSeveralThreadsAreAllKept) {
  constexpr int kThreads = 4;  // And fragments.
  ASSERT_TRUE(store().Recover().ok());
  v1::RunIdentity identity = ScriptedIdentity();
  while (identity.initial_hashes_size() < kThreads) identity.add_initial_hashes(1);
  ASSERT_TRUE(store().BeginRun(identity).ok());
  constexpr int64_t kRounds = 5;
  std::vector<std::thread> threads;
  for (int fragment = 0; fragment < kThreads; ++fragment) {
    threads.emplace_back([this, fragment] {
      for (int64_t round = 1; round <= kRounds; ++round) {
        EXPECT_TRUE(SaveDelta(store(), fragment, round, "alice").ok());
        EXPECT_TRUE(SaveMerged(store(), fragment, round).ok());
        EXPECT_TRUE(store().SaveMembers(std::array{ScriptedMember("alice", 1)}).ok());
        EXPECT_TRUE(store().ReadAnswer(fragment, round).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::optional<RecoveredRun> run = Reopen();
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->rounds.size(), static_cast<size_t>(kThreads * kRounds));
  EXPECT_EQ(run->contributions.size(), static_cast<size_t>(kThreads * kRounds));
}

}  // namespace
}  // namespace causeway::server
