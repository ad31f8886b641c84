// Embeddings forward, and backward with runs of equal tokens that blocks share.
#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"

namespace causeway::worker::cuda {
namespace {

TEST(TokenOrderTest, SortsByTokenAndKeepsTheOrderOfEqualOnes) {
  TokenOrder order(5);
  std::vector<int32_t> places(7);
  order.Sort(std::vector<int32_t>{4, 0, 2, 4, 2, 2, 0}, places);
  EXPECT_EQ(places, (std::vector<int32_t>{1, 6, 2, 4, 5, 0, 3}));
  std::vector<int32_t> fewer(2);
  order.Sort(std::vector<int32_t>{3, 1}, fewer);  // Nothing is left of the first call.
  EXPECT_EQ(fewer, (std::vector<int32_t>{1, 0}));
}

TEST(EmbeddingTest, ForwardTakesTheRowsOfTokensAndPositions) {
  constexpr int64_t kVocabulary = 11, kLength = 5, kTokens = 15;
  for (const int64_t width : {8, 264}) {
    RandomValues random(2);
    const Doubles embedding = random.Normal(kVocabulary * width);
    const Doubles positions = random.Normal(kLength * width);
    const std::vector<int32_t> inputs = random.Integers(kTokens, 0, kVocabulary);
    for (const bool learned : {false, true}) {
      const auto tensors = Repeat([&](TestDevice& device) {
        EmbeddingForwardArguments a = {.tokens = kTokens, .length = kLength, .width = width};
        a.inputs = device.Upload(inputs);
        a.embedding = device.UploadBf16(embedding);
        if (learned) a.positions = device.UploadBf16(positions);
        a.out = device.Allocate<__nv_bfloat16>(kTokens * width);
        EmbeddingForward(a, device.stream());
        return std::vector<Doubles>{device.Values(a.out, kTokens * width)};
      });
      for (int64_t i = 0; i < kTokens * width; ++i) {
        const int64_t token = i / width;
        const double row = embedding[Size(inputs[Size(token)] * width + i % width)];
        const double position = learned ? positions[Size(token % kLength * width + i % width)] : 0;
        ASSERT_EQ(tensors[0][Size(i)], RoundToBf16(row + position)) << i;
      }
    }
  }
}

// Integer gradients: their sums are exact in any order, so every token must be counted once.
void ExpectExactGradient(const std::vector<int32_t>& inputs, int64_t vocabulary, int64_t width) {
  const auto tokens = static_cast<int64_t>(inputs.size());
  RandomValues random(3);
  const std::vector<int32_t> integers = random.Integers(tokens * width, -8, 8);
  const Doubles dout(integers.begin(), integers.end());
  const auto tensors = Repeat([&](TestDevice& device) {
    std::vector<int32_t> places(inputs.size());
    TokenOrder(vocabulary).Sort(inputs, places);
    EmbeddingBackwardArguments a = {.tokens = tokens, .width = width};
    a.inputs = device.Upload(inputs);
    a.order = device.Upload(places);
    a.dout = device.UploadBf16(dout);
    a.dembedding = device.UploadFloat(Doubles(Size(vocabulary * width), 100));
    a.scratch = device.Allocate<float>(EmbeddingBackwardScratch(tokens, width));
    EmbeddingBackward(a, device.stream());
    return std::vector<Doubles>{device.Values(a.dembedding, vocabulary * width)};
  });
  Doubles expected(Size(vocabulary * width), 100);
  for (int64_t i = 0; i < tokens * width; ++i) {
    expected[Size(inputs[Size(i / width)] * width + i % width)] += dout[Size(i)];
  }
  EXPECT_EQ(tensors[0], expected) << tokens << " tokens, vocabulary " << vocabulary;
}

TEST(EmbeddingTest, BackwardCountsEveryTokenOnce) {
  RandomValues random(4);
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 129, 500}) {
    for (const int32_t vocabulary : {1, 2, 3, 40, 1000}) {
      ExpectExactGradient(random.Integers(tokens, 0, vocabulary), vocabulary, 8);
    }
  }
  ExpectExactGradient(random.Integers(100, 0, 7), 7, 2056);  // More columns than one block has.
}

TEST(EmbeddingTest, RunsMayBeginAndEndAtTheEdgesOfBlocks) {
  // Runs of these lengths, one after another, with blocks of 64 tokens.
  for (const std::vector<int64_t>& runs : std::vector<std::vector<int64_t>>{
           {64, 64, 64}, {63, 65, 64}, {1, 127, 1, 63}, {32, 64, 32}, {65, 1, 62, 200, 1}}) {
    std::vector<int32_t> inputs;
    for (size_t run = 0; run < runs.size(); ++run) {
      inputs.insert(inputs.end(), Size(runs[run]), static_cast<int32_t>(run));
    }
    ExpectExactGradient(inputs, static_cast<int64_t>(runs.size()), 16);
    std::reverse(inputs.begin(), inputs.end());
    ExpectExactGradient(inputs, static_cast<int64_t>(runs.size()), 16);
  }
}

TEST(PositionsTest, BackwardSumsOverWindowsAndClearsThePositionsThatNoneHas) {
  constexpr int64_t kSequences = 3, kLength = 5, kPositions = 7, kWidth = 24;
  RandomValues random(5);
  const std::vector<int32_t> integers = random.Integers(kSequences * kLength * kWidth, -8, 8);
  const Doubles dout(integers.begin(), integers.end());
  for (const bool accumulate : {false, true}) {
    const auto tensors = Repeat([&](TestDevice& device) {
      PositionsBackwardArguments a = {.sequences = kSequences,
                                      .length = kLength,
                                      .learned_positions = kPositions,
                                      .width = kWidth};
      a.dout = device.UploadBf16(dout);
      a.accumulate = accumulate;
      a.dpositions = device.UploadFloat(Doubles(Size(kPositions * kWidth), 100));
      PositionsBackward(a, device.stream());
      return std::vector<Doubles>{device.Values(a.dpositions, kPositions * kWidth)};
    });
    Doubles expected(Size(kPositions * kWidth), accumulate ? 100 : 0);
    for (int64_t i = 0; i < kSequences * kLength * kWidth; ++i) {
      expected[Size(i % (kLength * kWidth))] += dout[Size(i)];
    }
    EXPECT_EQ(tensors[0], expected);
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
