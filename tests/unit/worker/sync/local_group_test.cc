#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/codec/codec_layout.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/sync/thread_group.h"

namespace causeway::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Groups = std::vector<std::unique_ptr<LocalGroup>>;

// Every rank does `work` on a thread of its own; what they returned, by rank.
std::vector<absl::Status> OnAllRanks(const Groups& groups,
                                     const std::function<absl::Status(LocalGroup&)>& work) {
  std::vector<absl::Status> results(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = work(*groups[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void ExpectAllOk(const std::vector<absl::Status>& results) {
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(ThreadGroupTest, SumsAreInOrderOfRank) {
  // (1e8 + 1) - 1e8 is 0 in fp32, 1e8 - 1e8 + 1 is 1.
  std::vector<float> values = {1e8F, 1, -1e8F};
  const Groups groups = ThreadGroup::Create(3);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) {
    return group.AllReduceSum(&values[static_cast<size_t>(group.rank())], 1, GroupType::kFloat,
                              nullptr);
  }));
  EXPECT_THAT(values, Each(0.0F));
}

TEST(ThreadGroupTest, EveryTypeIsSummedInItsOwnWay) {
  std::vector<double> doubles = {0.5, 0.25};
  std::vector<int64_t> integers = {INT64_MAX, 1};
  // 1 + 2^-8 is a tie between bf16 numbers, and 1 is the even one.
  std::vector<uint16_t> bf16 = {Bf16Nearest(1), Bf16Nearest(0x1p-8F)};
  const Groups groups = ThreadGroup::Create(2);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    absl::Status status = group.AllReduceSum(&doubles[rank], 1, GroupType::kDouble, nullptr);
    status.Update(group.AllReduceSum(&integers[rank], 1, GroupType::kInt64, nullptr));
    status.Update(group.AllReduceSum(&bf16[rank], 1, GroupType::kBf16, nullptr));
    return status;
  }));
  EXPECT_THAT(doubles, Each(0.75));
  EXPECT_THAT(integers, Each(INT64_MIN));
  EXPECT_THAT(bf16, Each(Bf16Nearest(1)));
}

TEST(ThreadGroupTest, ReduceScatterSumsEachPieceAtItsOwner) {
  std::vector<std::vector<float>> arrays = Arrays(3, 7);
  const std::vector<int64_t> bounds = {0, 4, 4, 7};  // Rank 1 has nothing.
  const Groups groups = ThreadGroup::Create(3);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) {
    return group.ReduceScatterSum(arrays[static_cast<size_t>(group.rank())].data(), bounds,
                                  GroupType::kFloat, nullptr);
  }));
  for (size_t i = 0; i < 7; ++i) {
    const std::vector<float>& owner = arrays[i < 4 ? 0 : 2];
    EXPECT_EQ(owner[i], 300 + 3 * static_cast<float>(i));
    EXPECT_NE(arrays[1][i], arrays[1][i]) << "nobody may use what is not its own";
  }
}

TEST(ThreadGroupTest, AllGatherCopiesEachPieceFromItsOwner) {
  std::vector<std::vector<float>> arrays = Arrays(3, 6);
  const std::vector<int64_t> bounds = {1, 2, 5, 6};
  const Groups groups = ThreadGroup::Create(3);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) {
    return group.AllGather(arrays[static_cast<size_t>(group.rank())].data(), bounds,
                           GroupType::kFloat, nullptr);
  }));
  EXPECT_THAT(arrays[0], ElementsAre(0, 1, 102, 103, 104, 205));
  EXPECT_THAT(arrays[1], ElementsAre(100, 1, 102, 103, 104, 205));
  EXPECT_THAT(arrays[2], ElementsAre(200, 1, 102, 103, 104, 205));
}

TEST(ThreadGroupTest, BroadcastCopiesFromTheRoot) {
  std::vector<std::string> texts = {"first", "other", "third"};
  const Groups groups = ThreadGroup::Create(3);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) {
    return group.Broadcast(texts[static_cast<size_t>(group.rank())].data(), 5, GroupType::kByte, 1,
                           nullptr);
  }));
  EXPECT_THAT(texts, Each("other"));
}

