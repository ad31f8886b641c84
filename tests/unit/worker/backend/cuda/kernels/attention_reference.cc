#include "tests/unit/worker/backend/cuda/kernels/attention_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cpu/attention.h"

namespace causeway::worker::cuda {
namespace {

int64_t Tokens(const AttentionShape& s) { return int64_t{s.sequences} * s.length; }
int64_t QkvWidth(const AttentionShape& s) { return int64_t{s.heads + 2 * s.kv_heads} * s.head_dim; }
int64_t OutWidth(const AttentionShape& s) { return int64_t{s.heads} * s.head_dim; }

// Calls visit(sequence, head, begin, length) for all that attends to itself alone.
template <typename Visit>
void ForEachDocument(const AttentionCase& c, const Visit& visit) {
  const std::vector<int32_t> whole = {c.shape.length};
  for (int sequence = 0; sequence < c.shape.sequences; ++sequence) {
    for (int head = 0; head < c.shape.heads; ++head) {
      int64_t begin = 0;
      for (const int32_t length : c.documents.empty() ? whole : c.documents) {
        visit(sequence, head, begin, int64_t{length});
        begin += length;
      }
    }
  }
}

// The CPU backend's result.
AttentionTensors Oracle(const AttentionCase& c, const AttentionInputs& inputs) {
  const AttentionShape& s = c.shape;
  AttentionTensors result;
  result.out.resize(inputs.dout.size());
  result.log_sum_exp.resize(Size(Tokens(s) * s.heads));
  result.dqkv.assign(inputs.qkv.size(), 0);
  ForEachDocument(c, [&](int sequence, int head, int64_t begin, int64_t length) {
    const int64_t token = int64_t{sequence} * s.length + begin;
    const int64_t kv_head = head / (s.heads / s.kv_heads);
    const double* const q = inputs.qkv.data() + token * QkvWidth(s) + int64_t{head} * s.head_dim;
    const int64_t k_at = token * QkvWidth(s) + (s.heads + kv_head) * s.head_dim;
    const int64_t v_at = k_at + int64_t{s.kv_heads} * s.head_dim;
    const int64_t out_at = token * OutWidth(s) + int64_t{head} * s.head_dim;
    const AttentionHead<double> rows = {
        .q = q,
        .k = inputs.qkv.data() + k_at,
        .v = inputs.qkv.data() + v_at,
        .qkv_stride = QkvWidth(s),
        .out = result.out.data() + out_at,
        .out_stride = OutWidth(s),
        .log_sum_exp =
            result.log_sum_exp.data() + (int64_t{sequence} * s.heads + head) * s.length + begin};
    worker::AttentionForward<double>(length, s.head_dim, rows);
    std::vector<double> dk(Size(length * s.head_dim)), dv(dk.size());
    worker::AttentionBackward<double>(
        length, s.head_dim, rows,
        {.dout = inputs.dout.data() + out_at,
         .dq = result.dqkv.data() + token * QkvWidth(s) + int64_t{head} * s.head_dim,
         .dq_stride = QkvWidth(s),
         .dk = dk.data(),
         .dv = dv.data(),
         .dkv_stride = s.head_dim});
    for (int64_t row = 0; row < length; ++row) {
      for (int64_t d = 0; d < s.head_dim; ++d) {
        result.dqkv[Size(k_at + row * QkvWidth(s) + d)] += dk[Size(row * s.head_dim + d)];
        result.dqkv[Size(v_at + row * QkvWidth(s) + d)] += dv[Size(row * s.head_dim + d)];
      }
    }
  });
  return result;
}

// The same in plain loops, rounded to bf16 where the kernels round.
AttentionTensors Emulation(const AttentionCase& c, const AttentionInputs& inputs) {
  const AttentionShape& s = c.shape;
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  AttentionTensors result;
  result.out.resize(inputs.dout.size());
  result.log_sum_exp.resize(Size(Tokens(s) * s.heads));
  result.dqkv.assign(inputs.qkv.size(), 0);
  ForEachDocument(c, [&](int sequence, int head, int64_t begin, int64_t length) {
    const int64_t token = int64_t{sequence} * s.length + begin;
    const int64_t kv_head = head / (s.heads / s.kv_heads);
    const int64_t q_at = token * QkvWidth(s) + int64_t{head} * s.head_dim;
    const int64_t k_at = token * QkvWidth(s) + (s.heads + kv_head) * s.head_dim;
    const int64_t v_at = k_at + int64_t{s.kv_heads} * s.head_dim;
    const int64_t out_at = token * OutWidth(s) + int64_t{head} * s.head_dim;
    const auto dot = [&](const std::vector<double>& a, int64_t a_at, const std::vector<double>& b,
                         int64_t b_at) {
      double sum = 0;
      for (int64_t d = 0; d < s.head_dim; ++d) sum += a[Size(a_at + d)] * b[Size(b_at + d)];
      return sum;
    };
    // This query head's, [length, head_dim].
    std::vector<double> dk(Size(length * s.head_dim)), dv(dk.size());
    const auto add = [&](double factor, const std::vector<double>& from, int64_t from_at,
                         std::vector<double>& to, int64_t to_at) {
      for (int64_t d = 0; d < s.head_dim; ++d)
        to[Size(to_at + d)] += factor * from[Size(from_at + d)];
    };
    for (int64_t i = 0; i < length; ++i) {
      const int64_t q_row = q_at + i * QkvWidth(s);
      const int64_t out_row = out_at + i * OutWidth(s);
      std::vector<double> scores(Size(i + 1));
      double maximum = -INFINITY;
      for (int64_t j = 0; j <= i; ++j) {
        scores[Size(j)] = scale * dot(inputs.qkv, q_row, inputs.qkv, k_at + j * QkvWidth(s));
        maximum = std::max(maximum, scores[Size(j)]);
      }
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        const double p = std::exp(scores[Size(j)] - maximum);
        sum += p;
        add(RoundToBf16(p), inputs.qkv, v_at + j * QkvWidth(s), result.out, out_row);
      }
      for (int64_t d = 0; d < s.head_dim; ++d) {
        result.out[Size(out_row + d)] = RoundToBf16(result.out[Size(out_row + d)] / sum);
      }
      const double log_sum_exp = maximum + std::log(sum);
      result.log_sum_exp[Size((int64_t{sequence} * s.heads + head) * s.length + begin + i)] =
          static_cast<float>(log_sum_exp);
      const double delta = dot(inputs.dout, out_row, result.out, out_row);
      for (int64_t j = 0; j <= i; ++j) {
        const int64_t k_row = k_at + j * QkvWidth(s);
        const int64_t v_row = v_at + j * QkvWidth(s);
        const double p = std::exp(scores[Size(j)] - log_sum_exp);
        const double ds = RoundToBf16(p * (dot(inputs.dout, out_row, inputs.qkv, v_row) - delta));
        add(RoundToBf16(p), inputs.dout, out_row, dv, j * s.head_dim);
        add(scale * ds, inputs.qkv, q_row, dk, j * s.head_dim);
        add(scale * ds, inputs.qkv, k_row, result.dqkv, q_row);
      }
    }
    const auto add_head = [&](const std::vector<double>& from, int64_t to_at) {
      for (int64_t at = 0; at < length * s.head_dim; ++at) {
        const double value = from[Size(at)];
        result.dqkv[Size(to_at + at / s.head_dim * QkvWidth(s) + at % s.head_dim)] +=
            c.rounds_heads ? RoundToBf16(value) : value;
      }
    };
    add_head(dk, k_at);
    add_head(dv, v_at);
  });
  for (double& value : result.dqkv) value = RoundToBf16(value);
  return result;
}

struct Error {
  double norm = 0;     // Norm of the differences; NaN if there is one.
  double largest = 0;  // Largest of their absolute values.
};
Error Difference(const std::vector<double>& values, const std::vector<double>& oracle) {
  Error error;
  for (size_t i = 0; i < oracle.size(); ++i) {
    const double difference = std::abs(values[i] - oracle[i]);
    error.largest = std::max(error.largest, difference);
    error.norm += difference * difference;
  }
  error.norm = std::sqrt(error.norm);
  return error;
}

void ExpectWithin(const char* what, const std::vector<double>& device,
                  const std::vector<double>& emulation, const std::vector<double>& oracle) {
  ASSERT_EQ(device.size(), oracle.size());
  double largest = 0;
  for (const double value : oracle) largest = std::max(largest, std::abs(value));
  const Error allowed = Difference(emulation, oracle);
  const Error error = Difference(device, oracle);
  // fp32 arithmetic has errors of its own, which show where nothing is rounded to bf16.
  const double fp32 = 4e-6 * (1 + largest);
  EXPECT_LE(error.norm, 1.5 * allowed.norm + fp32 * std::sqrt(static_cast<double>(oracle.size())))
      << what;
  EXPECT_LE(error.largest, 1.5 * allowed.largest + fp32) << what;
}

}  // namespace

