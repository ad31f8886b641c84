#include "common/params/fragment_plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FragmentPlan Plan(const std::string& model, const std::string& sync) {
  const v1::RunConfig config =
      Completed(absl::StrCat("model { ", model, " } sync { steps_between_syncs: 100 ", sync, " }"));
  return FragmentPlan::Create(config).value();
}

std::string Layers(int layers) {
  return absl::StrCat("vocabulary_size: 300 layers: ", layers,
                      " width: 48 heads: 4 mlp_width: 100 qk_norm: true");
}

// Which blocks (-1: what lies outside of them) have tensors in a fragment.
std::vector<int> BlocksOf(const FragmentPlan& plan, int fragment) {
  std::set<int> blocks;
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (tensor.offset >= plan.range(fragment).begin && tensor.offset < plan.range(fragment).end) {
      blocks.insert(tensor.info.block);
    }
  }
  return {blocks.begin(), blocks.end()};
}

// Checks the rules of every plan: the ranges cover the arena in order, without gaps; every tensor
// of the table is placed once, aligned, apart from the others.
void ExpectSound(const FragmentPlan& plan, const v1::ModelConfig& model) {
  int64_t end = 0;
  for (int k = 0; k < plan.fragments(); ++k) {
    EXPECT_EQ(plan.range(k).begin, end) << "fragment " << k;
    EXPECT_GT(plan.range(k).size(), 0) << "fragment " << k;
    EXPECT_EQ(plan.range(k).begin % kArenaAlignment, 0);
    EXPECT_EQ(plan.range(k).end % kArenaAlignment, 0);
    end = plan.range(k).end;
  }
  EXPECT_EQ(end, plan.arena_size());

  std::map<std::string, TensorInfo> expected;
  for (const TensorInfo& tensor : BuildTensorTable(model)) expected[tensor.name] = tensor;
  int64_t free = 0, parameters = 0;
  for (const PlacedTensor& tensor : plan.tensors()) {
    SCOPED_TRACE(tensor.info.name);
    const auto it = expected.find(tensor.info.name);
    ASSERT_NE(it, expected.end()) << "unknown or placed twice";
    EXPECT_EQ(tensor.info.rows, it->second.rows);
    EXPECT_EQ(tensor.info.cols, it->second.cols);
    expected.erase(it);
    EXPECT_EQ(tensor.offset % kArenaAlignment, 0);
    EXPECT_GE(tensor.offset, free);
    EXPECT_LT(tensor.offset, free + kArenaAlignment) << "a hole larger than alignment needs";
    free = tensor.offset + tensor.info.size();
    parameters += tensor.info.size();
    ASSERT_NE(plan.Find(tensor.info.name), nullptr);
    EXPECT_EQ(plan.Find(tensor.info.name)->offset, tensor.offset);
  }
  EXPECT_TRUE(expected.empty()) << expected.size() << " tensors are missing";
  EXPECT_GE(plan.arena_size(), free);
  EXPECT_LT(plan.arena_size(), free + kArenaAlignment);
  EXPECT_EQ(plan.parameters(), parameters);
}

TEST(FragmentPlan, OneFragmentIsTheWholeModelInModelOrder) {
  for (const char* pattern : {"STRIDED", "SEQUENTIAL", "BALANCED"}) {
    const FragmentPlan plan = Plan(Layers(3), absl::StrCat("fragments: 1 pattern: ", pattern));
    EXPECT_EQ(plan.fragments(), 1);
    EXPECT_EQ(plan.tensors().front().info.name, "model.embed_tokens.weight");
    EXPECT_EQ(plan.tensors().back().info.name, "model.norm.weight");
  }
}

