// A group of GPUs' calls to NCCL, and its end: over the emulated NCCL, whose calls are counted and
// fail at will.
#include "worker/backend/cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/backend/cuda/kernels/device.h"

#ifdef CAUSEWAY_EMULATED_DEVICE

namespace causeway::worker::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// NCCL's functions are plain ones: what they share is here.
struct StandIn {
  std::mutex mutex;
  std::vector<NcclComm> comms;  // By rank.
  std::map<std::string, int> calls;
  std::atomic<NcclComm> failing = nullptr;
  std::atomic<int> hanging = 0;  // Threads that join with HangingLibrary.
  int join_result = 0;

  void Count(const char* call) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++calls[call];
  }
} stand_in;

const NcclLibrary& Emulated() { return **NcclLibrary::Load(); }

const NcclLibrary& StandInLibrary() {
  static const NcclLibrary library = [] {
    NcclLibrary nccl = Emulated();
    nccl.get_last_error = [](NcclComm) { return "socket closed"; };
    nccl.comm_init_rank = [](NcclComm* comm, int ranks, NcclId id, int rank) {
      if (stand_in.join_result != 0) return stand_in.join_result;
      const int result = Emulated().comm_init_rank(comm, ranks, id, rank);
      const std::lock_guard<std::mutex> lock(stand_in.mutex);
      stand_in.comms[static_cast<size_t>(rank)] = *comm;
      return result;
    };
    nccl.comm_abort = [](NcclComm comm) {
      stand_in.Count("abort");
      return Emulated().comm_abort(comm);
    };
    nccl.comm_get_async_error = [](NcclComm comm, int* result) {
      *result = comm == stand_in.failing ? 6 : 0;
      return 0;
    };
    nccl.group_start = [] {
      stand_in.Count("group");
      return 0;
    };
    nccl.reduce = [](const void* from, void* to, size_t count, int type, int operation, int root,
                     NcclComm comm, cudaStream_t stream) {
      stand_in.Count("reduce");
      return Emulated().reduce(from, to, count, type, operation, root, comm, stream);
    };
    nccl.reduce_scatter = [](const void* from, void* to, size_t count, int type, int operation,
                             NcclComm comm, cudaStream_t stream) {
      stand_in.Count("reduce_scatter");
      return Emulated().reduce_scatter(from, to, count, type, operation, comm, stream);
    };
    nccl.all_gather = [](const void* from, void* to, size_t count, int type, NcclComm comm,
                         cudaStream_t stream) {
      stand_in.Count("all_gather");
      return Emulated().all_gather(from, to, count, type, comm, stream);
    };
    nccl.broadcast = [](const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                        cudaStream_t stream) {
      stand_in.Count("broadcast");
      return Emulated().broadcast(from, to, count, type, root, comm, stream);
    };
    return nccl;
  }();
  return library;
}

// An array for each rank: value i of rank r is 100 r + i.
std::vector<std::vector<float>> Arrays(int ranks, size_t values) {
  std::vector<std::vector<float>> arrays;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float>& array = arrays.emplace_back();
    for (size_t i = 0; i < values; ++i) {
      array.push_back(static_cast<float>(100 * rank) + static_cast<float>(i));
    }
  }
  return arrays;
}

// Whoever joins does so until the process ends, and touches nothing any more.
const NcclLibrary& HangingLibrary() {
  static const NcclLibrary library = [] {
    NcclLibrary nccl = StandInLibrary();
    nccl.comm_init_rank = [](NcclComm*, int, NcclId, int) {
      ++stand_in.hanging;
      for (;;) pause();
      return 0;
    };
    return nccl;
  }();
  return library;
}

void AwaitHanging(int threads) {
  while (stand_in.hanging < threads) std::this_thread::yield();
}

// Comes back when all have come.
absl::Status Meet(LocalGroup& group) {
  std::vector<double> all(static_cast<size_t>(group.size()));
  std::vector<int64_t> bounds(all.size() + 1);
  std::iota(bounds.begin(), bounds.end(), 0);
  return group.AllGather(all.data(), bounds, GroupType::kDouble, nullptr);
}

class NcclGroupTest : public testing::Test {
 protected:
  void Prepare(int ranks) {
    EXPECT_EQ(Emulated().get_unique_id(&id_), kNcclSuccess);
    stand_in.comms.assign(static_cast<size_t>(ranks), nullptr);
    stand_in.failing = nullptr;
    stand_in.calls.clear();
    stand_in.join_result = 0;
    cause_ = std::make_shared<SharedCause>();
  }

  NcclGroup::Options OptionsOf(int rank, int ranks) const {
    NcclGroup::Options options;
    options.nccl = &StandInLibrary();
    options.id = id_;
    options.rank = rank;
    options.size = ranks;
    options.cause = cause_;
    options.watch_interval = absl::Milliseconds(1);
    return options;
  }

