// A group of GPUs' calls to NCCL, and its end: over a stand-in for NCCL whose ranks are threads and
// whose kernels are plain loops.
#include "worker/backend/cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/sync/thread_group.h"
#include "worker/backend/cuda/kernels/device.h"

#ifdef CAUSEWAY_EMULATED_DEVICE

namespace causeway::worker::cuda {

// A communicator of the stand-in.
struct OpaqueNcclComm {
  std::unique_ptr<LocalGroup> group;
  std::atomic<int> async_error = 0;
};

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// NCCL's functions are plain ones: what they share is here.
struct StandIn {
  std::mutex mutex;
  std::vector<std::unique_ptr<LocalGroup>> groups;           // Ranks that have not joined.
  std::vector<NcclComm> comms;                               // By rank.
  std::map<NcclComm, std::unique_ptr<OpaqueNcclComm>> made;  // Not destroyed yet.
  std::map<std::string, int> calls;
  std::atomic<int> hanging = 0;  // Threads that join with HangingLibrary.
  int join_result = 0;

  void Count(const char* call) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++calls[call];
  }
} stand_in;

GroupType TypeOf(int type) {
  switch (type) {
    case kNcclInt64:
      return GroupType::kInt64;
    case kNcclFloat:
      return GroupType::kFloat;
    case kNcclDouble:
      return GroupType::kDouble;
    case kNcclBf16:
      return GroupType::kBf16;
    default:
      return GroupType::kByte;
  }
}

int ResultOf(const absl::Status& status) { return status.ok() ? 0 : 6; }

// All pieces of one array, of `count` values each.
std::vector<int64_t> EqualBounds(size_t count, int ranks) {
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= ranks; ++rank) {
    bounds.push_back(static_cast<int64_t>(count) * rank);
  }
  return bounds;
}

// Only the root's piece is not empty.
std::vector<int64_t> RootBounds(size_t count, int root, int ranks) {
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= ranks; ++rank) {
    bounds.push_back(rank > root ? static_cast<int64_t>(count) : 0);
  }
  return bounds;
}

