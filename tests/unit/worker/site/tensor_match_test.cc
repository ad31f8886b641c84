#include "worker/site/device_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Model {
  explicit Model(const std::string& settings = "fragments: 5 pattern: BALANCED")
      : config(ParseRunConfig(absl::StrCat("model { vocabulary_size: 100 layers: 2 width: 16 "
                                           "heads: 2 mlp_width: 32 sequence_length: 8 } sync { "
                                           "steps_between_syncs: 10 ",
                                           settings, " }"),
                              "test")
                   .value()) {
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    plan.emplace(FragmentPlan::Create(config).value());
    for (const PlacedTensor& tensor : plan->tensors()) {
      tensors.push_back({tensor.info.name, tensor.info.shape});
    }
  }
  GivenTensor& Find(const std::string& name) {
    return *std::ranges::find(tensors, name, &GivenTensor::name);
  }
  absl::StatusOr<TensorMatch> Match() const { return MatchTensors(config, *plan, tensors); }
  std::string Refusal() const {
    const absl::Status status = Match().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  v1::RunConfig config;
  std::optional<FragmentPlan> plan;
  std::vector<GivenTensor> tensors;
};

constexpr char kEmbedding[] = "model.embed_tokens.weight";

TEST(TensorMatchTest, PiecesCoverEveryValueOnceInAnyOrder) {
  Model model;
  std::ranges::reverse(model.tensors);
  const TensorMatch match = *model.Match();
  std::vector<int> touched(static_cast<size_t>(model.plan->arena_size()));
  int64_t values = 0;
  for (int fragment = 0; fragment < model.plan->fragments(); ++fragment) {
    for (const causeway_range& range : match.ranges[static_cast<size_t>(fragment)]) {
      EXPECT_GE(range.arena_offset, model.plan->range(fragment).begin);
      EXPECT_LE(range.arena_offset + range.count, model.plan->range(fragment).end);
      const GivenTensor& tensor = model.tensors[static_cast<size_t>(range.tensor)];
      EXPECT_EQ(range.arena_offset, model.plan->Find(tensor.name)->offset + range.tensor_offset);
      for (int64_t i = 0; i < range.count; ++i) {
        ++touched[static_cast<size_t>(range.arena_offset + i)];
      }
      values += range.count;
    }
    EXPECT_TRUE(match.padding[static_cast<size_t>(fragment)].empty());
  }
  EXPECT_EQ(values, model.plan->parameters());
  for (const auto& gaps : match.gaps) {
    for (const ArenaRange& gap : gaps) {
      for (int64_t i = gap.begin; i < gap.end; ++i) ++touched[static_cast<size_t>(i)];
    }
  }
  EXPECT_EQ(match.gap_values, model.plan->arena_size() - values);
  EXPECT_EQ(std::ranges::min(touched), 1) << "a value that nobody has";
  EXPECT_EQ(std::ranges::max(touched), 1);
}

TEST(TensorMatchTest, AVocabularyWithoutItsPaddingIsTheFirstRows) {
  Model model;
  model.Find(kEmbedding).shape[0] = 100;
  const TensorMatch match = *model.Match();
  int64_t padding = 0;
  for (const auto& ranges : match.padding) {
    for (const ArenaRange& range : ranges) padding += range.end - range.begin;
  }
  EXPECT_EQ(padding, 28 * 16);
}

TEST(TensorMatchTest, MoreOrFewerRowsThanTheVocabularyAreRefused) {
  Model model;
  for (const int64_t rows : {99, 129}) {
    model.Find(kEmbedding).shape[0] = rows;
    EXPECT_THAT(model.Refusal(), HasSubstr(absl::StrCat("model.embed_tokens.weight has [", rows,
                                                        ", 16], the run's has [128, 16] or at "
                                                        "least 100 of these rows")));
  }
}

TEST(TensorMatchTest, NamesTheFirstDifferences) {
  Model model;
  model.tensors.erase(model.tensors.begin(), model.tensors.begin() + 5);
  model.tensors.push_back({"model.extra", {3}});
  model.Find("model.norm.weight").shape = {4, 4};
  const std::string message = model.Refusal();
  EXPECT_THAT(message, AllOf(HasSubstr("this is not the run's model ("), HasSubstr(" and 2 more"),
                             HasSubstr("Build the same model at every site")));
  EXPECT_THAT(message, HasSubstr("that the run does not have: model.extra [3]"));
  EXPECT_THAT(message, HasSubstr("model.norm.weight has [4, 4], the run's has [16]"));
}

