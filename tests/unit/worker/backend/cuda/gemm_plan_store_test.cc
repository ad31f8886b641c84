#include "worker/backend/cuda/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr GemmPlan kPlan = {1, 2, 3, 4, 5, 6, 7, 0xffffffffffffffff};

TEST(GemmPlanStore, WhatWasMeasuredFirstIsKept) {
  GemmPlanStore store;
  EXPECT_EQ(store.Find("a"), std::nullopt);
  EXPECT_EQ(store.Keep("a", kPlan), kPlan);
  EXPECT_EQ(store.Keep("a", GemmPlan{9}), kPlan);
  EXPECT_EQ(store.Find("a"), kPlan);
}

TEST(GemmPlanStore, WhatCannotBeUsedIsReplacedOnce) {
  GemmPlanStore store;
  store.Keep("a", kPlan);
  EXPECT_EQ(store.Keep("a", GemmPlan{9}, kPlan), GemmPlan{9});
  EXPECT_EQ(store.Keep("a", GemmPlan{10}, kPlan), GemmPlan{9});
  EXPECT_EQ(store.Find("a"), GemmPlan{9});
}

TEST(GemmPlanStore, ReadsWhatItWrote) {
  GemmPlanStore written;
  written.Keep("H200 9.0 cuBLASLt 130100 64x64x64", kPlan);
  EXPECT_TRUE(written.changed());
  const std::string text = written.Text();
  EXPECT_FALSE(written.changed());
  GemmPlanStore read;
  ASSERT_TRUE(read.Parse(text, "plans").ok());
  EXPECT_EQ(read.Find("H200 9.0 cuBLASLt 130100 64x64x64"), kPlan);
  EXPECT_FALSE(read.changed());
}

TEST(GemmPlanStore, ADamagedFileIsRefusedAndOneOfAnotherVersionPassedOver) {
  GemmPlanStore store;
  for (const char* text : {"{", "[]", R"({"version": 1, "plans": {"a": [1, 2]}})",
                           R"({"version": 1, "plans": {"a": "b"}})", R"({"plans": {}})"}) {
    const absl::Status status = store.Parse(text, "the file");
    EXPECT_TRUE(absl::IsDataLoss(status)) << text << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the file is"), HasSubstr("remove it")));
  }
  EXPECT_TRUE(store.Parse(R"({"version": 2, "plans": 3})", "the file").ok());
}

}  // namespace
}  // namespace causeway::worker::cuda
