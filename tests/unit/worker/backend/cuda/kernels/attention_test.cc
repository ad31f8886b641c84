// Our own attention on the device, against the CPU backend in double precision.
#include "worker/backend/cuda/kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/unit/worker/backend/cuda/kernels/attention_reference.h"

#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

void Check(const AttentionCase& c) {
  OwnAttention own;
  ExpectLikeOracle(own, c);
}

AttentionTensors Compute(const AttentionCase& c, const AttentionInputs& inputs) {
  OwnAttention own;
  return OnDevice(own, c, inputs);
}

void ExpectSameBits(const AttentionTensors& a, const AttentionTensors& b) {
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
  EXPECT_EQ(a.dqkv, b.dqkv);
}

TEST(CudaAttentionTest, OddLengthsAreLikeTheOracle) {
  for (const int length : {1, 2, 17, 63, 64, 65, 127, 128, 129, 201, 385}) {
    Check({.shape = {1, length, 1, 1, 64}});
  }
}

TEST(CudaAttentionTest, EveryWidthOfHeadsIsLikeTheOracle) {
  for (const int head_dim : {8, 16, 32, 40, 64, 80, 96, 120, 128}) {
    Check({.shape = {1, 140, 1, 1, head_dim}});
  }
}

TEST(CudaAttentionTest, QueriesShareKeyHeadsInEveryRatio) {
  for (const int kv_heads : {8, 4, 2, 1}) {
    Check({.shape = {1, 37, 8, kv_heads, 32}});
  }
  Check({.shape = {2, 70, 6, 2, 128}});
}

TEST(CudaAttentionTest, SequencesDoNotSeeEachOther) { Check({.shape = {3, 45, 2, 1, 64}}); }

TEST(CudaAttentionTest, DocumentsDoNotSeeEachOther) {
  Check({.shape = {2, 40, 2, 1, 64}, .documents = {1, 5, 1, 33}});
  Check({.shape = {1, 330, 1, 1, 64}, .documents = {150, 3, 100, 77}});
  Check({.shape = {1, 300, 2, 1, 128}, .documents = {128, 64, 1, 107}});
  Check({.shape = {1, 530, 4, 2, 64}, .documents = {1, 257, 200, 72}});
  Check({.shape = {1, 260, 1, 1, 32}, .documents = std::vector<int32_t>(260, 1)});
}

TEST(CudaAttentionTest, ScoresFarApartLoseNothing) {
  Check({.shape = {1, 150, 1, 1, 64}, .spread = 6});
  Check({.shape = {1, 150, 1, 1, 128}, .spread = 0.01});
}

TEST(CudaAttentionTest, TheSameInputGivesTheSameBits) {
  const AttentionCase c = {.shape = {2, 131, 4, 2, 64}, .documents = {100, 31}};
  const AttentionInputs inputs = MakeInputs(c);
  const AttentionTensors once = Compute(c, inputs);
#ifdef CAUSEWAY_EMULATED_DEVICE
  for (const auto order : {emulation::Order::kBackward, emulation::Order::kShuffled}) {
    emulation::SetOrder(order);
    ExpectSameBits(once, Compute(c, inputs));
  }
  emulation::SetOrder(emulation::Order::kForward);
#else
  ExpectSameBits(once, Compute(c, inputs));
#endif
}

TEST(CudaAttentionTest, APermutedBatchGivesThePermutedBits) {
  const AttentionCase c = {.shape = {2, 66, 2, 1, 96}};
  AttentionInputs inputs = MakeInputs(c);
  const AttentionTensors straight = Compute(c, inputs);
  const auto swap_halves = [](std::vector<double>& values) {
    std::rotate(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                values.end());
  };
  swap_halves(inputs.qkv);
  swap_halves(inputs.dout);
  AttentionTensors swapped = Compute(c, inputs);
  for (auto* tensor : {&swapped.out, &swapped.log_sum_exp, &swapped.dqkv}) swap_halves(*tensor);
  ExpectSameBits(straight, swapped);
}

TEST(CudaAttentionTest, TheOrderOfHeadsDoesNotChangeABit) {
  AttentionCase c = {.shape = {2, 140, 6, 3, 64}, .documents = {100, 40}};
  const AttentionInputs inputs = MakeInputs(c);
  const AttentionTensors together = Compute(c, inputs);
  for (const int heads_at_a_time : {1, 4, 5}) {  // 12 and 6 in all: the last pass has spare blocks.
    c.shape.heads_at_a_time = heads_at_a_time;
    SCOPED_TRACE(heads_at_a_time);
    ExpectSameBits(together, Compute(c, inputs));
  }
}

TEST(CudaAttentionTest, AsManyHeadsAreComputedSideBySideAsACacheHolds) {
  // Keys and values of a head have 512 KiB: 32 of them, in passes of one size.
  EXPECT_EQ(AttentionHeadsAtATime({32, 2048, 12, 12, 64}, false), 32);
  // Four heads share them.
  EXPECT_EQ(AttentionHeadsAtATime({8, 2048, 32, 8, 64}, false), 128);
  // The pass over keys reads queries and gradients of four heads again, 2 MiB.
  EXPECT_EQ(AttentionHeadsAtATime({8, 2048, 32, 8, 64}, true), 8);
  EXPECT_EQ(AttentionHeadsAtATime({2, 128, 4, 4, 64}, false), 8);
  // Those of one head at the least, and no more passes than a grid has.
  EXPECT_EQ(AttentionHeadsAtATime({1, 1 << 20, 8, 2, 128}, false), 4);
  EXPECT_EQ(AttentionHeadsAtATime({1 << 12, 1 << 20, 64, 64, 128}, false), 5);
}

TEST(CudaAttentionTest, ShapesWithoutAKernelAreRefusedWithWhatToDo) {
  EXPECT_THAT(AttentionRefusal({1, 16, 2, 2, 256}), HasSubstr("model.head_dim"));
  EXPECT_THAT(AttentionRefusal({1, 16, 2, 2, 36}), HasSubstr("multiples of 8"));
  EXPECT_THAT(AttentionRefusal({1, 16, 3, 2, 64}), HasSubstr("must divide"));
  EXPECT_THAT(AttentionRefusal({1, 9000000, 2, 2, 64}), HasSubstr("model.sequence_length"));
  EXPECT_THAT(AttentionRefusal({1 << 20, 16, 1 << 12, 1 << 12, 64}),
              HasSubstr("train.micro_batch_sequences"));
  EXPECT_EQ(AttentionRefusal({1, 1, 1, 1, 8}), nullptr);
}

}  // namespace
}  // namespace causeway::worker::cuda
