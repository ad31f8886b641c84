// Rounds and objects, with workers that are all there.
#include <unistd.h>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "server/store/run_directory.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorExchangeTest, AllWorkersHoldWhatTheCoordinatorPublished) {
  TwoWorkers two;
  two.TrainBoth(25);
  EXPECT_EQ(two.a.published(), two.b.published());
  EXPECT_EQ(two.a.published(), two.run.coordinator->PublishedParameters());
  ASSERT_TRUE(two.run.coordinator->Shutdown().ok());
  const nlohmann::json summary = two.run.store.summary();
  // Sends at 2, 4, 6, 8 ...: 12 rounds by step 24, all merged by 25.
  EXPECT_EQ(summary["rounds"], 12);
  EXPECT_EQ(summary["hash_checks"], 24);
  EXPECT_EQ(summary["hash_mismatches"], 0);
  EXPECT_EQ(summary["mode"], "streaming");
  EXPECT_EQ(summary["workers"]["a"]["bytes_up"], summary["workers"]["b"]["bytes_up"]);
  EXPECT_GT(summary["workers"]["a"]["bytes_up"], 0);
  EXPECT_EQ(two.run.store.snapshots().size(), 3u);
  EXPECT_EQ(two.run.store.snapshots()[0].version, 4);
}

TEST(CoordinatorExchangeTest, ARoundIsRecordedAndAnnounced) {
  TwoWorkers two;
  two.TrainBoth(2);
  const std::vector<v1::Round> rounds = two.run.store.rounds();
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].fragment(), 0);
  EXPECT_EQ(rounds[0].round(), 1);
  EXPECT_EQ(rounds[0].send_step(), 2);
  EXPECT_THAT(rounds[0].contributors(), ElementsAre("a", "b"));
  EXPECT_THAT(rounds[0].weights(), ElementsAre(0.5, 0.5));
  EXPECT_GT(rounds[0].bytes_in(), rounds[0].bytes_out());
  ASSERT_EQ(two.a.sink().outcomes().size(), 1u);
  EXPECT_EQ(two.a.sink().outcomes()[0].published_hash(), rounds[0].published_hash());
  EXPECT_EQ(two.run.events.Count("round_closed"), 0) << "only for those that miss somebody";
  two.run.rounds().RecordPulled("a", v1::Want::ANSWER, 100);
  EXPECT_EQ(two.run.status().workers(0).bytes_down(), 100);
}

TEST(CoordinatorExchangeTest, AContributionIsHeldBeforeItsRoundIsMerged) {
  TwoWorkers two;
  two.a.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  std::vector<uint8_t> object;
  const v1::PushHeader last = two.b.MakePush(0, 1, object);
  const auto accepted = two.run.rounds().Contribute(last, object).value();
  EXPECT_FALSE(accepted.quarantined());
  EXPECT_EQ(two.run.store.contributions().size(), 2u);
  EXPECT_TRUE(two.run.store.rounds().empty());
  // A coordinator that died now would not have lost it.
  two.Restart();
  const auto held = two.run.rounds().BeginPush(two.b.MakePush(0, 1, object), nullptr);
  ASSERT_TRUE(held.ok() && held->has_value()) << held.status();
  two.run.rounds().MergeDue(7);  // No such fragment.
  EXPECT_TRUE(two.run.store.rounds().empty());
  two.run.rounds().MergeDue(0);
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_THAT(two.run.store.rounds()[0].contributors(), ElementsAre("a", "b"));
}

