// Cross entropy with z-loss against the CPU's kernel in double.
#include "worker/backend/cuda/kernels/kernels.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker::cuda {
namespace {

struct ClassifierCase {
  int64_t rows, vocabulary, stride;
  double deviation;
};

// From one logit to several turns of a block, with and without padding.
const ClassifierCase kClassifierCases[] = {{1, 1, 8, 1},
                                           {3, 5, 128, 4},
                                           {4, 128, 128, 10},
                                           {2, 255, 256, 30},
                                           {3, 50257, 50304, 4},
                                           {2, 4099, 4224, 100},
                                           // Rows so long that more threads share one.
                                           {2, 100277, 100352, 4}};

struct Results {
  Doubles logits, loss, log_sum_exp;
};

Results OracleOf(const ClassifierCase& c, Doubles logits, const std::vector<int32_t>& targets,
                 double factor, double z_loss, bool gradient) {
  Results r = {std::move(logits), Doubles(Size(c.rows)), Doubles(Size(c.rows))};
  GetKernels<double>().classifier(r.logits.data(), targets.data(), c.rows, c.vocabulary, c.stride,
                                  factor, z_loss, gradient, r.loss.data(), r.log_sum_exp.data());
  return r;
}

// With its tensors on the device; `a` has what it is asked.
ClassifierArguments Place(TestDevice& device, ClassifierArguments a, const Doubles& logits,
                          const std::vector<int32_t>& targets, float scale = 1) {
  a.logits = device.UploadBf16(logits);
  a.targets = device.Upload(targets);
  a.loss = device.Allocate<float>(a.rows);
  a.log_sum_exp = device.Allocate<float>(a.rows);
  if (a.gradient) {
    auto* const count = device.Allocate<TargetCount>(1);
    CountTargets(a.rows, a.targets, scale, count, device.stream());
    a.count = count;
  }
  return a;
}

TEST(ClassifierTest, LossAndGradientAreTheOracles) {
  for (const ClassifierCase& c : kClassifierCases) {
    RandomValues random(static_cast<uint32_t>(c.vocabulary));
    const Doubles logits = random.Normal(c.rows * c.stride, c.deviation);
    std::vector<int32_t> targets = random.Integers(c.rows, 0, static_cast<int32_t>(c.vocabulary));
    targets.back() = static_cast<int32_t>(c.vocabulary - 1);
    for (const float z_loss : {0.0F, 0.01F}) {
      const auto run = [&](TestDevice& device) {
        // Nobody looks at the padding.
        Doubles padded = logits;
        for (size_t i = 0; i < padded.size(); ++i) {
          if (static_cast<int64_t>(i) % c.stride >= c.vocabulary) padded[i] = std::nan("");
        }
        const ClassifierArguments a =
            Place(device, {c.rows, c.vocabulary, c.stride, z_loss, /*gradient=*/true}, padded,
                  targets, 0.5F);
        Classifier(a, device.stream());
        return std::vector<Doubles>{device.Values(a.logits, c.rows * c.stride),
                                    device.Values(a.loss, c.rows),
                                    device.Values(a.log_sum_exp, c.rows)};
      };
      const bool large = c.vocabulary > 10000;
      TestDevice device;
      const std::vector<Doubles> tensors = large ? run(device) : Repeat(run);
      const Results oracle =
          OracleOf(c, logits, targets, 0.5 / static_cast<double>(c.rows), double{z_loss}, true);
      const std::string name = absl::StrCat(c.rows, " x ", c.vocabulary, ", z-loss ", z_loss);
      ExpectCloseBf16(name + ", gradient", tensors[0], oracle.logits);
      ExpectCloseFloat(name + ", loss", tensors[1], oracle.loss);
      ExpectCloseFloat(name + ", log-sum-exp", tensors[2], oracle.log_sum_exp);
    }
  }
}

TEST(ClassifierTest, WithoutAGradientTheLogitsStay) {
  const ClassifierCase c = {4, 21, 128, 3};
  RandomValues random(1);
  const Doubles logits = random.Normal(c.rows * c.stride);
  const std::vector<int32_t> targets = {3, -1, 20, 0};
  TestDevice device;
  const ClassifierArguments a = Place(device, {c.rows, c.vocabulary, c.stride}, logits, targets);
  Classifier(a, device.stream());
  const Results oracle = OracleOf(c, logits, targets, 0, 0, false);
  EXPECT_EQ(device.Values(a.logits, c.rows * c.stride), logits);
  ExpectCloseFloat("loss", device.Values(a.loss, c.rows), oracle.loss);
  EXPECT_EQ(device.Values(a.loss, c.rows)[1], 0);
  ExpectCloseFloat("log-sum-exp", device.Values(a.log_sum_exp, c.rows), oracle.log_sum_exp);
}

TEST(ClassifierTest, RowsWithoutATargetHaveNoGradientAndDoNotCount) {
  constexpr int64_t kRows = 5, kVocabulary = 9, kStride = 16;
  RandomValues random(2);
  const Doubles logits = random.Normal(kRows * kStride);
  const std::vector<int32_t> targets = {-1, 8, -100, 0, -1};
  const auto tensors = Repeat([&](TestDevice& device) {
    const ClassifierArguments a =
        Place(device, {kRows, kVocabulary, kStride, /*z_loss=*/1e-3F, /*gradient=*/true}, logits,
              targets);
    Classifier(a, device.stream());
    auto* const sum = device.Allocate<StepLoss>(1);
    for (const bool accumulate : {false, true}) {
      ReduceLoss(kRows, a.loss, a.log_sum_exp, a.z_loss, a.count, 0.25, accumulate, sum,
                 device.stream());
    }
    EXPECT_EQ(device.Value(a.count).targets, 2);
    EXPECT_EQ(device.Value(a.count).factor, 0.5F);
    const StepLoss loss = device.Value(sum);
    return std::vector<Doubles>{
        device.Values(a.logits, kRows * kStride),
        {loss.cross_entropy, loss.total, static_cast<double>(loss.targets)}};
  });
  const Results oracle =
      OracleOf({kRows, kVocabulary, kStride, 0}, logits, targets, 0.5, 1e-3, true);
  ExpectCloseBf16("gradient", tensors[0], oracle.logits);
  for (const size_t row : {0, 2, 4}) {
    for (size_t i = 0; i < kStride; ++i) EXPECT_EQ(tensors[0][row * kStride + i], 0);
  }
  const double cross_entropy = (oracle.loss[1] + oracle.loss[3]) / 2;
  const double squares =
      (std::pow(oracle.log_sum_exp[1], 2) + std::pow(oracle.log_sum_exp[3], 2)) / 2;
  ExpectCloseFloat("loss of the step", tensors[1],
                   {0.5 * cross_entropy, 0.5 * (cross_entropy + 1e-3 * squares), 4});
}

TEST(ClassifierTest, AMicroBatchWithoutTargetsCostsNothing) {
  TestDevice device;
  const std::vector<int32_t> targets(7, -1);
  const ClassifierArguments a =
      Place(device, {7, 8, 8, /*z_loss=*/0, /*gradient=*/true}, Doubles(56, 1), targets);
  Classifier(a, device.stream());
  auto* const sum = device.Allocate<StepLoss>(1);
  ReduceLoss(7, a.loss, a.log_sum_exp, 0, a.count, 1, false, sum, device.stream());
  EXPECT_EQ(device.Values(a.logits, 56), Doubles(56, 0));
  EXPECT_EQ(device.Value(a.count).factor, 0);
  EXPECT_EQ(device.Value(sum).total, 0);
  EXPECT_EQ(device.Value(sum).targets, 0);
}

TEST(ClassifierTest, MoreTokensThanThreadsAreCountedAndSummed) {
  constexpr int64_t kRows = 5003;
  RandomValues random(3);
  const std::vector<int32_t> targets = random.Integers(kRows, -2, 9);
  const Doubles loss = random.Normal(kRows, 1, 5);
  const Doubles log_sum = random.Normal(kRows, 1, 7);
  int present = 0;
  for (const int32_t target : targets) present += target >= 0 ? 1 : 0;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    sum += loss[Size(i)];
    squares += log_sum[Size(i)] * log_sum[Size(i)];
  }
  const auto tensors = Repeat([&](TestDevice& device) {
    auto* const count = device.Allocate<TargetCount>(1);
    auto* const out = device.Allocate<StepLoss>(1);
    CountTargets(kRows, device.Upload(targets), 2.0F, count, device.stream());
    ReduceLoss(kRows, device.UploadFloat(loss), device.UploadFloat(log_sum), 0.5F, count, 1, false,
               out, device.stream());
    EXPECT_EQ(device.Value(count).targets, present);
    const StepLoss step = device.Value(out);
    return std::vector<Doubles>{{step.cross_entropy, step.total}};
  });
  EXPECT_NEAR(tensors[0][0], sum / present, 1e-12 * sum);
  EXPECT_NEAR(tensors[0][1], (sum + 0.5 * squares) / present, 1e-12 * squares);
}

TEST(ClassifierTest, LogitsThatAreNotFiniteShowInTheLoss) {
  TestDevice device;
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Doubles logits(16, 1);
    logits[5] = bad;
    const ClassifierArguments a = Place(device, {1, 16, 16}, logits, {2});
    Classifier(a, device.stream());
    EXPECT_FALSE(std::isfinite(device.Value(a.loss))) << bad;
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
