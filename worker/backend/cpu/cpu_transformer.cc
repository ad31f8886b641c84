#include "worker/backend/cpu/cpu_transformer.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Logits that exist at a time.
constexpr int64_t kLogitsBytes = int64_t{128} << 20;
constexpr int64_t kLogitsPerTask = 32768;

// Tokens per pass of the classifier: the fewest equal chunks that fit the budget.
int64_t HeadChunk(int64_t tokens, int64_t row_bytes) {
  const int64_t limit = std::clamp<int64_t>(kLogitsBytes / row_bytes / 64 * 64, 64, tokens + 63);
  const int64_t chunks = (tokens + limit - 1) / limit;
  return (tokens + chunks - 1) / chunks;
}

}  // namespace

template <typename T>
CpuTransformer<T>::CpuTransformer(const v1::ModelConfig& model, const FragmentPlan& plan,
                                  int micro_batch_sequences, ThreadPool* pool)
    : layout_(ParameterLayout::Create(model, plan)),
      kernels_(GetKernels<T>()),
      pool_(pool),
      max_sequences_(micro_batch_sequences),
      shape_(model),
      epsilon_(static_cast<T>(model.norm_epsilon())),
      z_loss_(static_cast<T>(model.z_loss())),
      head_chunk_(HeadChunk(int64_t{micro_batch_sequences} * shape_.length,
                            shape_.padded_vocabulary * static_cast<int64_t>(sizeof(T)))),
      blocks_(layout_.blocks.size()) {
  const int64_t tokens = max_sequences_ * shape_.length;
  for (BlockActivations& block : blocks_) {
    block.attention_input.resize(Size(tokens * shape_.width));
    block.attention_rms.resize(Size(tokens));
    block.qkv.resize(Size(tokens * shape_.qkv_width));
    if (shape_.qk_norm) {
      block.raw_qk.resize(Size(tokens * (shape_.query_width + shape_.kv_width)));
      block.qk_rms.resize(Size(tokens * (shape_.heads + shape_.kv_heads)));
    }
    block.attention.resize(Size(tokens * shape_.query_width));
    block.log_sum_exp.resize(Size(tokens * shape_.heads));
    block.mlp_input.resize(Size(tokens * shape_.width));
    block.mlp_rms.resize(Size(tokens));
    block.pre_activation.resize(Size(tokens * shape_.mlp_inputs));
  }
  for (auto* buffer : {&final_input_, &normed_, &projected_, &dresidual_, &dnormed_}) {
    buffer->resize(Size(tokens * shape_.width));
  }
  for (auto* buffer : {&final_rms_, &row_loss_, &row_lse_}) buffer->resize(Size(tokens));
  hidden_.resize(Size(tokens * shape_.mlp_width));
  dhidden_.resize(Size(tokens * shape_.mlp_width));
  dattention_.resize(Size(tokens * shape_.query_width));
  dqkv_.resize(Size(tokens * shape_.qkv_width));
  if (shape_.kv_heads != shape_.heads) dkv_per_head_.resize(Size(tokens * 2 * shape_.query_width));
  logits_.resize(Size(head_chunk_ * shape_.padded_vocabulary));
  partials_.resize(
      Size((tokens + kRowsPerTask - 1) / kRowsPerTask *
           std::max({2 * shape_.width, 2 * shape_.head_dim, model.qkv_bias() ? shape_.qkv_width : 0,
                     model.mlp_bias() ? shape_.mlp_inputs : 0})));
  FillAngles(model, shape_.length, cosine_, sine_);
}

template <typename T>
TokenLoss CpuTransformer<T>::ForwardBackward(std::span<const T> parameters,
                                             std::span<const int32_t> inputs,
                                             std::span<const int32_t> targets, T gradient_scale,
                                             bool accumulate, std::span<T> gradients,
                                             std::span<const int32_t> document_starts) {
  CheckCall(parameters, inputs, targets, shape_.length, document_starts);
  if (static_cast<int64_t>(gradients.size()) != layout_.arena_size) {
    Fatal(absl::StrCat("gradients must have the arena's ", layout_.arena_size, " values, not ",
                       gradients.size()));
  }
  if (!accumulate) {
    for (const ArenaGap& gap : layout_.gaps) {
      std::fill(gradients.begin() + gap.begin, gradients.begin() + gap.end, T{0});
    }
  }
  documents_ = document_starts;
  Forward(parameters, inputs, shape_.length, gradients.data(), accumulate);
  const TokenLoss loss = Head(targets, gradient_scale);
  Backward();
  return loss;
}