const NcclLibrary& StandInLibrary() {
  static const NcclLibrary library = [] {
    NcclLibrary nccl;
    nccl.get_error_string = [](int) { return "remote error"; };
    nccl.get_last_error = [](NcclComm) { return "socket closed"; };
    nccl.comm_init_rank = [](NcclComm* comm, int, NcclId, int rank) {
      if (stand_in.join_result != 0) return stand_in.join_result;
      const std::lock_guard<std::mutex> lock(stand_in.mutex);
      auto made = std::make_unique<OpaqueNcclComm>();
      *comm = made.get();
      stand_in.made[*comm] = std::move(made);
      (*comm)->group = std::move(stand_in.groups[static_cast<size_t>(rank)]);
      stand_in.comms[static_cast<size_t>(rank)] = *comm;
      return 0;
    };
    nccl.comm_destroy = [](NcclComm comm) {
      const std::lock_guard<std::mutex> lock(stand_in.mutex);
      stand_in.made.erase(comm);
      return 0;
    };
    nccl.comm_abort = [](NcclComm comm) {
      stand_in.Count("abort");
      // Who waits in it goes on, and still needs it.
      comm->group->Abort(absl::UnavailableError("aborted"));
      return 0;
    };
    nccl.comm_get_async_error = [](NcclComm comm, int* result) {
      *result = comm->async_error;
      return 0;
    };
    nccl.group_start = [] {
      stand_in.Count("group");
      return 0;
    };
    nccl.group_end = [] { return 0; };
    nccl.all_reduce = [](const void*, void* to, size_t count, int type, int, NcclComm comm,
                         cudaStream_t stream) {
      return ResultOf(
          comm->group->AllReduceSum(to, static_cast<int64_t>(count), TypeOf(type), stream));
    };
    nccl.reduce = [](const void*, void* to, size_t count, int type, int, int root, NcclComm comm,
                     cudaStream_t stream) {
      stand_in.Count("reduce");
      return ResultOf(comm->group->ReduceScatterSum(
          to, RootBounds(count, root, comm->group->size()), TypeOf(type), stream));
    };
    nccl.reduce_scatter = [](const void* from, void*, size_t count, int type, int, NcclComm comm,
                             cudaStream_t stream) {
      stand_in.Count("reduce_scatter");
      return ResultOf(comm->group->ReduceScatterSum(
          const_cast<void*>(from), EqualBounds(count, comm->group->size()), TypeOf(type), stream));
    };
    nccl.all_gather = [](const void*, void* to, size_t count, int type, NcclComm comm,
                         cudaStream_t stream) {
      stand_in.Count("all_gather");
      return ResultOf(comm->group->AllGather(to, EqualBounds(count, comm->group->size()),
                                             TypeOf(type), stream));
    };
    nccl.broadcast = [](const void*, void* to, size_t count, int type, int root, NcclComm comm,
                        cudaStream_t stream) {
      stand_in.Count("broadcast");
      return ResultOf(
          comm->group->Broadcast(to, static_cast<int64_t>(count), TypeOf(type), root, stream));
    };
    return nccl;
  }();
  return library;
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

class NcclGroupTest : public testing::Test {
 protected:
  void Prepare(int ranks) {
    stand_in.groups = ThreadGroup::Create(ranks, [](GroupStream stream) {
      return CheckCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting");
    });
    stand_in.comms.assign(static_cast<size_t>(ranks), nullptr);
    stand_in.calls.clear();
    stand_in.join_result = 0;
    cause_ = std::make_shared<SharedCause>();
  }

  NcclGroup::Options OptionsOf(int rank, int ranks) const {
    NcclGroup::Options options;
    options.nccl = &StandInLibrary();
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
        if (group.ok() && (*group)->status().ok()) (*group)->Barrier().IgnoreError();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

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
  EXPECT_EQ(stand_in.calls["all_gather"], 2);
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

TEST_F(NcclGroupTest, SumsAndBroadcastsWholeArrays) {
  std::vector<double> sums = {1, 2};
  std::vector<int64_t> values = {7, 8};
  ExpectAllOk(OnAllRanks(2, [&](LocalGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    absl::Status status = group.BeginBatch();
    status.Update(group.AllReduceSum(&sums[rank], 1, GroupType::kDouble, nullptr));
    status.Update(group.Broadcast(&values[rank], 1, GroupType::kInt64, 1, nullptr));
    status.Update(group.EndBatch());
    return status;
  }));
  EXPECT_THAT(sums, Each(3.0));
  EXPECT_THAT(values, Each(8));
}

TEST_F(NcclGroupTest, AnErrorThatComesLaterEndsEveryRankWithItsCause) {
  const std::vector<absl::Status> results = OnAllRanks(2, [&](LocalGroup& group) {
    group.Barrier().IgnoreError();  // Both have joined.
    if (group.rank() == 1) stand_in.comms[1]->async_error = 6;
    // The other rank does not come.
    return group.rank() == 0 ? group.Barrier() : cause_->WaitFor(absl::Minutes(1));
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("rank 1: a collective: NCCL: remote error")));
  }
}

TEST_F(NcclGroupTest, ARankThatFailsEndsTheWaitOfTheOthers) {
  const std::vector<absl::Status> results = OnAllRanks(2, [&](LocalGroup& group) {
    group.Barrier().IgnoreError();  // Both have joined.
    if (group.rank() == 0) return group.Barrier();
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
  for (const GroupType type : {GroupType::kFloat, GroupType::kBf16, GroupType::kDouble,
                               GroupType::kInt64, GroupType::kByte}) {
    SCOPED_TRACE(static_cast<int>(type));
    const auto bytes = static_cast<size_t>(bounds.back() * GroupTypeBytes(type));
    const std::vector<unsigned char> given(bytes, 0x3c);
    DeviceMemory memory;
    const auto data =
        memory.Allocate<unsigned char>("data", static_cast<int64_t>(bytes), "").value();
    ASSERT_EQ(cudaMemcpyAsync(data, given.data(), bytes, cudaMemcpyHostToDevice, stream.get()),
              cudaSuccess);
    EXPECT_TRUE(group.BeginBatch().ok());
    if (type != GroupType::kByte) {
      EXPECT_TRUE(group.AllReduceSum(data, bounds.back(), type, stream.get()).ok());
      EXPECT_TRUE(group.ReduceScatterSum(data, bounds, type, stream.get()).ok());
    }
    EXPECT_TRUE(group.AllGather(data, bounds, type, stream.get()).ok());
    EXPECT_TRUE(group.Broadcast(data, bounds.back(), type, 0, stream.get()).ok());
    EXPECT_TRUE(group.EndBatch().ok());
    std::vector<unsigned char> got(bytes);
    ASSERT_EQ(cudaMemcpyAsync(got.data(), data, bytes, cudaMemcpyDeviceToHost, stream.get()),
              cudaSuccess);
    ASSERT_TRUE(stream.Wait("collectives").ok());
    EXPECT_EQ(got, given);
  }
  EXPECT_TRUE(group.Barrier().ok());
  EXPECT_TRUE(group.status().ok());
  group.Abort(absl::AbortedError("a test"));
  EXPECT_FALSE(group.status().ok());
  EXPECT_FALSE(group.Barrier().ok());
}

}  // namespace
}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_EMULATED_DEVICE
