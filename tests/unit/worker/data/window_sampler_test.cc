#include "worker/data/window_sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/unit/worker/data/data_test_util.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WindowSamplerTest : public DataTest {
 protected:
  Dataset MakeDataset(int64_t train_tokens, int64_t held_out_tokens = 0) {
    WriteShards("d", "train", CountingTokens(train_tokens, 1000), 1000, /*shard_tokens=*/13);
    if (held_out_tokens > 0) {
      WriteShards("d", "held_out", CountingTokens(held_out_tokens, 1000), 1000);
    }
    return *Dataset::Open(files_, Path("d"));
  }
  WindowSampler MakeSampler(const Dataset& data, int slot, int slots, int64_t length = 4) {
    return *WindowSampler::Create(data, {.sequence_length = length,
                                         .vocabulary_size = 1000,
                                         .seed = 42,
                                         .slot = slot,
                                         .slots = slots});
  }
};

TEST_F(WindowSamplerTest, TargetsAreInputsMovedByOne) {
  const Dataset data = MakeDataset(100);
  const WindowSampler sampler = MakeSampler(data, 0, 1);
  EXPECT_EQ(sampler.windows(), 24);
  std::vector<int32_t> inputs(3 * 4);
  std::vector<int32_t> targets(3 * 4);
  ASSERT_TRUE(sampler.Read(5, inputs, targets).ok());
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(targets[i], inputs[i] + 1);
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(inputs[static_cast<size_t>(row) * 4], sampler.WindowAt(5 + row) * 4);
  }
}

TEST_F(WindowSamplerTest, EpochVisitsEveryWindowOnceAndTheNextInAnotherOrder) {
  const Dataset data = MakeDataset(402);
  const WindowSampler sampler = MakeSampler(data, 0, 1);
  ASSERT_EQ(sampler.windows(), 100);
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t c = 0; c < 100; ++c) {
    first.push_back(sampler.WindowAt(c));
    second.push_back(sampler.WindowAt(100 + c));
  }
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), 0);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, all);
  EXPECT_EQ(second, all);
}

TEST_F(WindowSamplerTest, TwoWorkersDrawTogetherWhatOneOfTwiceTheBatchDraws) {
  const Dataset data = MakeDataset(402);
  const WindowSampler one = MakeSampler(data, 0, 1);
  const WindowSampler left = MakeSampler(data, 0, 2);
  const WindowSampler right = MakeSampler(data, 1, 2);
  constexpr int64_t kBatch = 3;
  for (int64_t step = 0; step < 60; ++step) {
    std::multiset<int64_t> together;
    std::multiset<int64_t> alone;
    for (int64_t i = 0; i < kBatch; ++i) {
      together.insert(left.WindowAt(step * kBatch + i));
      together.insert(right.WindowAt(step * kBatch + i));
    }
    for (int64_t i = 0; i < 2 * kBatch; ++i) alone.insert(one.WindowAt(step * 2 * kBatch + i));
    EXPECT_EQ(together, alone) << "step " << step;
  }
}

TEST_F(WindowSamplerTest, WindowsDependOnSeedAndCursorAlone) {
  const Dataset data = MakeDataset(402);
  const WindowSampler a = MakeSampler(data, 0, 1);
  SamplingOptions options = {.sequence_length = 4, .vocabulary_size = 1000, .seed = 43};
  const WindowSampler b = *WindowSampler::Create(data, options);
  int same = 0;
  for (int64_t c = 0; c < 100; ++c) {
    EXPECT_EQ(a.WindowAt(c), MakeSampler(data, 0, 1).WindowAt(c));
    same += a.WindowAt(c) == b.WindowAt(c) ? 1 : 0;
  }
  EXPECT_LT(same, 20);
}

TEST_F(WindowSamplerTest, TooLittleDataForEverySlotIsRefused) {
  const Dataset data = MakeDataset(17);
  const SamplingOptions enough = {
      .sequence_length = 4, .vocabulary_size = 1000, .seed = 1, .slot = 3, .slots = 4};
  EXPECT_TRUE(WindowSampler::Create(data, enough).ok());
  SamplingOptions options = enough;
  options.slots = 5;
  EXPECT_THAT(WindowSampler::Create(data, options).status().message(),
              AllOf(HasSubstr("make 4 windows of 4 tokens"), HasSubstr("needs 5")));
  options = enough;
  options.slot = 4;
  EXPECT_THAT(WindowSampler::Create(data, options).status().message(), HasSubstr("slot 4 of 4"));
  options = enough;
  options.sequence_length = 0;
  EXPECT_FALSE(WindowSampler::Create(data, options).ok());
}

TEST_F(WindowSamplerTest, TokenOutsideTheModelsVocabularyNeverGetsOut) {
  const Dataset data = MakeDataset(100);
  const WindowSampler sampler =
      *WindowSampler::Create(data, {.sequence_length = 99, .vocabulary_size = 99});
  std::vector<int32_t> inputs(99);
  std::vector<int32_t> targets(99);
  EXPECT_EQ(sampler.Read(0, inputs, targets).code(), absl::StatusCode::kDataLoss);
}

TEST_F(WindowSamplerTest, HeldOutWindowsAreSpreadEvenly) {
  const Dataset data = MakeDataset(100, 101);
  const auto windows = HeldOutWindows::Create(data, 10, 1000, 4).value();
  ASSERT_EQ(windows.size(), 4);
  std::vector<int32_t> inputs(40);
  std::vector<int32_t> targets(40);
  ASSERT_TRUE(windows.Read(0, inputs, targets).ok());
  EXPECT_THAT((std::vector<int32_t>{inputs[0], inputs[10], inputs[20], inputs[30]}),
              ElementsAre(0, 20, 50, 70));
  EXPECT_EQ(targets[39], 80);
}

TEST_F(WindowSamplerTest, FewerHeldOutWindowsThanWantedAreAllTakenAndNoneIsRefused) {
  const Dataset data = MakeDataset(100, 31);
  const auto windows = HeldOutWindows::Create(data, 10, 1000, 32).value();
  EXPECT_EQ(windows.size(), 3);
  EXPECT_THAT(HeldOutWindows::Create(data, 31, 1000, 32).status().message(),
              HasSubstr("31 held-out tokens"));
}

}  // namespace
}  // namespace causeway::worker