AttentionInputs MakeInputs(const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  AttentionInputs inputs;
  RandomValues random(static_cast<uint32_t>(s.length * 131 + s.heads * 17 + s.head_dim));
  inputs.qkv = random.Normal(Tokens(s) * QkvWidth(s), c.spread);
  inputs.dout = random.Normal(Tokens(s) * OutWidth(s));
  if (c.documents.empty()) return inputs;
  for (int sequence = 0; sequence < s.sequences; ++sequence) {
    int32_t begin = 0;
    for (const int32_t length : c.documents) {
      inputs.starts.insert(inputs.starts.end(), Size(length), begin);
      begin += length;
    }
  }
  return inputs;
}

AttentionTensors OnDevice(AttentionProvider& provider, const AttentionCase& c,
                          const AttentionInputs& inputs) {
  const AttentionShape& s = c.shape;
  EXPECT_EQ(AttentionRefusal(s), nullptr);
  TestDevice device;
  const int64_t rows = Tokens(s) * s.heads;
  const AttentionCall call = {
      .shape = s,
      .qkv = device.UploadBf16(inputs.qkv),
      .document_starts = inputs.starts.empty() ? nullptr : device.Upload(inputs.starts),
      .out = device.Allocate<__nv_bfloat16>(std::ssize(inputs.dout)),
      .log_sum_exp = device.Allocate<float>(rows),
      .dout = device.UploadBf16(inputs.dout),
      .delta = device.Allocate<float>(rows),
      .dqkv = device.Allocate<__nv_bfloat16>(std::ssize(inputs.qkv))};
  EXPECT_EQ(provider.Forward(call, device.stream()), absl::OkStatus());
  EXPECT_EQ(provider.Backward(call, device.stream()), absl::OkStatus());
  return {.out = device.Values(call.out, std::ssize(inputs.dout)),
          .log_sum_exp = device.Values(call.log_sum_exp, rows),
          .dqkv = device.Values(call.dqkv, std::ssize(inputs.qkv))};
}

void ExpectLikeOracle(AttentionProvider& provider, const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  SCOPED_TRACE(std::to_string(s.sequences) + " sequences of " + std::to_string(s.length) + ", " +
               std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " +
               std::to_string(s.head_dim));
  const AttentionInputs inputs = MakeInputs(c);
  const AttentionTensors oracle = Oracle(c, inputs);
  const AttentionTensors emulation = Emulation(c, inputs);
  const AttentionTensors device = OnDevice(provider, c, inputs);
  ExpectWithin("out", device.out, emulation.out, oracle.out);
  ExpectWithin("log_sum_exp", device.log_sum_exp, emulation.log_sum_exp, oracle.log_sum_exp);
  ExpectWithin("dqkv", device.dqkv, emulation.dqkv, oracle.dqkv);
}

}  // namespace causeway::worker::cuda