  // Every rank does `work` on a thread of its own, with its group; what they returned, by rank.
  std::vector<absl::Status> OnAllRanks(int ranks,
                                       const std::function<absl::Status(LocalGroup&)>& work) {
    Prepare(ranks);
    std::vector<absl::Status> results(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        absl::StatusOr<std::unique_ptr<NcclGroup>> group =
            NcclGroup::Create(OptionsOf(rank, ranks));
        results[static_cast<size_t>(rank)] = group.ok() ? work(**group) : group.status();
        // As ranks do: nobody leaves the others in the middle of something.
        if (group.ok() && (*group)->status().ok()) Meet(**group).IgnoreError();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  NcclId id_;
  std::shared_ptr<SharedCause> cause_;
};

void ExpectAllOk(const std::vector<absl::Status>& results) {
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(NcclGroupTest, EqualPiecesTakeOneCall) {
  std::vector<std::vector<float>> arrays = Arrays(2, 6);
  const std::vector<int64_t> bounds = {2, 4, 6};
  ExpectAllOk(OnAllRanks(2, [&](LocalGroup& group) {
    float* const data = arrays[static_cast<size_t>(group.rank())].data();
    absl::Status status = group.ReduceScatterSum(data, bounds, GroupType::kFloat, nullptr);
    status.Update(group.AllGather(data, bounds, GroupType::kFloat, nullptr));
    return status;
  }));
  for (const std::vector<float>& array : arrays) {
    EXPECT_THAT(std::vector<float>(array.begin() + 2, array.end()),
                ElementsAre(104, 106, 108, 110));
  }
  EXPECT_EQ(stand_in.calls["reduce_scatter"], 2);
  EXPECT_EQ(stand_in.calls["all_gather"], 2 + 2) << "and Meet's";
  EXPECT_EQ(stand_in.calls["reduce"] + stand_in.calls["broadcast"], 0);
}

TEST_F(NcclGroupTest, UnequalPiecesAreReducedAndBroadcastOneByOneInABatch) {
  std::vector<std::vector<float>> arrays = Arrays(3, 5);
  const std::vector<int64_t> bounds = {0, 3, 3, 5};  // Rank 1 has nothing.
  ExpectAllOk(OnAllRanks(3, [&](LocalGroup& group) {
    float* const data = arrays[static_cast<size_t>(group.rank())].data();
    absl::Status status = group.ReduceScatterSum(data, bounds, GroupType::kFloat, nullptr);
    status.Update(group.AllGather(data, bounds, GroupType::kFloat, nullptr));
    return status;
  }));
  for (const std::vector<float>& array : arrays) {
    EXPECT_THAT(array, ElementsAre(300, 303, 306, 309, 312));
  }
  EXPECT_EQ(stand_in.calls["reduce"], 6);
  EXPECT_EQ(stand_in.calls["broadcast"], 6);
  EXPECT_EQ(stand_in.calls["group"], 6);
}

TEST_F(NcclGroupTest, BroadcastsWholeArrays) {
  std::vector<double> values = {7, 8};
  ExpectAllOk(OnAllRanks(2, [&](LocalGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    absl::Status status = group.BeginBatch();
    status.Update(group.Broadcast(&values[rank], 1, GroupType::kDouble, 1, nullptr));
    status.Update(group.EndBatch());
    return status;
  }));
  EXPECT_THAT(values, Each(8));
}

TEST_F(NcclGroupTest, WrongBoundsAreRefused) {
  float value = 0;
  const std::vector<absl::Status> results = OnAllRanks(1, [&](LocalGroup& group) {
    return group.AllGather(&value, std::vector<int64_t>{0, 1, 1}, GroupType::kFloat, nullptr);
  });
  EXPECT_THAT(results, Each(StatusIs(kInvalidArgument)));
}

TEST_F(NcclGroupTest, CallsThatDoNotFitAreRefusedEverywhere) {
  std::vector<float> values(3);
  const std::vector<absl::Status> results = OnAllRanks(3, [&](LocalGroup& group) {
    return group.Broadcast(&values[static_cast<size_t>(group.rank())], 1, GroupType::kFloat,
                           group.rank() == 2 ? 1 : 0, nullptr);
  });
  EXPECT_THAT(results, Each(StatusIs(kAborted, HasSubstr("remote error"))));
}

TEST_F(NcclGroupTest, AnErrorThatComesLaterEndsEveryRankWithItsCause) {
  const std::vector<absl::Status> results = OnAllRanks(2, [&](LocalGroup& group) {
    Meet(group).IgnoreError();  // Both have joined.
    if (group.rank() == 0) return Meet(group);
    stand_in.failing = stand_in.comms[1];  // It does not come.
    absl::Notification ended;
    cause_->Listen([&](const absl::Status&) { ended.Notify(); });
    EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Minutes(1)));
    return group.status();
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("rank 1: a collective: NCCL: remote error")));
  }
}