template <typename T>
double CpuTransformer<T>::Loss(std::span<const T> parameters, std::span<const int32_t> inputs,
                               std::span<const int32_t> targets,
                               std::span<const int32_t> document_starts) {
  CheckCall(parameters, inputs, targets, shape_.length, document_starts);
  documents_ = document_starts;
  Forward(parameters, inputs, shape_.length);
  return Head(targets, T{0}).cross_entropy;
}

template <typename T>
void CpuTransformer<T>::Logits(std::span<const T> parameters, std::span<const int32_t> tokens,
                               std::span<T> last_position_logits) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length < 1 || length > shape_.length ||
      static_cast<int64_t>(last_position_logits.size()) != shape_.vocabulary) {
    Fatal(absl::StrCat("Logits takes 1 to ", shape_.length, " tokens and a span of ",
                       shape_.vocabulary, " logits, not ", length, " and ",
                       last_position_logits.size()));
  }
  CheckTokens(tokens, /*targets=*/false);
  documents_ = {};
  Forward(parameters, tokens, length);
  Gemm<T>(pool_, false, true, 1, shape_.vocabulary, shape_.width, T{1},
          normed_.data() + (length - 1) * shape_.width, shape_.width,
          parameters.data() + layout_.head, shape_.width, T{0}, last_position_logits.data(),
          shape_.vocabulary);
}

template <typename T>
void CpuTransformer<T>::CheckCall(std::span<const T> parameters, std::span<const int32_t> inputs,
                                  std::span<const int32_t> targets, int64_t length,
                                  std::span<const int32_t> document_starts) const {
  const auto tokens = static_cast<int64_t>(inputs.size());
  if (static_cast<int64_t>(parameters.size()) != layout_.arena_size) {
    Fatal(absl::StrCat("parameters must have the arena's ", layout_.arena_size, " values, not ",
                       parameters.size()));
  }
  if (length < 1 || length > shape_.length || tokens == 0 || tokens % length != 0 ||
      tokens > max_sequences_ * length || targets.size() != inputs.size()) {
    Fatal(absl::StrCat("inputs and targets must be 1 to ", max_sequences_, " windows of ", length,
                       " tokens, not ", tokens, " and ", targets.size(), " tokens"));
  }
  CheckTokens(inputs, /*targets=*/false);
  CheckTokens(targets, /*targets=*/true);
  if (document_starts.empty()) return;
  if (document_starts.size() != inputs.size()) {
    Fatal(absl::StrCat("document_starts must have the inputs' ", inputs.size(), " values, not ",
                       document_starts.size()));
  }
  for (size_t i = 0; i < document_starts.size(); ++i) {
    const auto position = static_cast<int32_t>(static_cast<int64_t>(i) % shape_.length);
    const bool continues = position > 0 && document_starts[i] == document_starts[i - 1];
    if (document_starts[i] != position && !continues) {
      Fatal(absl::StrCat("position ", position, " cannot be in a document that begins at ",
                         document_starts[i]));
    }
  }
}

template <typename T>
void CpuTransformer<T>::CheckTokens(std::span<const int32_t> tokens, bool targets) const {
  for (const int32_t token : tokens) {
    if (token >= shape_.vocabulary || (token < 0 && !targets)) {
      Fatal(absl::StrCat("token ", token, " is outside the vocabulary of ", shape_.vocabulary));
    }
  }
}

template <typename T>
void CpuTransformer<T>::ParallelRows(int64_t rows_per_task,
                                     const std::function<void(int64_t, int64_t)>& task) {
  pool_->ParallelFor((tokens_ + rows_per_task - 1) / rows_per_task, [&](int64_t i) {
    task(i * rows_per_task, std::min(tokens_, (i + 1) * rows_per_task));
  });
}

template <typename T>
void CpuTransformer<T>::Norm(const T* x_in, const T* addend, const NormLayout& norm, T* x_out,
                             T* inverse_rms) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kNorm);
  const T* const bias = norm.bias < 0 ? nullptr : parameters_ + norm.bias;
  ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * shape_.width;
    kernels_.norm(x_in + at, addend == nullptr ? nullptr : addend + at, parameters_ + norm.weight,
                  bias, epsilon_, end - begin, shape_.width, x_out + at, normed_.data() + at,
                  inverse_rms + begin);
  });
}

