// The gradient's norm, AdamW and Muon's element-wise parts against the CPU's optimizer.
#include <cmath>
#include <limits>
#include <span>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/optimizer.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace causeway::worker::cuda {
namespace {

// The norm of `parts`, each of which is summed by itself.
GradientNorm NormOf(TestDevice& device, const std::vector<std::vector<float>>& parts, double clip) {
  auto* const sums = device.Allocate<double>(static_cast<int64_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto size = static_cast<int64_t>(parts[i].size());
    SumOfSquares(size, device.Upload(parts[i]), /*accumulate=*/false, sums + i,
                 device.Allocate<double>(SumOfSquaresScratch(size)), device.stream());
  }
  auto* const norm = device.Allocate<GradientNorm>(1);
  FinishGradientNorm(static_cast<int>(parts.size()), sums, clip, norm, device.stream());
  return device.Value(norm);
}

TEST(GradientNormTest, IsThatOfAllPartsAtAnyLength) {
  for (const int64_t size : {1, 3, 255, 4096, 4097, 70000}) {
    RandomValues random(1);
    const auto a = As<float>(random.Normal(size, 1e-3));
    const auto b = As<float>(random.Normal(5, 1e-3));
    const double expected = std::sqrt(worker::SumOfSquares(std::span<const float>(a)) +
                                      worker::SumOfSquares(std::span<const float>(b)));
    const auto tensors = Repeat([&](TestDevice& device) {
      const GradientNorm norm = NormOf(device, {a, b}, 0);
      EXPECT_EQ(norm.finite, 1);
      EXPECT_EQ(norm.factor, 1.0F);
      return std::vector<Doubles>{{norm.norm}};
    });
    EXPECT_NEAR(tensors[0][0], expected, 1e-14 * expected) << size;
  }
}

TEST(GradientNormTest, ASecondRangeIsAddedToTheFirst) {
  TestDevice device;
  auto* const sum = device.Allocate<double>(1);
  auto* const scratch = device.Allocate<double>(SumOfSquaresScratch(4));
  float* const values = device.Upload(std::vector<float>{1, 2, 3, 4});
  SumOfSquares(4, values, /*accumulate=*/false, sum, scratch, device.stream());
  SumOfSquares(4, values, /*accumulate=*/true, sum, scratch, device.stream());
  EXPECT_EQ(device.Value(sum), 60);
}

TEST(GradientNormTest, ClipsToTheNormThatIsAllowed) {
  TestDevice device;
  const std::vector<float> gradient = {3, 4};
  EXPECT_EQ(NormOf(device, {gradient}, 2).factor, 0.4F);
  EXPECT_EQ(NormOf(device, {gradient}, 5).factor, 1.0F);
  EXPECT_EQ(NormOf(device, {gradient}, 0).factor, 1.0F);
}

TEST(GradientNormTest, KnowsWhatIsNotFiniteFromWhatIsOnlyLarge) {
  TestDevice device;
  std::vector<float> gradient(1000, 1e30F);
  const GradientNorm large = NormOf(device, {gradient}, 1);
  EXPECT_EQ(large.finite, 1);
  EXPECT_NEAR(large.norm / (1e30 * std::sqrt(1000.0)), 1, 1e-6);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    gradient[777] = bad;
    EXPECT_EQ(NormOf(device, {gradient}, 1).finite, 0);
    EXPECT_EQ(NormOf(device, {{1, 2}, gradient}, 1).finite, 0);
  }
}

GradientNorm* UploadNorm(TestDevice& device, float factor, bool finite) {
  return device.Upload(std::vector<GradientNorm>{{1, factor, finite ? 1 : 0}});
}

// With what an update reads and writes on the device: moments of zero or one, a weight of seven.
AdamWArguments Place(TestDevice& device, const std::vector<OptimizerSlice>& slices,
                     const std::vector<float>& master, double moments) {
  AdamWArguments a = {.count = static_cast<int64_t>(slices.size())};
  a.slices = device.Upload(slices);
  a.master = device.Upload(master);
  a.m = device.UploadFloat(Doubles(master.size(), moments));
  a.v = device.UploadFloat(Doubles(master.size(), moments));
  a.weight = device.UploadBf16(Doubles(master.size(), 7));
  return a;
}

