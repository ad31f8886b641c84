// The report of `bench` on a GPU: every figure follows from the times that stand beside it. The
// times themselves mean nothing here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/file_system.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "worker/backend/cuda/bench.h"

namespace causeway::worker::cuda {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

CudaBenchOptions SmallBench() {
  CudaBenchOptions options;
  options.model = "tiny-1m";
  options.sequence_length = 8;
  options.micro_batch_sequences = 1;
  options.batch_sequences = 2;
  options.steps = 1;
  options.rates = {.product = 16, .copy_bytes = 4096, .mma_iterations = 1};
  options.make_gemm = MakeTestGemm;
  return options;
}

TEST(CudaBenchTest, FiguresFollowFromTheTimes) {
  CudaBenchOptions options = SmallBench();
  const auto devices = DiscoverDevices({0}, *FileSystem::Real()).value();
  options.device = devices.front();
  const auto result = BenchTraining(options).value();
  const json& bench = result;

  const double seconds = bench.at("seconds_per_step");
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(bench.at("tokens_per_second").get<double>() * seconds, 2 * 8, 1e-6);
  EXPECT_NEAR(
      bench.at("tflops").get<double>() * 1e12,
      bench.at("flops_per_token").get<double>() * bench.at("tokens_per_second").get<double>(), 1);
  EXPECT_EQ(bench.at("shape").at("layers"), 6);
  EXPECT_EQ(bench.at("shape").at("mlp"), "SWIGLU");

  const json& rates = bench.at("rates");
  double roofline = 0;
  double together = 0;
  double products = 0;  // FLOPs of all products and attention.
  double traced = 0;
  std::set<std::string> names;
  for (const json& kernel : bench.at("kernels")) {
    SCOPED_TRACE(kernel.dump());
    const double alone = 1e-6 * kernel.at("microseconds").get<double>();
    const double calls = kernel.at("calls_per_step");
    EXPECT_GT(alone, 0);
    together += alone * calls;
    EXPECT_NEAR(kernel.at("milliseconds_per_step").get<double>(), 1e3 * alone * calls, 1e-9);
    traced += 1e-3 * kernel.at("traced_milliseconds").get<double>();
    names.insert(kernel.at("name").get<std::string>());
    const bool copies = kernel.at("limit") == "copy";
    if (copies) {
      const double bytes = 1e9 * kernel.at("gb_per_s").get<double>() * alone;
      const double least = bytes / (1e9 * rates.at("copy_gb_per_s").get<double>());
      roofline += calls * least;
      EXPECT_NEAR(kernel.at("limit_fraction").get<double>() * alone / least, 1, 1e-6);
    } else {
      const double flops = 1e12 * kernel.at("tflops").get<double>() * alone;
      const double least = flops / (1e12 * rates.at("gemm_tflops").get<double>());
      roofline += calls * least;
      if (kernel.at("limit") == "products") {
        EXPECT_NEAR(kernel.at("limit_fraction").get<double>() * alone / least, 1, 1e-6);
      }
      products += calls * flops;
    }
  }
  EXPECT_NEAR(bench.at("roofline_seconds_per_step").get<double>() / roofline, 1, 1e-6);
  EXPECT_NEAR(bench.at("roofline_fraction").get<double>() * seconds / roofline, 1, 1e-6);
  EXPECT_NEAR(bench.at("kernels_fraction").get<double>() * seconds / together, 1, 1e-6);
  const json& trace = bench.at("trace");
  EXPECT_NEAR(trace.at("seconds").get<double>(), traced + trace.at("gap_seconds").get<double>(),
              1e-5);
  EXPECT_LE(trace.at("gaps").size(), 10U);
  for (const json& gap : trace.at("gaps")) {
    SCOPED_TRACE(gap.dump());
    EXPECT_GE(gap.at("count"), 1);
    for (const char* const end : {"after", "before"}) EXPECT_TRUE(names.contains(gap.at(end)));
  }
  ASSERT_EQ(bench.at("rates_spread").size(), rates.size());
  for (const auto& [name, spread] : bench.at("rates_spread").items()) {
    EXPECT_GE(spread.get<double>(), 0) << name;
    EXPECT_LT(spread.get<double>(), 1) << name;
  }
  // The kernels' counts and the formula agree but for attention, whose backward pass has five
  // products against the formula's four, and whose diagonal counts whole here.
  const double formula = bench.at("flops_per_token").get<double>() * 2 * 8;
  EXPECT_GE(products, formula);
  EXPECT_LT(products, 1.05 * formula);
}

TEST(CudaBenchTest, WithMuonItsProductsAreRowsOfTheirOwn) {
  CudaBenchOptions options = SmallBench();
  options.device = DiscoverDevices({0}, *FileSystem::Real()).value().front();
  options.muon = true;
  const auto result = BenchTraining(options).value();
  EXPECT_EQ(result.at("optimizer"), "muon");
  EXPECT_EQ(result.at("step_seconds").size(), 1U);
  const json& kernels = result.at("kernels");
  // AdamW has what Muon does not take.
  double adamw = 0;
  double momenta = 0;
  int64_t products = 0;
  for (const json& kernel : kernels) {
    const std::string name = kernel.at("name");
    const double bytes =
        kernel.value("gb_per_s", 0.0) * kernel.at("milliseconds_per_step").get<double>();
    if (name == "AdamW") adamw = bytes / 30;
    if (name == "Muon, momentum") momenta = bytes / 14;
    if (kernel.at("limit") == "products" && name.starts_with("Muon, ")) {
      products += kernel.at("calls_per_step").get<int64_t>();
    }
  }
  EXPECT_GT(products, 0);
  // In millions of values.
  EXPECT_NEAR(adamw + momenta, 1e-6 * result.at("parameters").get<double>(), 1e-3);
}

TEST(CudaBenchTest, OptionsThatCannotBeAreRefused) {
  CudaBenchOptions options = SmallBench();
  options.batch_sequences = 3;
  options.micro_batch_sequences = 2;
  EXPECT_THAT(std::string(BenchTraining(options).status().message()),
              HasSubstr("--batch must be a multiple of --micro_batch = 2; it is 3"));
  options = SmallBench();
  options.steps = 0;
  EXPECT_THAT(std::string(BenchTraining(options).status().message()), HasSubstr("--steps"));
  options = SmallBench();
  options.model = "nobody";
  EXPECT_THAT(std::string(BenchTraining(options).status().message()), HasSubstr("nobody"));
}

TEST(CudaBenchTest, DatasheetsAreFoundByTheNameOfTheDevice) {
  EXPECT_EQ(DatasheetFlops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(DatasheetFlops("Emulated device"), 0);
}

}  // namespace
}  // namespace causeway::worker::cuda
