#include "worker/backend/cpu/decoder.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/backend/cpu/attention.h"

namespace causeway::worker {
namespace {

// Tokens of a prompt at a time, and rows of its scores. Part of the result's bits.
constexpr int64_t kPromptRows = 256;
constexpr int64_t kScoreRows = 128;
// Weights that one task reads.
constexpr int64_t kTaskValues = 64 * 1024;

}  // namespace

template <typename T>
CpuDecoder<T>::CpuDecoder(const v1::ModelConfig& model, const FragmentPlan& plan, int sequences,
                          ThreadPool* pool, int64_t capacity)
    : layout_(ParameterLayout::Create(model, plan)),
      kernels_(GetKernels<T>()),
      pool_(pool),
      capacity_(capacity > 0 ? std::min<int64_t>(capacity, model.sequence_length())
                             : model.sequence_length()),
      shape_(model),
      epsilon_(static_cast<T>(model.norm_epsilon())),
      score_scale_(static_cast<T>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)))),
      lengths_(Size(sequences)),
      keys_(layout_.blocks.size()),
      values_(layout_.blocks.size()) {
  for (auto* cache : {&keys_, &values_}) {
    for (AlignedVector<T>& block : *cache)
      block.resize(Size(sequences * capacity_ * shape_.kv_width));
  }
  const int64_t rows = std::max<int64_t>(sequences, std::min(capacity_, kPromptRows));
  for (auto* buffer : {&x_, &normed_, &projected_}) buffer->resize(Size(rows * shape_.width));
  inverse_rms_.resize(Size(rows));
  qkv_.resize(Size(rows * shape_.qkv_width));
  raw_qk_.resize(Size(rows * (shape_.query_width + shape_.kv_width)));
  qk_rms_.resize(Size(rows * (shape_.heads + shape_.kv_heads)));
  attention_.resize(Size(rows * shape_.query_width));
  pre_activation_.resize(Size(rows * shape_.mlp_inputs));
  hidden_.resize(Size(rows * shape_.mlp_width));
  FillAngles(model, capacity_, cosine_, sine_);
}

template <typename T>
void CpuDecoder<T>::Append(std::span<const T> parameters, int sequence,
                           std::span<const int32_t> tokens, std::span<T> logits) {
  if (tokens.empty() || static_cast<int64_t>(logits.size()) != shape_.vocabulary) {
    Fatal(absl::StrCat("Append takes tokens and a span of ", shape_.vocabulary, " logits, not ",
                       tokens.size(), " and ", logits.size()));
  }
  while (!tokens.empty()) {
    const auto count = std::min(tokens.size(), Size(kPromptRows));
    rows_.clear();
    for (const int32_t token : tokens.first(count)) {
      CheckToken(parameters, sequence, token);
      rows_.push_back({sequence, lengths_[Size(sequence)]++, token});
    }
    Run(parameters.data(), /*prompt=*/true);
    tokens = tokens.subspan(count);
  }
  WriteLogits(parameters.data(), std::ssize(rows_) - 1, logits);
}

template <typename T>
void CpuDecoder<T>::Step(std::span<const T> parameters, std::span<const NextToken> next,
                         std::span<T> logits) {
  if (next.empty() || static_cast<int64_t>(logits.size()) != std::ssize(next) * shape_.vocabulary) {
    Fatal(absl::StrCat("Step takes tokens and ", shape_.vocabulary, " logits for each, not ",
                       next.size(), " and ", logits.size()));
  }
  rows_.clear();
  for (const NextToken& token : next) {
    CheckToken(parameters, token.sequence, token.token);
    rows_.push_back({token.sequence, lengths_[Size(token.sequence)]++, token.token});
  }
  Run(parameters.data(), /*prompt=*/false);
  WriteLogits(parameters.data(), 0, logits);
}

template <typename T>
void CpuDecoder<T>::CheckToken(std::span<const T> parameters, int sequence, int32_t token) const {
  if (static_cast<int64_t>(parameters.size()) != layout_.arena_size) {
    Fatal(absl::StrCat("parameters must have the arena's ", layout_.arena_size, " values, not ",
                       parameters.size()));
  }
  if (sequence < 0 || sequence >= sequences() || lengths_[Size(sequence)] >= capacity_ ||
      token < 0 || token >= shape_.vocabulary) {
    Fatal(absl::StrCat("token ", token, " for sequence ", sequence, ": there are ", sequences(),
                       " sequences of up to ", capacity_, " tokens, and a vocabulary of ",
                       shape_.vocabulary));
  }
}