// Two tensors in arenas with gaps, at other places in each.
struct AdamWFixture {
  int64_t sizes[2] = {9000, 13};
  int64_t state[2] = {0, 9024};
  int64_t gradient[2] = {64, 9088 + 64};
  int64_t weight[2] = {128, 0};
  float decay[2] = {0.1F, 0};
  int64_t arena = 9088 + 128;
};

TEST(AdamWKernelTest, HasTheBitsOfTheCpusUpdateForThreeSteps) {
  const AdamWFixture f;
  RandomValues random(2);
  const auto master = As<float>(random.Normal(f.arena));
  std::vector<std::vector<float>> gradients;
  for (int i = 0; i < 3; ++i) gradients.push_back(As<float>(random.Normal(f.arena, 0.01)));
  constexpr float kFactor = 0.37F;
  const auto tensors = Repeat([&](TestDevice& device) {
    std::vector<OptimizerSlice> slices;
    for (int i = 0; i < 2; ++i) {
      AppendSlices({.state = f.state[i],
                    .second = f.weight[i],  // In another order than the first moments.
                    .gradient = f.gradient[i],
                    .weight = f.weight[i],
                    .weight_decay = f.decay[i]},
                   f.sizes[i], &slices);
    }
    EXPECT_EQ(slices.size(), 3);
    AdamWArguments a = Place(device, slices, master, /*moments=*/0);
    a.norm = UploadNorm(device, kFactor, true);
    for (int step = 1; step <= 3; ++step) {
      a.step = device.Upload(std::vector<AdamWStep<float>>{{1e-3, 0.9, 0.99, 1e-8, step}});
      a.gradient = device.Upload(gradients[Size(step - 1)]);
      AdamWUpdate(a, device.stream());
    }
    return std::vector<Doubles>{device.Values(a.master, f.arena), device.Values(a.m, f.arena),
                                device.Values(a.v, f.arena), device.Values(a.weight, f.arena)};
  });
  std::vector<float> w = master, m(w.size()), v(w.size());
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      GetKernels<float>().adamw({1e-3, 0.9, 0.99, 1e-8, step}, f.decay[i], kFactor,
                                gradients[Size(step - 1)].data() + f.gradient[i], f.sizes[i],
                                w.data() + f.state[i], m.data() + f.state[i],
                                v.data() + f.weight[i]);
    }
  }
  EXPECT_EQ(As<float>(tensors[0]), w);
  EXPECT_EQ(As<float>(tensors[1]), m);
  EXPECT_EQ(As<float>(tensors[2]), v);
  Doubles weight(Size(f.arena), 7);
  for (int i = 0; i < 2; ++i) {
    for (int64_t k = 0; k < f.sizes[i]; ++k) {
      weight[Size(f.weight[i] + k)] = RoundToBf16(static_cast<double>(w[Size(f.state[i] + k)]));
    }
  }
  EXPECT_EQ(tensors[3], weight);
}

TEST(AdamWKernelTest, AGradientThatIsNotFiniteChangesNothing) {
  TestDevice device;
  std::vector<OptimizerSlice> slices;
  AppendSlices({.weight_decay = 0.1F}, 100, &slices);
  AdamWArguments a = Place(device, slices, std::vector<float>(100, 1), /*moments=*/1);
  a.step = device.Upload(std::vector<AdamWStep<float>>{{1e-3, 0.9, 0.99, 1e-8, 1}});
  a.norm = UploadNorm(device, 1, false);
  a.gradient = device.UploadFloat(Doubles(100, std::nan("")));
  AdamWUpdate(a, device.stream());
  for (const float* const kept : {a.master, a.m, a.v}) {
    EXPECT_EQ(device.Values(kept, 100), Doubles(100, 1));
  }
  EXPECT_EQ(device.Values(a.weight, 100), Doubles(100, 7));
}

