#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/params/initialize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

FragmentPlan TinyPlan(const std::string& sync) {
  const v1::RunConfig config =
      Completed(absl::StrCat("model { preset: 'tiny-1m' } sync { ", sync, " }"));
  return *FragmentPlan::Create(config);
}

std::vector<float> Initial(const FragmentPlan& plan, uint64_t seed) {
  // Poisoned, so that a value that is not written shows.
  std::vector<float> arena(static_cast<size_t>(plan.arena_size()), std::nanf(""));
  InitializeParameters(plan, seed, arena);
  return arena;
}

std::span<const float> Values(const PlacedTensor& tensor, const std::vector<float>& arena) {
  return std::span(arena).subspan(static_cast<size_t>(tensor.offset),
                                  static_cast<size_t>(tensor.info.size()));
}

// With glibc's log and cos. Another math library may round one value in many millions differently.
TEST(InitializeParameters, KeepsItsBits) {
  const std::vector<float> arena = Initial(TinyPlan("fragments: 1"), 1);
  EXPECT_EQ(TreeHash(std::span<const float>(arena)), 0xfa8e7067d01fbd41U);
}

TEST(InitializeParameters, APartOfTheArenaHasTheValuesOfTheWhole) {
  // Fragments of this pattern begin and end within tensors.
  const FragmentPlan plan = TinyPlan("pattern: BALANCED fragments: 7 steps_between_syncs: 10");
  const std::vector<float> whole = Initial(plan, 5);
  std::vector<float> joined;
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const FragmentRange& range = plan.range(fragment);
    std::vector<float> part(static_cast<size_t>(range.size()), std::nanf(""));
    InitializeRange(plan, 5, range.begin, part);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, whole);
}

TEST(InitializeParameters, KeepsItsBitsOnAnyNumberOfThreads) {
  const FragmentPlan plan = TinyPlan("fragments: 3");
  const std::vector<float> expected = Initial(plan, 5);
  for (const int count : {1, 2, 7}) {
    ThreadPool threads(count);
    std::vector<float> arena(static_cast<size_t>(plan.arena_size()), std::nanf(""));
    InitializeParameters(plan, 5, arena, &threads);
    EXPECT_EQ(TreeHash(std::span<const float>(arena)), TreeHash(std::span<const float>(expected)))
        << count << " threads";
  }
}

TEST(InitializeParameters, DoesNotDependOnThePlan) {
  const FragmentPlan whole = TinyPlan("fragments: 1");
  const std::vector<float> expected = Initial(whole, 7);
  for (const char* sync :
       {"fragments: 3", "fragments: 2 pattern: SEQUENTIAL", "fragments: 11 pattern: BALANCED"}) {
    const FragmentPlan plan = TinyPlan(sync);
    const std::vector<float> arena = Initial(plan, 7);
    for (const PlacedTensor& tensor : plan.tensors()) {
      const PlacedTensor* const same = whole.Find(tensor.info.name);
      ASSERT_NE(same, nullptr);
      const auto values = Values(tensor, arena);
      const auto others = Values(*same, expected);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), others.begin(), others.end()))
          << tensor.info.name << " under " << sync;
    }
  }
}

TEST(InitializeParameters, NormsAreOnesGapsZerosAndMatricesNormal) {
  const FragmentPlan plan = TinyPlan("fragments: 3");
  const std::vector<float> arena = Initial(plan, 3);
  std::vector<bool> in_tensor(arena.size());
  for (const PlacedTensor& tensor : plan.tensors()) {
    SCOPED_TRACE(tensor.info.name);
    const auto values = Values(tensor, arena);
    std::fill_n(in_tensor.begin() + tensor.offset, tensor.info.size(), true);
    if (!tensor.info.is_matrix()) {
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0F; }));
      continue;
    }
    double sum = 0, squares = 0;
    for (const float v : values) {
      sum += v;
      squares += static_cast<double>(v) * v;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n / tensor.info.initial_stddev, 0, 6 / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n) / tensor.info.initial_stddev, 1, 6 / std::sqrt(n));
  }
  for (size_t i = 0; i < arena.size(); ++i) {
    ASSERT_TRUE(in_tensor[i] || arena[i] == 0.0F) << i;
  }
}

TEST(InitializeParameters, SeedsAndTensorsHaveValuesOfTheirOwn) {
  const FragmentPlan plan = TinyPlan("fragments: 1");
  const std::vector<float> one = Initial(plan, 1), two = Initial(plan, 2);
  std::set<float> first;  // Of each tensor, under each seed.
  for (const char* name : {"0.self_attn.q_proj", "0.self_attn.k_proj", "1.self_attn.q_proj"}) {
    const PlacedTensor& tensor = *plan.Find(absl::StrCat("model.layers.", name, ".weight"));
    for (const auto* arena : {&one, &two})
      EXPECT_TRUE(first.insert(Values(tensor, *arena)[0]).second);
  }
}

using ::testing::HasSubstr;

FragmentPlan SmallPlan(const std::string& text) {
  const v1::RunConfig config = Completed(text, Parsed(kSmallModel));
  return *FragmentPlan::Create(config);
}

std::vector<float> Values(const FragmentPlan& plan, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, seed, values);
  return values;
}

TEST(CopyParameters, FindsEveryTensorInAnotherPlan) {
  const FragmentPlan from = SmallPlan("");
  const FragmentPlan to = SmallPlan("sync { fragments: 2 pattern: STRIDED }");
  ASSERT_NE(from.hash(), to.hash());
  std::vector<float> copy(static_cast<size_t>(to.arena_size()), 7.0F);
  ASSERT_TRUE(CopyParameters(from, Values(from, 1), to, copy).ok());
  EXPECT_EQ(copy, Values(to, 1));
}

TEST(CopyParameters, NamesTheTensorThatOneSideLacks) {
  const FragmentPlan tied = SmallPlan("");
  const FragmentPlan untied = SmallPlan("model { untied_head: true }");
  std::vector<float> copy(static_cast<size_t>(untied.arena_size()));
  EXPECT_THAT(std::string(CopyParameters(tied, Values(tied, 1), untied, copy).message()),
              HasSubstr("a tensor lm_head.weight [384, 64], the given parameters have none"));
  copy.resize(static_cast<size_t>(tied.arena_size()));
  EXPECT_THAT(std::string(CopyParameters(untied, Values(untied, 1), tied, copy).message()),
              HasSubstr("lm_head.weight [384, 64], the run's model has none"));
}

}  // namespace
}  // namespace causeway