TEST(CoordinatorExchangeTest, ARepeatedPushCountsOnceAndAnotherObjectUnderItsKeyIsRefused) {
  TwoWorkers two;
  two.a.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  std::vector<uint8_t> object;
  const v1::PushHeader header = two.a.MakePush(0, 1, object);
  const auto held = two.run.rounds().BeginPush(header, nullptr);
  ASSERT_TRUE(held.ok() && held->has_value()) << held.status();
  EXPECT_EQ((*held)->durable_bytes(), header.total_bytes());
  EXPECT_TRUE((*held)->duplicate());
  EXPECT_TRUE(two.run.rounds().Contribute(header, object).ok());
  two.a.Train();
  EXPECT_THAT(two.a.Push(0, 1), StatusIs(kAlreadyExists));
  ASSERT_TRUE(two.b.Push(0, 1).ok());
  EXPECT_TRUE(two.run.rounds().Contribute(header, object).ok()) << "after the round, too";
  EXPECT_EQ(two.run.store.contributions().size(), 2u);
  EXPECT_EQ(two.run.status().workers(0).bytes_up(), header.total_bytes());
}

TEST(CoordinatorExchangeTest, OnlyTheOpenRoundTakesContributions) {
  TwoWorkers two;
  EXPECT_THAT(two.a.Push(0, 2), StatusIs(kFailedPrecondition));
  EXPECT_THAT(two.a.Push(0, 0), StatusIs(kFailedPrecondition));
  std::vector<uint8_t> object;
  v1::PushHeader header = two.a.MakePush(0, 1, object);
  header.set_fragment(3);
  EXPECT_THAT(two.run.rounds().BeginPush(header, nullptr), StatusIs(kFailedPrecondition));
}

TEST(CoordinatorExchangeTest, WhoIsSendingWhenTheRoundClosesHearsOfIt) {
  TwoWorkers two("membership { grace_ms: 2000 }");
  Coordinator& coordinator = *two.run.coordinator;
  int contributor_told = 0;
  std::vector<uint8_t> object;
  const v1::PushHeader header = two.a.MakePush(0, 1, object);
  ASSERT_TRUE(coordinator.rounds().BeginPush(header, [&] { ++contributor_told; }).ok());
  ASSERT_TRUE(coordinator.rounds().Contribute(header, object).ok());
  std::vector<absl::Status> told;  // What is said of the delta when its round has closed.
  const v1::PushHeader slow = two.b.MakePush(0, 1, object);
  ASSERT_TRUE(coordinator.rounds().BeginPush(slow, [] { ADD_FAILURE(); }).ok());
  const auto closed = [&] {
    EXPECT_TRUE(two.run.store.rounds().empty()) << "before the merge";
    told.push_back(coordinator.rounds().BeginPush(slow, nullptr).status());
    const auto held = coordinator.rounds().BeginPush(header, nullptr);
    EXPECT_TRUE(held.ok() && held->has_value()) << "it contributed: " << held.status();
  };
  ASSERT_TRUE(coordinator.rounds().BeginPush(slow, closed).ok()) << "it takes the former's place";
  coordinator.rounds().MergeDue(0);
  EXPECT_TRUE(told.empty());
  two.run.clock.Advance(absl::Milliseconds(1999));
  coordinator.Tick();
  EXPECT_TRUE(told.empty());
  two.run.clock.Advance(absl::Milliseconds(1));
  coordinator.Tick();
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_THAT(two.run.store.rounds()[0].contributors(), ElementsAre("a"));
  EXPECT_EQ(two.run.events.Count("round_closed"), 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], StatusIs(kAborted, HasSubstr("round 1 of fragment 0 closed without b")));
  EXPECT_TRUE(absl::IsAborted(two.b.Push(0, 1)));
  EXPECT_EQ(two.run.events.Count("contribution_late"), 1) << "once, however many streams ask";
  ASSERT_TRUE(two.b.Merge(0, 1).ok());
  ASSERT_TRUE(two.b.Push(0, 2).ok());
  two.run.clock.Advance(absl::Seconds(2));
  coordinator.Tick();
  EXPECT_EQ(two.run.store.rounds().size(), 2u);
  EXPECT_EQ(told.size(), 1u) << "once";
  EXPECT_EQ(contributor_told, 1);
}