template <typename T>
void CpuTransformer<T>::Project(const ProjectionLayout& projection, int64_t inputs, const T* in,
                                T* out, int64_t outputs) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kBlockProduct);
  for (const ProjectionSlice& slice : projection.matrices) {
    Gemm<T>(pool_, false, true, tokens_, slice.outputs, inputs, T{1}, in, inputs,
            parameters_ + slice.offset, inputs, T{0}, out + slice.first_output, outputs);
  }
  if (projection.biases.empty()) return;
  ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (const ProjectionSlice& slice : projection.biases) {
        kernels_.add(parameters_ + slice.offset, slice.outputs,
                     out + n * outputs + slice.first_output);
      }
    }
  });
}

template <typename T>
void CpuTransformer<T>::Forward(std::span<const T> parameters, std::span<const int32_t> inputs,
                                int64_t length, T* gradients, bool accumulate) {
  parameters_ = parameters.data();
  gradients_ = gradients;
  accumulate_ = accumulate;
  inputs_ = inputs;
  tokens_ = static_cast<int64_t>(inputs.size());
  present_length_ = length;
  {
    const KernelTimer timer(kernel_seconds_, KernelKind::kEmbedding);
    const T* const embedding = parameters_ + layout_.embedding;
    T* const out = blocks_.front().attention_input.data();
    ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        std::copy_n(embedding + inputs[Size(n)] * shape_.width, shape_.width,
                    out + n * shape_.width);
        if (layout_.positions < 0) continue;
        kernels_.add(parameters_ + layout_.positions + n % present_length_ * shape_.width,
                     shape_.width, out + n * shape_.width);
      }
    });
  }
  for (size_t block = 0; block < blocks_.size(); ++block) {
    BlockActivations& b = blocks_[block];
    const BlockLayout& at = layout_.blocks[block];
    T* const input = b.attention_input.data();
    if (block == 0) {
      Norm(input, nullptr, at.attention_norm, input, b.attention_rms.data());
    } else {
      Norm(blocks_[block - 1].mlp_input.data(), projected_.data(), at.attention_norm, input,
           b.attention_rms.data());
    }
    AttentionForward(block);
    Norm(input, projected_.data(), at.mlp_norm, b.mlp_input.data(), b.mlp_rms.data());
    MlpForward(block);
  }
  Norm(blocks_.back().mlp_input.data(), projected_.data(), layout_.final_norm, final_input_.data(),
       final_rms_.data());
}

template <typename T>
void CpuTransformer<T>::AttentionForward(size_t block) {
  const BlockLayout& at = layout_.blocks[block];
  BlockActivations& b = blocks_[block];
  Project(at.qkv, shape_.width, normed_.data(), b.qkv.data(), shape_.qkv_width);
  {
    const KernelTimer timer(kernel_seconds_, KernelKind::kRotate);
    const HeadShape shape = {shape_.heads, shape_.kv_heads, shape_.head_dim};
    const T* const q_weight = shape_.qk_norm ? parameters_ + at.q_norm : nullptr;
    const T* const k_weight = shape_.qk_norm ? parameters_ + at.k_norm : nullptr;
    ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t angle = n % present_length_ * (shape_.head_dim / 2);
        kernels_.rotate(
            shape, q_weight, k_weight, epsilon_, cosine_.data() + angle, sine_.data() + angle,
            b.qkv.data() + n * shape_.qkv_width,
            shape_.qk_norm ? b.raw_qk.data() + n * (shape_.query_width + shape_.kv_width) : nullptr,
            shape_.qk_norm ? b.qk_rms.data() + n * shape.rotated() : nullptr);
      }
    });
  }
  {
    const KernelTimer timer(kernel_seconds_, KernelKind::kAttention);
    pool_->ParallelFor(tokens_ / present_length_ * shape_.heads, [&](int64_t task) {
      const AttentionHead<T> head = HeadAt(b, task);
      ForEachDocument(task / shape_.heads, [&](int64_t begin, int64_t length) {
        worker::AttentionForward(length, shape_.head_dim, head.From(begin));
      });
    });
  }
  Project(at.o, shape_.query_width, b.attention.data(), projected_.data(), shape_.width);
}

