// QK-norm and RoPE against the CPU's kernels in double.
#include "worker/backend/cuda/kernels/kernels.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker::cuda {
namespace {

struct RotaryCase {
  int64_t sequences, length, query_heads, kv_heads, head_dim;
  int64_t tokens() const { return sequences * length; }
  int64_t rotated() const { return (query_heads + kv_heads) * head_dim; }
  int64_t stride() const { return rotated() + kv_heads * head_dim; }  // With the values.
  std::string name() const {
    return absl::StrCat(tokens(), " tokens, ", query_heads, " + ", kv_heads, " heads of ",
                        head_dim);
  }
};

const RotaryCase kRotaryCases[] = {{1, 1, 1, 1, 32},   {1, 5, 2, 1, 64}, {3, 7, 4, 2, 96},
                                   {1, 33, 8, 1, 128}, {2, 3, 3, 3, 16}, {2, 4, 2, 2, 80},
                                   {1, 3, 1, 1, 512},  {1, 4, 2, 1, 2},  {2, 3, 4, 4, 20},
                                   {1, 3, 2, 1, 100},  {1, 2, 1, 1, 250}};

struct Tensors {
  Doubles heads, dheads, query_weight, key_weight, cosine, sine;
};

Tensors MakeTensors(const RotaryCase& c) {
  RandomValues random(static_cast<uint32_t>(c.head_dim));
  Tensors t = {random.Normal(c.tokens() * c.stride()),
               random.Normal(c.tokens() * c.stride(), 0.1),
               random.Normal(c.head_dim, 0.2, 1),
               random.Normal(c.head_dim, 0.2, 1),
               {},
               {}};
  for (int64_t position = 0; position < c.length; ++position) {
    for (int64_t i = 0; i < c.head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
      t.cosine.push_back(static_cast<double>(static_cast<float>(std::cos(angle))));
      t.sine.push_back(static_cast<double>(static_cast<float>(std::sin(angle))));
    }
  }
  return t;
}

RotaryShape Upload(const RotaryCase& c, const Tensors& t, bool norm, TestDevice& device) {
  RotaryShape shape = {.tokens = c.tokens(),
                       .length = c.length,
                       .query_heads = c.query_heads,
                       .kv_heads = c.kv_heads,
                       .head_dim = c.head_dim,
                       .epsilon = 1e-6F};
  if (norm) {
    shape.query_weight = device.UploadBf16(t.query_weight);
    shape.key_weight = device.UploadBf16(t.key_weight);
  }
  shape.cosine = device.UploadFloat(t.cosine);
  shape.sine = device.UploadFloat(t.sine);
  return shape;
}

TEST(RotaryTest, ForwardIsTheOraclesInPlaceAndElsewhere) {
  for (const RotaryCase& c : kRotaryCases) {
    const Tensors t = MakeTensors(c);
    const int64_t size = c.tokens() * c.stride();
    for (const bool norm : {false, true}) {
      const auto tensors = Repeat([&](TestDevice& device) {
        RotaryForwardArguments a = {.shape = Upload(c, t, norm, device)};
        auto* const in_place = device.UploadBf16(t.heads);
        a.in = a.out = in_place;
        a.in_stride = a.out_stride = c.stride();
        auto* const in = device.UploadBf16(t.heads);
        RotaryForwardArguments b = a;
        b.in = in;
        b.out = device.Allocate<__nv_bfloat16>(c.tokens() * c.rotated());
        b.out_stride = c.rotated();
        RotaryForward(a, device.stream());
        RotaryForward(b, device.stream());
        EXPECT_EQ(device.Values(in, size), t.heads);
        return std::vector<Doubles>{device.Values(in_place, size),
                                    device.Values(b.out, c.tokens() * c.rotated())};
      });
      Doubles oracle = t.heads;
      Doubles raw(Size(c.rotated())), inverse(Size(c.query_heads + c.kv_heads));
      Doubles elsewhere;
      for (int64_t n = 0; n < c.tokens(); ++n) {
        const int64_t angle = n % c.length * (c.head_dim / 2);
        GetKernels<double>().rotate({c.query_heads, c.kv_heads, c.head_dim},
                                    norm ? t.query_weight.data() : nullptr, t.key_weight.data(),
                                    1e-6, t.cosine.data() + angle, t.sine.data() + angle,
                                    oracle.data() + n * c.stride(), raw.data(), inverse.data());
        const double* const row = tensors[0].data() + n * c.stride();
        elsewhere.insert(elsewhere.end(), row, row + c.rotated());
      }
      ExpectCloseBf16(c.name(), tensors[0], oracle);
      EXPECT_EQ(tensors[1], elsewhere) << c.name();
    }
  }
}

TEST(RotaryTest, BackwardIsTheOracles) {
  for (const RotaryCase& c : kRotaryCases) {
    const Tensors t = MakeTensors(c);
    for (const bool norm : {false, true}) {
      for (const bool accumulate : {false, true}) {
        if (accumulate && !norm) continue;
        const auto tensors = Repeat([&](TestDevice& device) {
          RotaryBackwardArguments a = {.shape = Upload(c, t, norm, device)};
          a.dheads = device.UploadBf16(t.dheads);
          a.dheads_stride = c.stride();
          if (norm) {
            a.raw = device.UploadBf16(t.heads);
            a.raw_stride = c.stride();
            a.accumulate_weight = accumulate;
            a.dquery_weight = device.UploadFloat(Doubles(Size(c.head_dim), 3));
            a.dkey_weight = device.UploadFloat(Doubles(Size(c.head_dim), 4));
            a.scratch = device.Allocate<float>(RotaryBackwardScratch(a.shape));
          }
          RotaryBackward(a, device.stream());
          std::vector<Doubles> results = {device.Values(a.dheads, c.tokens() * c.stride())};
          if (norm) {
            results.push_back(device.Values(a.dquery_weight, c.head_dim));
            results.push_back(device.Values(a.dkey_weight, c.head_dim));
          }
          return results;
        });
        const Kernels<double>& oracle = GetKernels<double>();
        const HeadShape shape = {c.query_heads, c.kv_heads, c.head_dim};
        const double* const query_weight = norm ? t.query_weight.data() : nullptr;
        Doubles heads = t.heads;
        Doubles gradient = t.dheads;
        Doubles raw(Size(c.rotated())), inverse(Size(c.query_heads + c.kv_heads));
        Doubles dweights(Size(2 * c.head_dim));
        for (int64_t n = 0; n < c.tokens(); ++n) {
          const int64_t angle = n % c.length * (c.head_dim / 2);
          oracle.rotate(shape, query_weight, t.key_weight.data(), 1e-6, t.cosine.data() + angle,
                        t.sine.data() + angle, heads.data() + n * c.stride(), raw.data(),
                        inverse.data());
          oracle.rotate_backward(shape, query_weight, t.key_weight.data(), t.cosine.data() + angle,
                                 t.sine.data() + angle, raw.data(), inverse.data(),
                                 gradient.data() + n * c.stride(), dweights.data());
        }
        ExpectCloseBf16(c.name() + ", gradient", tensors[0], gradient);
        if (!norm) continue;
        Doubles dquery(dweights.begin(), dweights.begin() + c.head_dim);
        Doubles dkey(dweights.begin() + c.head_dim, dweights.end());
        for (double& value : dquery) value += accumulate ? 3 : 0;
        for (double& value : dkey) value += accumulate ? 4 : 0;
        ExpectCloseFloat(c.name() + ", query weights", tensors[1], dquery);
        ExpectCloseFloat(c.name() + ", key weights", tensors[2], dkey);
      }
    }
  }
}

TEST(RotaryTest, WithoutAnglesOnlyTheNormIsLeft) {
  const RotaryCase c = {1, 3, 2, 1, 32};
  Tensors t = MakeTensors(c);
  TestDevice device;
  RotaryForwardArguments a = {.shape = Upload(c, t, /*norm=*/true, device)};
  a.in = a.out = device.UploadBf16(t.heads);
  a.in_stride = a.out_stride = c.stride();
  RotaryForwardArguments still = a;
  still.shape.cosine = still.shape.sine = nullptr;
  still.in = still.out = device.UploadBf16(t.heads);
  RotaryForward(still, device.stream());
  a.shape.cosine = device.UploadFloat(Doubles(t.cosine.size(), 1));
  a.shape.sine = device.UploadFloat(Doubles(t.sine.size(), 0));
  RotaryForward(a, device.stream());
  EXPECT_EQ(device.Values(still.out, c.tokens() * c.stride()),
            device.Values(a.out, c.tokens() * c.stride()));
}

}  // namespace
}  // namespace causeway::worker::cuda