TEST(CoordinatorExchangeTest, HostileObjectsChangeNothing) {
  TwoWorkers two;
  Coordinator& coordinator = *two.run.coordinator;
  std::vector<uint8_t> object;
  const v1::PushHeader good = two.a.MakePush(0, 1, object);

  const auto refused = [&](auto change, absl::StatusCode code) {
    v1::PushHeader header = good;
    change(header);
    EXPECT_THAT(coordinator.rounds().BeginPush(header, nullptr), StatusIs(code));
  };
  using H = v1::PushHeader;
  refused([](H& h) { h.set_total_bytes(int64_t{1} << 40); }, kInvalidArgument);
  refused([](H& h) { h.set_codec(v1::FP32); }, kFailedPrecondition);
  refused([](H& h) { h.set_run_id("another"); }, kFailedPrecondition);
  refused([](H& h) { h.set_worker_id("stranger"); }, kPermissionDenied);
  refused([](H& h) { h.set_tokens(-1); }, kInvalidArgument);
  v1::PushHeader header = good;
  header.set_object_hash(good.object_hash() + 1);
  EXPECT_THAT(coordinator.rounds().Contribute(header, object), StatusIs(kDataLoss));
  std::vector<uint8_t> shorter(object.begin(), object.end() - 1);
  EXPECT_THAT(coordinator.rounds().Contribute(good, shorter), StatusIs(kInvalidArgument));

  EXPECT_TRUE(two.run.store.contributions().empty());
  EXPECT_TRUE(coordinator.Health().ok());
  EXPECT_TRUE(coordinator.rounds().Contribute(good, object).ok()) << "the key is still free";
}

// One fragment whose deltas have two leaves. Codec chunks of int4 do not end where a leaf does.
class LeafValidationTest : public ::testing::Test {
 protected:
  LeafValidationTest() {
    two_.a.Train();
    header_ = two_.a.MakePush(0, 1, object_);
    EXPECT_GT(object_.size(), kTreeLeafBytes);
    EXPECT_LT(object_.size(), 2 * kTreeLeafBytes);
  }
  // Whether it is valid; what was measured is handed over in Contribute.
  bool Measure(int64_t leaf) {
    const size_t offset = static_cast<size_t>(leaf) * kTreeLeafBytes;
    const auto bytes = std::span<const uint8_t>(object_).subspan(
        offset, std::min(kTreeLeafBytes, object_.size() - offset));
    squares_[static_cast<size_t>(leaf)] = coordinator().rounds().MeasureLeaf(0, 1, leaf, bytes);
    return !squares_[static_cast<size_t>(leaf)].empty();
  }
  // No encoder makes such a scale.
  void SpoilCodecChunk(size_t chunk) {
    object_[chunk * kInt4ChunkBytes] = 0xff;
    object_[chunk * kInt4ChunkBytes + 1] = 0xff;
    header_.set_object_hash(TreeHash(object_));
  }
  absl::StatusCode Contribute() {
    ReceivedObject received(object_);
    received.tree_hash = TreeHash(object_);
    received.squares = squares_;
    return coordinator().rounds().Contribute(header_, std::move(received)).status().code();
  }
  Coordinator& coordinator() { return *two_.run.coordinator; }

  static constexpr size_t kInt4ChunkBytes = 2176;
  static constexpr size_t kAcross = kTreeLeafBytes / kInt4ChunkBytes;  // The chunk on the border.

  TwoWorkers two_{"model { vocabulary_size: 150000 } sync { fragments: 1 }"};
  std::vector<uint8_t> object_;
  v1::PushHeader header_;
  std::vector<std::vector<double>> squares_{2};
};

TEST_F(LeafValidationTest, WhatIsValidLeafByLeafIsAcceptedWithTheSameNorm) {
  EXPECT_TRUE(Measure(0));
  EXPECT_TRUE(Measure(1));
  EXPECT_EQ(Contribute(), kOk);
  const double norm = two_.run.store.contributions().back().norm();
  EXPECT_GT(norm, 0);
  header_.set_worker_id("b");
  header_.set_incarnation(two_.b.welcome().incarnation());
  squares_[0].clear();
  EXPECT_EQ(Contribute(), kOk);
  EXPECT_EQ(two_.run.store.contributions().back().header().worker_id(), "b");
  EXPECT_EQ(two_.run.store.contributions().back().norm(), norm) << "half of it measured in the end";
}