TEST(TensorMatchTest, ATensorThatComesTwiceIsRefused) {
  Model model;
  model.tensors.push_back(model.tensors.front());
  EXPECT_EQ(model.Match().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorMatchTest, TensorsOfAnyRank) {
  v1::RunConfig config = ParseRunConfig(R"(
      tensors { tensor { name: "conv" shape: [4, 2, 3, 3] } tensor { name: "scale" } }
      sync { steps_between_syncs: 10 fragments: 1 })",
                                        "test")
                             .value();
  ASSERT_TRUE(CompleteRunConfig(config).ok());
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  std::vector<GivenTensor> tensors = {{"scale", {}}, {"conv", {4, 2, 3, 3}}};
  EXPECT_TRUE(MatchTensors(config, plan, tensors).ok());
  tensors[1].shape = {4, 18};  // As many values.
  EXPECT_THAT(std::string(MatchTensors(config, plan, tensors).status().message()),
              HasSubstr("conv has [4, 18], the run's has [4, 2, 3, 3]"));
}

std::vector<TensorShare> HalvesOf(const Model& model) {
  std::vector<TensorShare> shares;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    int64_t size = 1;
    for (const int64_t extent : model.tensors[i].shape) size *= extent;
    shares.push_back({static_cast<int64_t>(i), size / 2 + 1, size, 1});  // In any order.
    shares.push_back({static_cast<int64_t>(i), 0, size / 2 + 1, 0});
  }
  return shares;
}

TEST(PlanSharesTest, APieceIsItsChunksFirstOwners) {
  Model model;
  std::ranges::reverse(model.tensors);
  model.Find(kEmbedding).shape[0] = 100;  // Padding is whose chunk it lies in.
  const TensorMatch match = *model.Match();
  const ShardPlan plan = PlanShares(*model.plan, match, model.tensors, HalvesOf(model), 2).value();
  int64_t owned = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (const ShardPiece& piece : plan.pieces(rank)) {
      const FragmentRange& fragment = model.plan->range(piece.fragment);
      EXPECT_EQ((piece.begin - fragment.begin) % static_cast<int64_t>(kCodecChunk), 0);
      // Who has the first value of the piece, or the last one before it in the fragment.
      int owner = -1;
      for (const causeway_range& range : match.ranges[static_cast<size_t>(piece.fragment)]) {
        for (const TensorShare& share : HalvesOf(model)) {
          const int64_t begin = range.arena_offset - range.tensor_offset + share.begin;
          if (share.tensor == range.tensor && begin < range.arena_offset + range.count &&
              (begin <= piece.begin || owner < 0) && share.end > range.tensor_offset) {
            owner = share.rank;
          }
        }
      }
      EXPECT_EQ(rank, owner) << piece.begin;
      owned += piece.size();
    }
  }
  EXPECT_EQ(owned, model.plan->arena_size());
  const auto pieces = PiecesOf(plan);
  EXPECT_EQ(pieces.size(), 2U);
  EXPECT_EQ(std::ssize(pieces[1]), std::ssize(plan.pieces(1)));
}

TEST(PlanSharesTest, SharesThatLeaveSomethingOutAreRefusedWithTheTensor) {
  const Model model;
  const TensorMatch match = *model.Match();
  const std::string first = model.tensors[0].name;
  const auto refusal = [&](const std::function<void(std::vector<TensorShare>&)>& change) {
    std::vector<TensorShare> shares = HalvesOf(model);
    change(shares);
    const absl::Status status =
        PlanShares(*model.plan, match, model.tensors, std::move(shares), 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const auto names = [&](const std::string& what) {
    return AllOf(HasSubstr("every value of " + first + " once"), HasSubstr(what));
  };
  EXPECT_THAT(refusal([](auto& shares) { shares.erase(shares.begin()); }), names(" came"));
  EXPECT_THAT(refusal([](auto& shares) { ++shares[0].begin; }), names("follows"));
  EXPECT_THAT(refusal([](auto& shares) { shares.push_back(shares[0]); }), names("follows"));
  EXPECT_THAT(refusal([](auto& shares) { ++shares[0].end; }), names("follows"));
  EXPECT_THAT(refusal([](auto& shares) { shares[0].rank = 2; }), names("0 .. 1: 2 came"));
  EXPECT_THAT(refusal([](auto& shares) { shares.push_back({.tensor = 99, .begin = 0, .end = 1}); }),
              HasSubstr("there is no tensor 99"));
  EXPECT_THAT(refusal([](auto& shares) { shares.push_back({.tensor = -1, .begin = 0, .end = 1}); }),
              HasSubstr("there is no tensor -1"));
}

}  // namespace
}  // namespace causeway::worker