template <typename T>
AttentionHead<T> CpuTransformer<T>::HeadAt(BlockActivations& block, int64_t task) const {
  const int64_t first_row = task / shape_.heads * present_length_;
  const int64_t head = task % shape_.heads;
  const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
  const T* const row = block.qkv.data() + first_row * shape_.qkv_width;
  return {.q = row + head * shape_.head_dim,
          .k = row + shape_.query_width + kv_head * shape_.head_dim,
          .v = row + shape_.query_width + shape_.kv_width + kv_head * shape_.head_dim,
          .qkv_stride = shape_.qkv_width,
          .out = block.attention.data() + first_row * shape_.query_width + head * shape_.head_dim,
          .out_stride = shape_.query_width,
          .log_sum_exp = block.log_sum_exp.data() + task * present_length_};
}

template <typename T>
void CpuTransformer<T>::MlpForward(size_t block) {
  const BlockLayout& at = layout_.blocks[block];
  const T* const in = blocks_[block].pre_activation.data();
  Project(at.mlp_in, shape_.width, normed_.data(), blocks_[block].pre_activation.data(),
          shape_.mlp_inputs);
  {
    const KernelTimer timer(kernel_seconds_, KernelKind::kActivation);
    const auto activation = shape_.gated ? kernels_.swiglu : kernels_.gelu;
    ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
      activation(in + begin * shape_.mlp_inputs, end - begin, shape_.mlp_width,
                 hidden_.data() + begin * shape_.mlp_width);
    });
  }
  Project(at.down, shape_.mlp_width, hidden_.data(), projected_.data(), shape_.width);
}

template <typename T>
TokenLoss CpuTransformer<T>::Head(std::span<const int32_t> targets, T gradient_scale) {
  TokenLoss loss;
  loss.tokens = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
  const T factor = loss.tokens == 0 ? T{0} : gradient_scale / static_cast<T>(loss.tokens);
  const int64_t rows_per_task =
      std::clamp<int64_t>(kLogitsPerTask / shape_.padded_vocabulary, 1, 64);
  for (int64_t begin = 0; begin < tokens_; begin += head_chunk_) {
    const int64_t rows = std::min(head_chunk_, tokens_ - begin);
    const T* const head = parameters_ + layout_.head;
    const T* const normed = normed_.data() + begin * shape_.width;
    {
      const KernelTimer timer(kernel_seconds_, KernelKind::kHeadProduct);
      Gemm<T>(pool_, false, true, rows, shape_.padded_vocabulary, shape_.width, T{1}, normed,
              shape_.width, head, shape_.width, T{0}, logits_.data(), shape_.padded_vocabulary);
    }
    {
      const KernelTimer timer(kernel_seconds_, KernelKind::kClassifier);
      pool_->ParallelFor((rows + rows_per_task - 1) / rows_per_task, [&](int64_t task) {
        const int64_t first = task * rows_per_task;
        kernels_.classifier(logits_.data() + first * shape_.padded_vocabulary,
                            targets.data() + begin + first, std::min(rows_per_task, rows - first),
                            shape_.vocabulary, shape_.padded_vocabulary, factor, z_loss_,
                            gradients_ != nullptr, row_loss_.data() + begin + first,
                            row_lse_.data() + begin + first);
      });
    }
    if (gradients_ == nullptr) continue;
    const KernelTimer timer(kernel_seconds_, KernelKind::kHeadProduct);
    Gemm<T>(pool_, false, false, rows, shape_.width, shape_.padded_vocabulary, T{1}, logits_.data(),
            shape_.padded_vocabulary, head, shape_.width, T{0},
            dnormed_.data() + begin * shape_.width, shape_.width);
    Gemm<T>(pool_, true, false, shape_.padded_vocabulary, shape_.width, rows, T{1}, logits_.data(),
            shape_.padded_vocabulary, normed, shape_.width,
            begin == 0 && !accumulate_ ? T{0} : T{1}, gradients_ + layout_.head, shape_.width);
  }
  if (loss.tokens == 0) return loss;
  double squares = 0;
  for (int64_t n = 0; n < tokens_; ++n) {
    loss.cross_entropy += static_cast<double>(row_loss_[Size(n)]);
    squares += static_cast<double>(row_lse_[Size(n)]) * static_cast<double>(row_lse_[Size(n)]);
  }
  loss.cross_entropy /= static_cast<double>(loss.tokens);
  loss.total = loss.cross_entropy +
               static_cast<double>(z_loss_) * squares / static_cast<double>(loss.tokens);
  return loss;
}

template class CpuTransformer<float>;
template class CpuTransformer<double>;

}  // namespace causeway::worker