TEST_F(LeafValidationTest, EveryCodecChunkWithinALeafIsChecked) {
  const std::vector<uint8_t> good = object_;
  const size_t last = (object_.size() - 1) / kInt4ChunkBytes;
  for (const size_t chunk : {size_t{0}, kAcross - 1, kAcross + 1, last}) {
    SpoilCodecChunk(chunk);
    const int64_t leaf = chunk < kAcross ? 0 : 1;
    EXPECT_FALSE(Measure(leaf)) << chunk;
    EXPECT_TRUE(Measure(1 - leaf)) << chunk;
    EXPECT_EQ(Contribute(), kInvalidArgument) << chunk;
    object_ = good;
  }
}

TEST_F(LeafValidationTest, ACodecChunkAcrossTwoLeavesIsCheckedInTheEnd) {
  SpoilCodecChunk(kAcross);
  EXPECT_TRUE(Measure(0));
  EXPECT_TRUE(Measure(1));
  EXPECT_EQ(Contribute(), kInvalidArgument);
}

TEST_F(LeafValidationTest, ARoundThatIsNotOpenHasNoBaseToCheckAgainst) {
  const auto leaf = std::span<const uint8_t>(object_).first(kTreeLeafBytes);
  EXPECT_FALSE(coordinator().rounds().MeasureLeaf(0, 1, 0, leaf).empty());
  EXPECT_TRUE(coordinator().rounds().MeasureLeaf(0, 2, 0, leaf).empty());
  EXPECT_TRUE(coordinator().rounds().MeasureLeaf(7, 1, 0, leaf).empty());
}

TEST_F(LeafValidationTest, AHashThatOtherLeavesMakeIsRefused) {
  ReceivedObject received(object_);
  received.tree_hash = header_.object_hash() + 1;
  EXPECT_THAT(coordinator().rounds().Contribute(header_, std::move(received)), StatusIs(kDataLoss));
}

TEST(CoordinatorExchangeTest, OldAnswersGiveWayToTheState) {
  TwoWorkers two;
  two.TrainBoth(20);  // Fragment 0 is at version 4, two answers are kept.
  ASSERT_TRUE(two.a.Heartbeat().ok());
  ASSERT_TRUE(two.b.Heartbeat().ok());
  two.run.coordinator->Maintain();
  EXPECT_THAT(two.a.Merge(0, 1), StatusIs(kNotFound));
  EXPECT_THAT(two.a.Merge(0, 6), StatusIs(kFailedPrecondition));
  EXPECT_THAT(two.a.Merge(9, 1), StatusIs(kFailedPrecondition));
  EXPECT_EQ((*two.run.rounds().PullState(0))->header.round(), 4);
}

// Empties the scratch files in `folder`, which have no names, of this process.
int EmptyScratchFiles(const std::string& folder) {
  int emptied = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // That of this listing is.
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    if (absl::EndsWith(file, " (deleted)") &&
        (absl::StartsWith(file, folder + "/#") ||
         absl::StartsWith(file, JoinPath(folder, kScratchFile)))) {
      emptied += truncate(entry.path().c_str(), 0) == 0 ? 1 : 0;
    }
  }
  return emptied;
}

TEST(CoordinatorExchangeTest, AStateThatCannotBeReadNowIsAskedForAgain) {
  TwoWorkers two;
  const std::string folder = std::filesystem::canonical(testing::TempDir()).string();
  ASSERT_EQ(EmptyScratchFiles(folder), 1);
  EXPECT_THAT(two.run.rounds().PullState(0),
              StatusIs(kUnavailable, "the scratch file ends too early"));
  EXPECT_TRUE(two.run.coordinator->Health().ok());
}

