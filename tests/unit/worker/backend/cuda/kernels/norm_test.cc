// RMSNorm and LayerNorm against the CPU's kernels in double.
#include "worker/backend/cuda/kernels/kernels.h"

#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker::cuda {
namespace {

constexpr float kEpsilon = 1e-5F;

struct NormCase {
  int64_t rows;
  int64_t width;
  bool layer_norm;
};

// One, two, four and eight warps per row, with one to eight vectors per lane, full and ragged.
const NormCase kNormCases[] = {
    {1, 8, false},    {3, 40, true},     {9, 264, false},  {17, 264, true}, {2, 768, false},
    {5, 1032, false}, {3, 1032, true},   {3, 2304, false}, {3, 2304, true}, {2, 4104, false},
    {2, 6400, true},  {2, 16384, false}, {1, 8200, true},
};

std::string NameOf(const NormCase& c) {
  return absl::StrCat(c.layer_norm ? "LayerNorm " : "RMSNorm ", c.rows, " x ", c.width);
}

struct Norm {
  Doubles x, addend, weight, bias;
};

Norm MakeNorm(const NormCase& c) {
  RandomValues random(static_cast<uint32_t>(c.width + c.rows));
  return {random.Normal(c.rows * c.width, 2, 0.5), random.Normal(c.rows * c.width),
          random.Normal(c.width, 0.2, 1), random.Normal(c.width, 0.5)};
}

// x_out, out and statistics of the oracle.
struct Forward {
  Doubles x_out, out, inverse;
};

Forward OracleForward(const NormCase& c, const Norm& norm, const Doubles& x,
                      const Doubles* addend) {
  const Kernels<double>& oracle = GetKernels<double>();
  Forward f = {x, Doubles(x.size()), Doubles(static_cast<size_t>(c.rows))};
  const double* const add = addend == nullptr ? nullptr : addend->data();
  oracle.norm(x.data(), add, norm.weight.data(), c.layer_norm ? norm.bias.data() : nullptr,
              kEpsilon, c.rows, c.width, f.x_out.data(), f.out.data(), f.inverse.data());
  return f;
}

NormForwardArguments PlaceForward(TestDevice& device, const NormCase& c, const Norm& norm) {
  NormForwardArguments a = {.rows = c.rows, .width = c.width, .epsilon = kEpsilon};
  a.x = device.UploadBf16(norm.x);
  a.weight = device.UploadBf16(norm.weight);
  a.out = device.Allocate<__nv_bfloat16>(c.rows * c.width);
  a.inverse_deviation = device.Allocate<float>(c.rows);
  if (c.layer_norm) {
    a.bias = device.UploadBf16(norm.bias);
    a.mean = device.Allocate<float>(c.rows);
  }
  return a;
}

TEST(NormTest, ForwardIsTheOraclesAtAnyWidth) {
  for (const NormCase& c : kNormCases) {
    const Norm norm = MakeNorm(c);
    for (const bool add : {false, true}) {
      const auto tensors = Repeat([&](TestDevice& device) {
        NormForwardArguments a = PlaceForward(device, c, norm);
        __nv_bfloat16* const x = device.UploadBf16(norm.x);
        a.x = x;
        if (add) {
          a.addend = device.UploadBf16(norm.addend);
          a.x_out = x;  // In place.
        }
        NormForward(a, device.stream());
        return std::vector<Doubles>{device.Values(x, c.rows * c.width),
                                    device.Values(a.out, c.rows * c.width),
                                    device.Values(a.inverse_deviation, c.rows)};
      });
      const Forward oracle = OracleForward(c, norm, norm.x, add ? &norm.addend : nullptr);
      const Doubles sum = RoundToBf16(oracle.x_out);
      const Forward emulated = OracleForward(c, norm, sum, nullptr);
      EXPECT_EQ(tensors[0], sum) << NameOf(c);
      ExpectClose(NameOf(c), tensors[1], oracle.out, RoundToBf16(emulated.out));
      ExpectClose(NameOf(c) + ", statistics", tensors[2], oracle.inverse, emulated.inverse);
    }
  }
}

TEST(NormTest, BackwardIsTheOraclesAtAnyWidth) {
  const Kernels<double>& oracle = GetKernels<double>();
  for (const NormCase& c : kNormCases) {
    const Norm norm = MakeNorm(c);
    RandomValues random(7);
    const Doubles dout = random.Normal(c.rows * c.width, 0.1);
    const Doubles dx_before = random.Normal(c.rows * c.width, 0.1);
    const Doubles dweight_before = random.Normal(c.width);
    const Forward forward = OracleForward(c, norm, norm.x, nullptr);
    for (const bool accumulate : {false, true}) {
      const auto tensors = Repeat([&](TestDevice& device) {
        const NormForwardArguments f = PlaceForward(device, c, norm);
        NormForward(f, device.stream());

        NormBackwardArguments a = {.rows = c.rows, .width = c.width};
        a.dout = device.UploadBf16(dout);
        a.x = f.x;
        a.weight = f.weight;
        a.bias = f.bias;
        a.inverse_deviation = f.inverse_deviation;
        a.mean = f.mean;
        a.accumulate_dx = a.accumulate_weight = accumulate;
        a.dx = device.UploadBf16(dx_before);
        a.out = accumulate ? nullptr : device.Allocate<__nv_bfloat16>(c.rows * c.width);
        a.dweight = device.UploadFloat(dweight_before);
        a.dbias = device.UploadFloat(dweight_before);
        a.scratch = device.Allocate<float>(NormBackwardScratch(c.rows, c.width, c.layer_norm));
        NormBackward(a, device.stream());
        std::vector<Doubles> results = {device.Values(a.dx, c.rows * c.width),
                                        device.Values(a.dweight, c.width),
                                        device.Values(a.dbias, c.width)};
        if (a.out != nullptr) {
          EXPECT_EQ(device.Values(a.out, c.rows * c.width), device.Values(f.out, c.rows * c.width))
              << "the output again: " << NameOf(c);
        }
        return results;
      });
      Doubles dx = dx_before;
      Doubles out(dx.size());
      const Doubles zeros(static_cast<size_t>(c.width));
      Doubles dweight = accumulate ? dweight_before : zeros;
      Doubles dbias = c.layer_norm ? dweight : dweight_before;
      oracle.norm_backward(dout.data(), norm.x.data(), norm.weight.data(),
                           c.layer_norm ? norm.bias.data() : nullptr, forward.inverse.data(),
                           c.rows, c.width, accumulate, dx.data(), out.data(), dweight.data(),
                           dbias.data());
      ExpectCloseBf16(NameOf(c) + ", dx", tensors[0], dx);
      ExpectCloseFloat(NameOf(c) + ", dweight", tensors[1], dweight);
      ExpectCloseFloat(NameOf(c) + ", dbias", tensors[2], dbias);
    }
  }
}

// Blocks take several turns, in which one or two warps share a row.
TEST(NormTest, MoreRowsThanBlocksAddUpInTheWeightsGradient) {
  const Kernels<double>& oracle = GetKernels<double>();
  for (const auto& [rows, width, layer_norm] :
       {NormCase{8 * 528 + 11, 8, true}, {2130, 1032, false}}) {
    RandomValues random(3);
    const Doubles x = random.Normal(rows * width);
    const Doubles weight = random.Normal(width);
    const Doubles inverse(static_cast<size_t>(rows), 0.5);
    Doubles means;
    for (int64_t row = 0; row < rows; ++row) {
      const double* const begin = x.data() + row * width;
      means.push_back(std::accumulate(begin, begin + width, 0.0) / static_cast<double>(width));
    }
    TestDevice device;
    NormBackwardArguments a = {.rows = rows, .width = width};
    a.x = a.dout = device.UploadBf16(x);
    a.weight = device.UploadBf16(weight);
    if (layer_norm) a.bias = a.weight;
    a.inverse_deviation = device.UploadFloat(inverse);
    a.mean = device.UploadFloat(means);
    a.dx = device.Allocate<__nv_bfloat16>(rows * width);
    a.dweight = device.Allocate<float>(width);
    a.dbias = device.UploadFloat(Doubles(weight.size(), 0));
    a.scratch = device.Allocate<float>(NormBackwardScratch(rows, width, layer_norm));
    NormBackward(a, device.stream());
    Doubles dx(x.size()), out(x.size()), dweight(weight.size()), dbias(weight.size());
    oracle.norm_backward(x.data(), x.data(), weight.data(), layer_norm ? weight.data() : nullptr,
                         inverse.data(), rows, width, /*accumulate=*/false, dx.data(), out.data(),
                         dweight.data(), dbias.data());
    ExpectCloseBf16("dx", device.Values(a.dx, rows * width), dx);
    ExpectCloseFloat("dweight", device.Values(a.dweight, width), dweight);
    ExpectCloseFloat("dbias", device.Values(a.dbias, width), dbias);
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
