#include "worker/sync/site_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/params/run_config.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Six micro-batches of two windows of eight tokens.
v1::RunConfig SixMicroBatches() {
  v1::RunConfig config = ParseRunConfig(
                             R"(model {
               vocabulary_size: 64 sequence_length: 8 layers: 1 width: 16 heads: 2 mlp_width: 32
             }
             train {
               steps: 100 batch_sequences: 12 micro_batch_sequences: 2 document_masking: true
             })",
                             "test")
                             .value();
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  return config;
}

TEST(StepTokensTest, MicroBatchesAreDealtOutInTurnAndTravel) {
  const v1::RunConfig config = SixMicroBatches();
  StepTokens here(config, /*ranks=*/3, {.first = 1, .count = 2});
  std::vector<int64_t> own;
  for (int64_t i = -1; i <= 6; ++i) {
    if (!here.Has(i)) continue;
    own.push_back(i);
    const MicroBatch at = here.At(i);
    std::ranges::fill(at.inputs, static_cast<int32_t>(i));
    std::ranges::fill(at.targets, static_cast<int32_t>(10 + i));
    std::ranges::fill(at.document_starts, static_cast<int32_t>(20 + i));
  }
  EXPECT_THAT(own, ElementsAre(1, 2, 4, 5));
  StepTokens there(config, 3, {.first = 1, .count = 2});
  ASSERT_TRUE(there.Take(here.bytes()).ok());
  std::vector<int32_t> inputs(16);
  std::vector<int32_t> targets(16);
  std::vector<int32_t> starts(16);
  for (const int32_t i : {5, 1}) {
    ASSERT_TRUE(there.Reader()(i, {inputs, targets, starts}).ok());
    EXPECT_THAT(inputs, Each(i));
    EXPECT_THAT(targets, Each(10 + i));
    EXPECT_THAT(starts, Each(20 + i));
  }
  EXPECT_THAT(there.Reader()(3, {inputs, targets, starts}),
              StatusIs(kInvalidArgument, HasSubstr("micro-batch 3 is none of this process's")));
  EXPECT_THAT(there.Take(ByteBuffer(7)), StatusIs(kInvalidArgument, HasSubstr("bytes; 7 came")));
}

}  // namespace
}  // namespace causeway::worker