TEST(CoordinatorExchangeTest, GradientsGoThroughTheSameMachinery) {
  TwoWorkers two(R"(
      sync { contribution: GRADIENT fragments: 1 steps_between_syncs: 1 overlap_steps: 0
             codec_up: BF16 codec_down: FP32 }
      outer { optimizer: ADAMW })");
  const std::vector<float> before = two.a.published();
  two.TrainBoth(3);
  EXPECT_EQ(two.a.published(), two.b.published());
  EXPECT_EQ(two.a.published(), two.run.coordinator->PublishedParameters());
  EXPECT_NE(two.a.published(), before);
  ASSERT_TRUE(two.run.coordinator->Shutdown().ok());
  EXPECT_EQ(two.run.store.summary()["mode"], "data-parallel");
}

TEST(CoordinatorExchangeTest, AFailingStoreStopsTheCoordinatorAndTellsEverybody) {
  TwoWorkers two;
  absl::Status waited;
  two.run.rounds().PullAnswer(0, 1, [&](auto object) { waited = object.status(); });
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  two.run.store.FailWith(absl::InternalError("EIO"));
  EXPECT_THAT(two.b.Push(0, 1),
              StatusIs(kUnavailable, HasSubstr("the coordinator stopped: the store failed")))
      << "he waits, too, whose delta it was";
  EXPECT_THAT(two.run.coordinator->Health().message(), HasSubstr("EIO"));
  EXPECT_THAT(waited, StatusIs(kUnavailable)) << "the workers wait for a successor";
  EXPECT_EQ(two.a.sink().closed(), 1);
  EXPECT_FALSE(two.a.Push(1, 1).ok());
  EXPECT_EQ(two.run.events.Count("failed"), 1);
}

TEST(CoordinatorExchangeTest, AFullDiskStopsTheCoordinatorWithWhatToDo) {
  TwoWorkers two;
  two.run.store.FailWith(absl::ResourceExhaustedError("No space left on device"));
  EXPECT_THAT(two.run.orders().Pause(""), StatusIs(kUnavailable));
  EXPECT_THAT(std::string(two.run.coordinator->Health().message()),
              HasSubstr("No space left on device; make room there and start it again"));
}

TEST(CoordinatorExchangeTest, AnErrorOfTheStoreIsNotTakenForOneOfTheContribution) {
  for (const absl::StatusCode code : {kAborted, kDataLoss, kUnavailable}) {
    TwoWorkers two;
    two.run.store.FailWith({code, "EIO"});
    EXPECT_THAT(two.a.Push(0, 1), StatusIs(kUnavailable))
        << "ABORTED would make the worker believe that the round closed";
    EXPECT_THAT(two.run.coordinator->Health().message(), HasSubstr("EIO"));
  }
}

TEST(CoordinatorExchangeTest, ADiskThatCannotBeAskedForRoomIsAskedAgain) {
  TwoWorkers two;
  two.a.Train();
  std::vector<uint8_t> object;
  const v1::PushHeader header = two.a.MakePush(0, 1, object);
  Rounds& rounds = two.run.rounds();
  for (const absl::StatusCode code : {kInternal, kNotFound, kPermissionDenied, kDataLoss}) {
    two.run.store.room = {code, "statvfs: EIO"};
    EXPECT_EQ(rounds.BeginPush(header, nullptr).status(), absl::UnavailableError("statvfs: EIO"));
  }
  two.run.store.room = absl::ResourceExhaustedError("make room");
  EXPECT_THAT(rounds.BeginPush(header, nullptr), StatusIs(kResourceExhausted));
  two.run.store.room = absl::OkStatus();
  EXPECT_TRUE(rounds.BeginPush(header, nullptr).ok());
  EXPECT_TRUE(two.run.coordinator->Health().ok());
  EXPECT_EQ(two.run.events.Count("store_low"), 1);
}