template <typename T>
void CpuDecoder<T>::Run(const T* parameters, bool prompt) {
  const int64_t rows = std::ssize(rows_);
  for (int64_t n = 0; n < rows; ++n) {
    T* const out = x_.data() + n * shape_.width;
    std::copy_n(parameters + layout_.embedding + rows_[Size(n)].token * shape_.width, shape_.width,
                out);
    if (layout_.positions >= 0) {
      kernels_.add(parameters + layout_.positions + rows_[Size(n)].position * shape_.width,
                   shape_.width, out);
    }
  }
  for (size_t block = 0; block < layout_.blocks.size(); ++block) {
    const BlockLayout& at = layout_.blocks[block];
    Norm(parameters, at.attention_norm, block == 0 ? nullptr : projected_.data());
    Project(parameters, at.qkv, shape_.width, normed_.data(), qkv_.data(), shape_.qkv_width,
            prompt);
    RotateAndKeep(parameters, block);
    if (prompt) {
      AttendPrompt(block);
    } else {
      AttendStep(block);
    }
    Project(parameters, at.o, shape_.query_width, attention_.data(), projected_.data(),
            shape_.width, prompt);
    Norm(parameters, at.mlp_norm, projected_.data());
    Project(parameters, at.mlp_in, shape_.width, normed_.data(), pre_activation_.data(),
            shape_.mlp_inputs, prompt);
    (shape_.gated ? kernels_.swiglu : kernels_.gelu)(pre_activation_.data(), rows, shape_.mlp_width,
                                                     hidden_.data());
    Project(parameters, at.down, shape_.mlp_width, hidden_.data(), projected_.data(), shape_.width,
            prompt);
  }
}

template <typename T>
void CpuDecoder<T>::Norm(const T* arena, const NormLayout& norm, const T* addend) {
  kernels_.norm(x_.data(), addend, arena + norm.weight, norm.bias < 0 ? nullptr : arena + norm.bias,
                epsilon_, std::ssize(rows_), shape_.width, x_.data(), normed_.data(),
                inverse_rms_.data());
}

template <typename T>
void CpuDecoder<T>::MultiplyOnce(const T* weights, int64_t outputs, int64_t inputs, const T* in,
                                 int64_t rows, T* out, int64_t out_stride) {
  const int64_t per_task = std::max<int64_t>(1, kTaskValues / inputs);
  pool_->ParallelFor((outputs + per_task - 1) / per_task, [&](int64_t task) {
    const int64_t first = task * per_task;
    kernels_.dot_products(weights + first * inputs, std::min(per_task, outputs - first), inputs, in,
                          rows, out + first, out_stride);
  });
}

template <typename T>
void CpuDecoder<T>::Project(const T* arena, const ProjectionLayout& projection, int64_t inputs,
                            const T* in, T* out, int64_t outputs, bool prompt) {
  const int64_t rows = std::ssize(rows_);
  for (const ProjectionSlice& slice : projection.matrices) {
    if (prompt) {
      Gemm<T>(pool_, false, true, rows, slice.outputs, inputs, T{1}, in, inputs,
              arena + slice.offset, inputs, T{0}, out + slice.first_output, outputs);
    } else {
      MultiplyOnce(arena + slice.offset, slice.outputs, inputs, in, rows, out + slice.first_output,
                   outputs);
    }
  }
  for (const ProjectionSlice& slice : projection.biases) {
    for (int64_t n = 0; n < rows; ++n) {
      kernels_.add(arena + slice.offset, slice.outputs, out + n * outputs + slice.first_output);
    }
  }
}