TEST_F(NcclGroupTest, ARankThatFailsEndsTheWaitOfTheOthers) {
  const std::vector<absl::Status> results = OnAllRanks(2, [&](LocalGroup& group) {
    Meet(group).IgnoreError();  // Both have joined.
    if (group.rank() == 0) return Meet(group);
    group.Abort(absl::ResourceExhaustedError("no memory for activations"));
    return group.status();
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status.message(), HasSubstr("rank 1: no memory for activations"));
  }
  EXPECT_EQ(stand_in.calls["abort"], 2);
}

TEST_F(NcclGroupTest, ARankThatCannotJoinSaysWhy) {
  Prepare(1);
  stand_in.join_result = 2;
  const absl::Status status = NcclGroup::Create(OptionsOf(0, 1)).status();
  EXPECT_THAT(status.message(),
              HasSubstr("rank 0 of 1 joining the others: NCCL: remote error: socket closed"));
  EXPECT_FALSE(cause_->Get().ok());
}

TEST_F(NcclGroupTest, NobodyWaitsForeverForRanksThatDoNotCome) {
  Prepare(2);
  const int before = stand_in.hanging;
  NcclGroup::Options options = OptionsOf(0, 2);
  options.nccl = &HangingLibrary();
  options.patience = absl::ZeroDuration();
  EXPECT_THAT(NcclGroup::Create(options),
              StatusIs(kDeadlineExceeded, HasSubstr("did not come together within 0")));
  AwaitHanging(before + 1);
}

TEST_F(NcclGroupTest, ACauseFromElsewhereEndsJoining) {
  Prepare(2);
  const int before = stand_in.hanging;
  cause_->Set(absl::UnavailableError("host 3 has gone"));
  NcclGroup::Options options = OptionsOf(0, 2);
  options.nccl = &HangingLibrary();
  const absl::Status status = NcclGroup::Create(options).status();
  EXPECT_THAT(status.message(), HasSubstr("host 3 has gone"));
  AwaitHanging(before + 1);
}

}  // namespace
}  // namespace causeway::worker::cuda

#else

namespace causeway::worker::cuda {
namespace {

// NCCL takes a GPU once only, so that one GPU is a group of one rank: the interface of the real
// library, without an exchange.
TEST(NcclGroupOnAGpuTest, OneRankGetsBackWhatItGives) {
  const auto nccl = NcclLibrary::Load();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  auto groups = MakeNcclGroups({0}).value();
  ASSERT_EQ(groups.size(), 1U);
  LocalGroup& group = *groups.front();
  EXPECT_EQ(group.size(), 1);
  ASSERT_TRUE(UseDevice(0).ok());
  const auto stream = Stream::Create().value();
  const std::vector<int64_t> bounds = {0, 100};
  for (const GroupType type : {GroupType::kFloat, GroupType::kBf16, GroupType::kDouble}) {
    SCOPED_TRACE(static_cast<int>(type));
    const auto bytes = static_cast<size_t>(bounds.back() * GroupTypeBytes(type));
    const std::vector<unsigned char> given(bytes, 0x3c);
    DeviceMemory memory;
    const auto data =
        memory.Allocate<unsigned char>("data", static_cast<int64_t>(bytes), "").value();
    ASSERT_EQ(cudaMemcpyAsync(data, given.data(), bytes, cudaMemcpyHostToDevice, stream.get()),
              cudaSuccess);
    EXPECT_TRUE(group.BeginBatch().ok());
    EXPECT_TRUE(group.ReduceScatterSum(data, bounds, type, stream.get()).ok());
    EXPECT_TRUE(group.AllGather(data, bounds, type, stream.get()).ok());
    EXPECT_TRUE(group.Broadcast(data, bounds.back(), type, 0, stream.get()).ok());
    EXPECT_TRUE(group.EndBatch().ok());
    std::vector<unsigned char> got(bytes);
    ASSERT_EQ(cudaMemcpyAsync(got.data(), data, bytes, cudaMemcpyDeviceToHost, stream.get()),
              cudaSuccess);
    ASSERT_TRUE(stream.Wait("collectives").ok());
    EXPECT_EQ(got, given);
  }
  EXPECT_TRUE(group.status().ok());
  group.Abort(absl::AbortedError("a test"));
  EXPECT_FALSE(group.status().ok());
  EXPECT_FALSE(group.BeginBatch().ok());
}

}  // namespace
}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_EMULATED_DEVICE