TEST(CoordinatorExchangeTest, ARoundThatCouldNotBeStoredIsNotPublished) {
  TwoWorkers two;
  two.a.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  ASSERT_TRUE(two.b.Leave(v1::Leave::DRAINED).ok());
  two.run.store.FailWith(absl::ResourceExhaustedError("no space"));
  two.run.coordinator->Tick();
  EXPECT_THAT(two.run.coordinator->Health().message(), HasSubstr("no space"));
  EXPECT_FALSE(two.run.rounds().PullState(0).ok());
  two.run.store.FailWith(absl::OkStatus());
  EXPECT_FALSE(two.run.coordinator->Shutdown().ok());
  EXPECT_TRUE(two.run.store.snapshots().empty());
  two.run.Restart();
  EXPECT_EQ((*two.run.rounds().PullState(0))->header.round(), 0);
  two.run.coordinator->Tick();
  EXPECT_EQ((*two.run.rounds().PullState(0))->header.round(), 1);
}

TEST(CoordinatorExchangeTest, WhereEverybodyDivergesTheFragmentStaysAsItWas) {
  TwoWorkers two("sync { codec_up: BF16 } outer { learning_rate: 10 }");
  const std::vector<float> before = two.run.coordinator->PublishedParameters();
  const auto largest = [](auto&, auto& object) {  // Finite bf16.
    std::fill(object.begin(), object.end(), uint8_t{0x7f});
  };
  for (ToyWorker* const worker : {&two.a, &two.b}) {
    ASSERT_TRUE(worker->Contribute(0, 1, largest).ok());
  }
  EXPECT_TRUE(two.run.coordinator->Health().ok());
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_TRUE(two.run.store.rounds()[0].contributors().empty());
  EXPECT_EQ(two.run.events.Count("contribution_quarantined"), 2);
  EXPECT_EQ(two.run.coordinator->PublishedParameters(), before);
}

TEST(CoordinatorExchangeTest, ShutdownReleasesWhoeverWaits) {
  TwoWorkers two;
  absl::Status waited;
  two.run.rounds().PullAnswer(0, 1, [&](auto object) { waited = object.status(); });
  ASSERT_TRUE(two.run.coordinator->Shutdown().ok());
  EXPECT_THAT(waited, StatusIs(kUnavailable));
  EXPECT_THAT(two.a.sink().end(), StatusIs(kUnavailable));
  EXPECT_THAT(two.a.Push(0, 1), StatusIs(kUnavailable));
  EXPECT_THAT(two.run.orders().Drain("a"), StatusIs(kUnavailable));
  EXPECT_THAT(two.run.orders().StopAtStep(20), StatusIs(kUnavailable));
  EXPECT_TRUE(two.run.coordinator->Shutdown().ok());
}

std::vector<float> RunThreads(int steps) {
  ToyRun run("membership { start_workers: 3 }");
  std::vector<std::unique_ptr<ToyWorker>> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<ToyWorker>(run, std::string(1, static_cast<char>('a' + i)),
                                                  static_cast<uint64_t>(i + 1)));
    EXPECT_TRUE(workers.back()->Enter().ok());
  }
  std::atomic<bool> done{false};
  std::thread ticker([&] {
    while (!done.load()) {
      run.coordinator->Tick();
      EXPECT_TRUE(run.status().started());
    }
  });
  std::vector<std::thread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&worker, steps] {
      for (int i = 0; i < steps; ++i) {
        worker->Train();
        EXPECT_TRUE(worker->SendDue().ok());
        EXPECT_TRUE(worker->MergeDue().ok());
        EXPECT_TRUE(worker->Heartbeat().ok());
      }
      EXPECT_TRUE(worker->Leave(v1::Leave::FINISHED).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  ticker.join();
  EXPECT_TRUE(run.coordinator->Finished());
  for (const auto& worker : workers) EXPECT_EQ(worker->published(), workers[0]->published());
  EXPECT_TRUE(run.coordinator->Shutdown().ok());
  EXPECT_EQ(run.store.summary()["hash_mismatches"], 0);
  EXPECT_EQ(run.hash_checks(), 3 * run.store.summary()["rounds"].get<int64_t>());
  return workers[0]->published();
}

TEST(CoordinatorThreadsTest, TheOrderOfArrivalChangesNoBit) {
  EXPECT_EQ(RunThreads(25), RunThreads(25));
}

}  // namespace
}  // namespace causeway::server