template <typename T>
void CpuDecoder<T>::RotateAndKeep(const T* parameters, size_t block) {
  const BlockLayout& at = layout_.blocks[block];
  const HeadShape shape = {shape_.heads, shape_.kv_heads, shape_.head_dim};
  for (int64_t n = 0; n < std::ssize(rows_); ++n) {
    const Row& row = rows_[Size(n)];
    T* const heads = qkv_.data() + n * shape_.qkv_width;
    const int64_t angle = row.position * (shape_.head_dim / 2);
    kernels_.rotate(shape, shape_.qk_norm ? parameters + at.q_norm : nullptr,
                    shape_.qk_norm ? parameters + at.k_norm : nullptr, epsilon_,
                    cosine_.data() + angle, sine_.data() + angle, heads,
                    raw_qk_.data() + n * (shape_.query_width + shape_.kv_width),
                    qk_rms_.data() + n * shape.rotated());
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t place = row.position * shape_.head_dim;
      const T* const key = heads + shape_.query_width + head * shape_.head_dim;
      std::copy_n(key, shape_.head_dim, CacheAt(keys_, block, row.sequence, head) + place);
      std::copy_n(key + shape_.kv_width, shape_.head_dim,
                  CacheAt(values_, block, row.sequence, head) + place);
    }
  }
}

template <typename T>
void CpuDecoder<T>::AttendPrompt(size_t block) {
  const int64_t rows = std::ssize(rows_);
  const int sequence = rows_.front().sequence;
  const int64_t start = rows_.front().position;
  const int64_t stride = ScoreStride(capacity_);
  pool_->ParallelFor(shape_.heads, [&](int64_t head) {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const T* const keys = CacheAt(keys_, block, sequence, kv_head);
    const T* const values = CacheAt(values_, block, sequence, kv_head);
    T* const scores = ThreadScratch<T>(kScoreRows * (stride + 2)).data();
    T* const inverse_sum = scores + kScoreRows * stride;
    T* const log_sum_exp = inverse_sum + kScoreRows;
    for (int64_t first = 0; first < rows; first += kScoreRows) {
      const int64_t count = std::min(kScoreRows, rows - first);
      const int64_t columns = start + first + count;
      T* const out = attention_.data() + first * shape_.query_width + head * shape_.head_dim;
      GemmTile<T>(false, true, count, columns, shape_.head_dim, T{1},
                  qkv_.data() + first * shape_.qkv_width + head * shape_.head_dim, shape_.qkv_width,
                  keys, shape_.head_dim, T{0}, scores, stride);
      kernels_.causal_softmax(scores, count, columns, stride, start + first, score_scale_,
                              inverse_sum, log_sum_exp);
      GemmTile<T>(false, false, count, shape_.head_dim, columns, T{1}, scores, stride, values,
                  shape_.head_dim, T{0}, out, shape_.query_width);
      kernels_.scale_rows(out, count, shape_.head_dim, shape_.query_width, inverse_sum);
    }
  });
}

template <typename T>
void CpuDecoder<T>::AttendStep(size_t block) {
  pool_->ParallelFor(std::ssize(rows_) * shape_.heads, [&](int64_t task) {
    const int64_t n = task / shape_.heads;
    const int64_t head = task % shape_.heads;
    const Row& row = rows_[Size(n)];
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const int64_t columns = row.position + 1;
    T* const scores = ThreadScratch<T>(ScoreStride(capacity_) + 2).data();
    T* const inverse_sum = scores + ScoreStride(capacity_);
    T* const out = attention_.data() + n * shape_.query_width + head * shape_.head_dim;
    kernels_.dot_products(CacheAt(keys_, block, row.sequence, kv_head), columns, shape_.head_dim,
                          qkv_.data() + n * shape_.qkv_width + head * shape_.head_dim, 1, scores,
                          columns);
    kernels_.causal_softmax(scores, 1, columns, ScoreStride(capacity_), row.position, score_scale_,
                            inverse_sum, inverse_sum + 1);
    kernels_.weighted_rows(CacheAt(values_, block, row.sequence, kv_head), columns, shape_.head_dim,
                           scores, out);
    kernels_.scale_rows(out, 1, shape_.head_dim, shape_.head_dim, inverse_sum);
  });
}

template <typename T>
void CpuDecoder<T>::WriteLogits(const T* parameters, int64_t first_row, std::span<T> logits) {
  Norm(parameters, layout_.final_norm, projected_.data());
  MultiplyOnce(parameters + layout_.head, shape_.vocabulary, shape_.width,
               normed_.data() + first_row * shape_.width, std::ssize(rows_) - first_row,
               logits.data(), shape_.vocabulary);
}

template class CpuDecoder<float>;
template class CpuDecoder<double>;

}  // namespace causeway::worker