TEST(ThreadGroupTest, NobodyPassesABarrierBeforeAllHaveComeToIt) {
  std::atomic<int> came = 0;
  const Groups groups = ThreadGroup::Create(4);
  ExpectAllOk(OnAllRanks(groups, [&](LocalGroup& group) -> absl::Status {
    for (int round = 1; round <= 100; ++round) {
      ++came;
      if (absl::Status status = group.Barrier(); !status.ok()) return status;
      if (came < 4 * round) return absl::InternalError("passed too early");
      if (absl::Status status = group.Barrier(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }));
}

TEST(ThreadGroupTest, AFailureIsReportedByEveryRankThatWaits) {
  const Groups groups = ThreadGroup::Create(3);
  const std::vector<absl::Status> results = OnAllRanks(groups, [&](LocalGroup& group) {
    if (group.rank() == 1) {
      group.Abort(absl::ResourceExhaustedError("no memory on device 5"));
      return group.status();
    }
    return group.Barrier();
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("rank 1: no memory on device 5")));
  }
}

TEST(ThreadGroupTest, TheFirstCauseStays) {
  const Groups groups = ThreadGroup::Create(2);
  EXPECT_TRUE(groups[0]->status().ok());
  groups[0]->Abort(absl::InternalError("the cause"));
  groups[1]->Abort(absl::InternalError("what followed from it"));
  EXPECT_THAT(groups[1]->status().message(), HasSubstr("rank 0: the cause"));
  float value = 0;
  EXPECT_EQ(groups[1]->AllReduceSum(&value, 1, GroupType::kFloat, nullptr), groups[0]->status());
}

TEST(ThreadGroupTest, ARankThatLeavesEndsTheWaitOfTheOthers) {
  Groups groups = ThreadGroup::Create(2);
  std::thread other([group = std::move(groups[1])]() mutable { group.reset(); });
  const absl::Status status = groups[0]->Barrier();
  other.join();
  EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("left the group")));
}

TEST(ThreadGroupTest, CallsThatDoNotFitAreRefusedEverywhere) {
  std::vector<std::vector<float>> arrays = Arrays(2, 4);
  const Groups groups = ThreadGroup::Create(2);
  const std::vector<absl::Status> results = OnAllRanks(groups, [&](LocalGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    return group.AllReduceSum(arrays[rank].data(), 3 + group.rank(), GroupType::kFloat, nullptr);
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("rank 1: calls another operation")));
  }
}

TEST(ThreadGroupTest, WrongBoundsAreRefused) {
  const Groups groups = ThreadGroup::Create(1);
  float value = 0;
  for (const std::vector<int64_t>& bounds :
       {std::vector<int64_t>{}, {0}, {0, 1, 1}, {1, 0}, {-1, 0}}) {
    EXPECT_THAT(groups[0]->AllGather(&value, bounds, GroupType::kFloat, nullptr),
                StatusIs(kInvalidArgument));
  }
  EXPECT_THAT(groups[0]->AllReduceSum(&value, 1, GroupType::kByte, nullptr),
              StatusIs(kInvalidArgument));
}

TEST(ThreadGroupTest, WaitsForTheStreamBeforeItTouchesMemory) {
  int stream = 0;
  GroupStream waited_for = nullptr;
  const Groups groups = ThreadGroup::Create(1, [&](GroupStream given) {
    waited_for = given;
    return absl::UnavailableError("the device is gone");
  });
  float value = 0;
  EXPECT_THAT(groups[0]->AllReduceSum(&value, 1, GroupType::kFloat, &stream),
              StatusIs(kUnavailable));
  EXPECT_EQ(waited_for, &stream);
}

TEST(SharedCauseTest, TheFirstCauseStaysAndNamesItsRank) {
  SharedCause cause;
  EXPECT_TRUE(cause.Get().ok());
  cause.Set(3, absl::InternalError("device lost"));
  cause.Set(4, absl::InternalError("what followed"));
  EXPECT_EQ(cause.Get(), absl::AbortedError("rank 3: device lost"));
}

TEST(SharedCauseTest, ListenersHearItOnceEvenIfTheyComeLate) {
  SharedCause cause;
  std::vector<std::string> heard;
  const auto listener = [&](const absl::Status& status) { heard.emplace_back(status.message()); };
  cause.Listen(listener);
  cause.Remove(cause.Listen([&](const absl::Status&) { heard.emplace_back("nobody listens"); }));
  cause.Set(absl::UnavailableError("host 1 is gone"));
  cause.Set(absl::UnavailableError("another"));
  cause.Listen(listener);
  EXPECT_THAT(heard, ElementsAre("host 1 is gone", "host 1 is gone"));
}

TEST(SharedCauseTest, WhoWaitsIsWoken) {
  SharedCause cause;
  EXPECT_TRUE(cause.WaitFor(absl::ZeroDuration()).ok());
  std::thread other([&] { cause.Set(absl::UnavailableError("gone")); });
  EXPECT_FALSE(cause.WaitFor(absl::InfiniteDuration()).ok());
  other.join();
}

}  // namespace
}  // namespace causeway::worker