TEST(AdamWKernelTest, ACapturedUpdateTakesTheConstantsOfItsReplay) {
  std::vector<OptimizerSlice> slices;
  AppendSlices({}, 40, &slices);
  RandomValues random(6);
  const Doubles gradient = random.Normal(40);
  const std::vector<AdamWStep<float>> steps = {{1e-3, 0.9, 0.99, 1e-8, 1},
                                               {2e-3, 0.9, 0.99, 1e-8, 2}};
  TestDevice device;
  AdamWArguments a = Place(device, slices, std::vector<float>(40, 1), /*moments=*/0);
  auto* const step = device.Allocate<AdamWStep<float>>(1);
  a.step = step;
  a.gradient = device.UploadFloat(gradient);
  auto* const sum = device.Allocate<double>(1);
  auto* const norm = device.Allocate<GradientNorm>(1);
  auto* const scratch = device.Allocate<double>(SumOfSquaresScratch(40));
  a.norm = norm;

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_EQ(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  SumOfSquares(40, a.gradient, /*accumulate=*/false, sum, scratch, device.stream());
  FinishGradientNorm(1, sum, /*clip_norm=*/0.5, norm, device.stream());
  AdamWUpdate(a, device.stream());
  ASSERT_EQ(cudaStreamEndCapture(device.stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  std::vector<float> w(40, 1), m(40), v(40);
  const auto g = As<float>(gradient);
  const double length = std::sqrt(worker::SumOfSquares(std::span<const float>(g)));
  for (const AdamWStep<float>& constants : steps) {
    ASSERT_EQ(cudaMemcpyAsync(step, &constants, sizeof constants, cudaMemcpyHostToDevice,
                              device.stream()),
              cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(replay, device.stream()), cudaSuccess);
    GetKernels<float>().adamw(constants, 0, static_cast<float>(0.5 / length), g.data(), 40,
                              w.data(), m.data(), v.data());
    EXPECT_EQ(As<float>(device.Values(a.master, 40)), w);
  }
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Two matrices of 24 x 400, the second in pieces that two GPUs might have.
struct MuonFixture {
  static constexpr int64_t kRows = 400, kCols = 24, kSize = kRows * kCols;
  std::vector<OptimizerSlice> slices;
  MuonFixture() {
    OptimizerSlice slice;
    slice.shape = std::sqrt(static_cast<double>(kRows) / kCols);
    AppendSlices(slice, kSize, &slices);
    slice.state = slice.weight = slice.update = kSize;
    slice.gradient = kSize + 64;
    AppendSlices(slice, 808, &slices);
    slice.state += 808;
    slice.weight += 808;
    slice.update += 808;
    slice.gradient += 808;
    AppendSlices(slice, kSize - 808, &slices);
  }
  static int64_t GradientAt(int64_t i) { return i < kSize ? i : i + 64; }
};

constexpr MuonConstants kMuon = {.momentum = 0.95F, .learning_rate = 0.02F, .weight_decay = 0.1F};

MuonArguments Place(TestDevice& device, const std::vector<OptimizerSlice>& slices, float factor,
                    bool finite = true) {
  MuonArguments a = {.count = static_cast<int64_t>(slices.size())};
  a.slices = device.Upload(slices);
  a.constants = device.Upload(std::vector<MuonConstants>{kMuon});
  a.norm = UploadNorm(device, factor, finite);
  return a;
}

TEST(MuonKernelTest, MomentumHasTheCpusBits) {
  const MuonFixture f;
  constexpr int64_t kTotal = 2 * MuonFixture::kSize;
  RandomValues random(3);
  const auto gradient = As<float>(random.Normal(kTotal + 64, 0.01));
  const auto moment = As<float>(random.Normal(kTotal, 0.1));
  constexpr float kFactor = 0.61F;
  const auto tensors = Repeat([&](TestDevice& device) {
    const MuonArguments a = Place(device, f.slices, kFactor);
    float* const m = device.Upload(moment);
    auto* const updates = device.Allocate<__nv_bfloat16>(kTotal);
    MuonMomentum(a, device.Upload(gradient), m, updates, device.stream());
    return std::vector<Doubles>{device.Values(m, kTotal), device.Values(updates, kTotal)};
  });
  std::vector<float> m = moment;
  std::vector<float> weight(m.size());
  std::vector<float> scratch(Size(MuonScratchSize(MuonFixture::kRows, MuonFixture::kCols)));
  for (int64_t at = 0; at < kTotal; at += MuonFixture::kSize) {
    const MuonStep<float> step = {kMuon.momentum, kMuon.learning_rate, kMuon.weight_decay, kFactor};
    step.Apply(MuonFixture::kRows, MuonFixture::kCols,
               gradient.data() + MuonFixture::GradientAt(at), weight.data() + at, m.data() + at,
               scratch);
  }
  EXPECT_EQ(As<float>(tensors[0]), m);
  for (int64_t i = 0; i < kTotal; ++i) {
    const float g = gradient[Size(MuonFixture::GradientAt(i))] * kFactor;
    const float update = g + kMuon.momentum * m[Size(i)];
    ASSERT_EQ(tensors[1][Size(i)], RoundToBf16(static_cast<double>(update))) << i;
  }
}

TEST(MuonKernelTest, EveryMatrixIsScaledToNormOne) {
  constexpr int64_t kCount = 3, kSize = 40 * 504;  // More than a block's part.
  RandomValues random(4);
  Doubles matrices;
  for (const double deviation : {1e-6, 1.0, 300.0}) {
    const Doubles matrix = random.Normal(kSize, deviation);
    matrices.insert(matrices.end(), matrix.begin(), matrix.end());
  }
  const auto tensors = Repeat([&](TestDevice& device) {
    auto* const values = device.UploadBf16(matrices);
    MuonNormalize(kCount, kSize, values,
                  device.Allocate<double>(MuonNormalizeScratch(kCount, kSize)), device.stream());
    return std::vector<Doubles>{device.Values(values, kCount * kSize)};
  });
  for (int64_t i = 0; i < kCount; ++i) {
    const Doubles actual(tensors[0].begin() + i * kSize, tensors[0].begin() + (i + 1) * kSize);
    Doubles oracle(matrices.begin() + i * kSize, matrices.begin() + (i + 1) * kSize);
    const double norm = std::sqrt(worker::SumOfSquares(std::span<const double>(oracle)));
    for (double& value : oracle) value /= norm + 1e-7;
    ExpectCloseBf16("matrix", actual, oracle);
  }
}

TEST(MuonKernelTest, UpdateDecaysAndStepsAsTheCpu) {
  const MuonFixture f;
  constexpr int64_t kTotal = 2 * MuonFixture::kSize;
  RandomValues random(5);
  const auto master = As<float>(random.Normal(kTotal));
  const Doubles updates = random.Normal(kTotal, 0.05);
  const auto tensors = Repeat([&](TestDevice& device) {
    const MuonArguments a = Place(device, f.slices, 1);
    float* const w = device.Upload(master);
    auto* const weight = device.Allocate<__nv_bfloat16>(kTotal);
    MuonUpdate(a, device.UploadBf16(updates), w, weight, device.stream());
    return std::vector<Doubles>{device.Values(w, kTotal), device.Values(weight, kTotal)};
  });
  const float decay = kMuon.learning_rate * kMuon.weight_decay;
  const auto step_size =
      static_cast<float>(static_cast<double>(kMuon.learning_rate) * f.slices[0].shape);
  for (int64_t i = 0; i < kTotal; ++i) {
    float w = master[Size(i)];
    w -= decay * w;
    w -= step_size * static_cast<float>(updates[Size(i)]);
    ASSERT_EQ(static_cast<float>(tensors[0][Size(i)]), w) << i;
  }
  EXPECT_EQ(tensors[1], RoundToBf16(tensors[0]));
}

TEST(MuonKernelTest, AGradientThatIsNotFiniteChangesNothing) {
  TestDevice device;
  std::vector<OptimizerSlice> slices;
  AppendSlices({}, 96, &slices);
  const MuonArguments a = Place(device, slices, 1, /*finite=*/false);
  const Doubles ones(96, 1);
  float* const moment = device.UploadFloat(ones);
  float* const master = device.UploadFloat(ones);
  auto* const weight = device.UploadBf16(ones);
  auto* const updates = device.UploadBf16(Doubles(96, std::nan("")));
  MuonMomentum(a, device.UploadFloat(Doubles(96, std::nan(""))), moment, updates, device.stream());
  MuonUpdate(a, updates, master, weight, device.stream());
  EXPECT_EQ(device.Values(moment, 96), ones);
  EXPECT_EQ(device.Values(master, 96), ones);
  EXPECT_EQ(device.Values(weight, 96), ones);
}

}  // namespace
}  // namespace causeway::worker::cuda
