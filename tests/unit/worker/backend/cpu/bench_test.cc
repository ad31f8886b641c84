#include "worker/backend/cpu/bench.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

TEST(BenchTrainingTest, ReportsWhatItMeasured) {
  const auto report = BenchTraining({.model = "tiny-1m",
                                     .sequence_length = 16,
                                     .micro_batch_sequences = 2,
                                     .steps = 2,
                                     .threads = 1})
                          .value();
  EXPECT_EQ(report["sequence_length"], 16);
  EXPECT_EQ(report["threads"], 1);
  for (const char* key : {"tokens_per_second", "tokens_per_second_per_core", "gflops",
                          "sgemm_peak_gflops", "sgemm_peak_gflops_per_core", "peak_fraction"}) {
    EXPECT_GT(report[key].get<double>(), 0) << key;
  }
  // 6 values in matrices, 6 L q T for attention: counted by hand for this shape.
  const double matrices = 6.0 * (4 * 128 * 128 + 3 * 128 * 320) + 256 * 128;
  EXPECT_EQ(report["flops_per_token"].get<double>(), 6 * matrices + 6.0 * 6 * 128 * 16);
  EXPECT_EQ(report["milliseconds_per_step"].size(), 10U);
}

TEST(BenchTrainingTest, RefusesAnUnknownModelAndOptionsOutOfRange) {
  const auto unknown = BenchTraining({.model = "gpt-9"});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  const auto steps = BenchTraining({.model = "tiny-1m", .steps = 0});
  EXPECT_EQ(steps.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(steps.status().message()), testing::HasSubstr("steps"));
}

}  // namespace
}  // namespace causeway::worker