// STRIDED: by the block's number modulo P. SEQUENTIAL: runs, of which the first are longer.
TEST(FragmentPlan, PatternsDealTheBlocks) {
  using Blocks = std::vector<std::vector<int>>;
  for (const auto& [pattern, expected] :
       {std::pair("STRIDED", Blocks{{0, 3, 6}, {1, 4, 7}, {2, 5}, {-1}}),
        std::pair("SEQUENTIAL", Blocks{{0, 1, 2}, {3, 4, 5}, {6, 7}, {-1}})}) {
    const FragmentPlan plan = Plan(Layers(8), absl::StrCat("fragments: 3 pattern: ", pattern));
    Blocks blocks;
    for (int k = 0; k < plan.fragments(); ++k) blocks.push_back(BlocksOf(plan, k));
    EXPECT_EQ(blocks, expected) << pattern;
  }
}

TEST(FragmentPlan, EmbeddingFinalNormAndHeadShareTheLastFragment) {
  const FragmentPlan plan = Plan(Layers(4) + " untied_head: true", "fragments: 2");
  ASSERT_EQ(plan.fragments(), 3);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
    ASSERT_NE(plan.Find(name), nullptr) << name;
    EXPECT_GE(plan.Find(name)->offset, plan.range(2).begin) << name;
  }
  EXPECT_EQ(plan.Find("model.layers.9.mlp.up_proj.weight"), nullptr);
}

TEST(FragmentPlan, EveryPatternAndCountPlacesEveryTensorOnce) {
  for (const std::string& features :
       {std::string(), std::string(" untied_head: true kv_heads: 2 head_dim: 6")}) {
    for (const char* pattern : {"STRIDED", "SEQUENTIAL", "BALANCED"}) {
      for (int fragments = 1; fragments <= 7; ++fragments) {
        SCOPED_TRACE(absl::StrCat(pattern, " ", fragments, features));
        const std::string text =
            absl::StrCat("model { ", Layers(7), features, " } sync { pattern: ", pattern,
                         " fragments: ", fragments, " }");
        const v1::RunConfig config = Completed(text);
        const auto plan = FragmentPlan::Create(config).value();
        ExpectSound(plan, config.model());
      }
    }
  }
}

// Every place where a cut may fall, by looking at all of them: the oracle of the next test.
std::vector<int64_t> AllCuts(const FragmentPlan& plan) {
  std::vector<int64_t> cuts;
  for (const PlacedTensor& tensor : plan.tensors()) {
    cuts.push_back(tensor.offset);
    if (!tensor.info.is_matrix()) continue;
    for (int64_t row = 1; row < tensor.info.rows; ++row) {
      if (row * tensor.info.cols % kArenaAlignment == 0) {
        cuts.push_back(tensor.offset + row * tensor.info.cols);
      }
    }
  }
  return cuts;
}

TEST(FragmentPlan, EveryBalancedCutIsTheNearestToItsShare) {
  int cut_plans = 0;
  for (const int width : {8, 48, 64, 136}) {
    for (int fragments = 2; fragments < 40; ++fragments) {
      v1::RunConfig config = Completed(absl::StrCat(
          "model { vocabulary_size: 200 layers: 3 width: ", width, " heads: 2 mlp_width: 100 }"));
      config.mutable_sync()->set_pattern(v1::SyncConfig::BALANCED);
      config.mutable_sync()->set_fragments(fragments);
      const auto plan = FragmentPlan::Create(config);
      if (!plan.ok()) continue;
      ++cut_plans;
      const std::vector<int64_t> cuts = AllCuts(*plan);
      for (int k = 1; k < fragments; ++k) {
        const int64_t share = plan->arena_size() * k / fragments;
        int64_t nearest = -1;
        for (const int64_t cut : cuts) {
          if (cut <= plan->range(k - 1).begin) continue;
          if (nearest < 0 || std::abs(cut - share) < std::abs(nearest - share)) nearest = cut;
        }
        EXPECT_TRUE(std::ranges::binary_search(cuts, plan->range(k).begin));
        // Shares are rounded down one by one: by up to one value less.
        EXPECT_NEAR(static_cast<double>(std::abs(plan->range(k).begin - share)),
                    static_cast<double>(std::abs(nearest - share)), 1.0)
            << "width " << width << ", cut " << k << " of " << fragments;
      }
    }
  }
  EXPECT_GT(cut_plans, 100);
}

// A fuzzer's finding: looking at all tensors for every fragment took minutes.
TEST(FragmentPlan, LargestConfigurationsAreCutSoundly) {
  for (const char* sync : {"pattern: BALANCED fragments: 65536", "pattern: STRIDED fragments: 1024",
                           "pattern: SEQUENTIAL fragments: 1024"}) {
    const v1::RunConfig config = Completed(absl::StrCat(
        "model { layers: 1024 width: 1024 heads: 8 mlp_width: 4096 } train { steps: 1000000 } "
        "sync { steps_between_syncs: 1000000 ",
        sync, " }"));
    const auto plan = FragmentPlan::Create(config).value();
    EXPECT_EQ(plan.range(plan.fragments() - 1).end, plan.arena_size()) << sync;
  }
}

TEST(FragmentPlan, FinestBalancedCutIsSoundOrRefused) {
  v1::RunConfig config =
      Completed(std::string("model { vocabulary_size: 128 layers: 1 width: 64 "
                            "heads: 2 mlp_width: 64 }"));
  config.mutable_sync()->set_pattern(v1::SyncConfig::BALANCED);
  int refused = 0;
  for (int fragments = 1; fragments < 1000; ++fragments) {
    SCOPED_TRACE(fragments);
    config.mutable_sync()->set_fragments(fragments);
    const auto plan = FragmentPlan::Create(config);
    if (plan.ok()) {
      EXPECT_EQ(plan->fragments(), fragments);
      ExpectSound(*plan, config.model());
    } else {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("sync.fragments"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 999);
}

TEST(FragmentPlan, HashChangesWithAnythingThatChangesTheBytes) {
  const std::string model = "vocabulary_size: 300 layers: 6 width: 64 heads: 4 mlp_width: 128 ";
  std::map<uint64_t, std::string> seen;
  const auto expect_new = [&](const std::string& model_text, const std::string& sync_text) {
    const std::string what = model_text + "/ " + sync_text;
    const auto [it, fresh] = seen.emplace(Plan(model_text, sync_text).hash(), what);
    EXPECT_TRUE(fresh) << what << " has the hash of " << it->second;
  };
  expect_new(model, "fragments: 2");
  expect_new(model, "fragments: 3");
  expect_new(model, "fragments: 1");
  expect_new(model, "fragments: 2 pattern: SEQUENTIAL");
  expect_new(model, "fragments: 2 pattern: BALANCED");
  expect_new(model, "fragments: 3 pattern: BALANCED");
  expect_new(model + "kv_heads: 2", "fragments: 2");
  expect_new(model + "qk_norm: true", "fragments: 2");
  expect_new(model + "untied_head: true", "fragments: 2");
  expect_new(model + "mlp: GELU", "fragments: 2");
  expect_new(model + "head_dim: 32", "fragments: 2");
  expect_new("vocabulary_size: 400 layers: 6 width: 64 heads: 4 mlp_width: 128", "fragments: 2");
  expect_new("vocabulary_size: 300 layers: 7 width: 64 heads: 4 mlp_width: 128", "fragments: 2");
  expect_new("vocabulary_size: 300 layers: 6 width: 64 heads: 4 mlp_width: 129", "fragments: 2");
}

TEST(FragmentPlan, HashIgnoresWhatDoesNotChangeTheBytes) {
  const std::string model = "layers: 6 width: 64 heads: 4 mlp_width: 128 ";
  const uint64_t hash = Plan(model, "fragments: 2").hash();
  EXPECT_EQ(Plan(model, "fragments: 2").hash(), hash);
  EXPECT_EQ(Plan(model + "rope_theta: 5000 z_loss: 0.1", "fragments: 2").hash(), hash);
  EXPECT_EQ(Plan(model, "fragments: 2 overlap_steps: 5 codec_up: INT4").hash(), hash);
  EXPECT_EQ(Plan("preset: 'tiny-1m'", "fragments: 3").hash(), 0xd3a8cc56a202d815U);
}

}  // namespace
}  // namespace causeway
