// The backward pass of CpuTransformer. dresidual_ holds the gradient of the residual stream and
// travels from the last block to the first; every norm adds its share to it.
#include <algorithm>

#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/scratch.h"

namespace causeway::worker {
namespace {

constexpr int64_t kColumnsPerTask = 64;

}  // namespace

template <typename T>
void CpuTransformer<T>::Backward() {
  NormBackward(final_input_.data(), layout_.final_norm, final_rms_.data(),
               /*accumulate_dx=*/false);
  for (size_t block = blocks_.size(); block-- > 0;) {
    MlpBackward(block);
    AttentionBackward(block);
  }
  EmbeddingBackward();
  if (layout_.positions >= 0) PositionsBackward();
}

template <typename T>
void CpuTransformer<T>::MlpBackward(size_t block) {
  const BlockLayout& at = layout_.blocks[block];
  BlockActivations& b = blocks_[block];
  ProjectBackwardBias(at.down, dresidual_.data(), shape_.width);
  ProjectBackwardInput(at.down, shape_.mlp_width, dresidual_.data(), shape_.width, dhidden_.data());
  {
    const KernelTimer timer(kernel_seconds_, KernelKind::kActivation);
    const auto activation = shape_.gated ? kernels_.swiglu_backward : kernels_.gelu_backward;
    ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
      activation(dhidden_.data() + begin * shape_.mlp_width, end - begin, shape_.mlp_width,
                 b.pre_activation.data() + begin * shape_.mlp_inputs,
                 hidden_.data() + begin * shape_.mlp_width);
    });
  }
  const T* const dpre_activation = b.pre_activation.data();
  ProjectBackwardWeight(at.down, shape_.mlp_width, dresidual_.data(), shape_.width, hidden_.data());
  ProjectBackwardBias(at.mlp_in, dpre_activation, shape_.mlp_inputs);
  ProjectBackwardInput(at.mlp_in, shape_.width, dpre_activation, shape_.mlp_inputs,
                       dnormed_.data());
  NormBackward(b.mlp_input.data(), at.mlp_norm, b.mlp_rms.data(), /*accumulate_dx=*/true);
  ProjectBackwardWeight(at.mlp_in, shape_.width, dpre_activation, shape_.mlp_inputs,
                        normed_.data());
}

template <typename T>
void CpuTransformer<T>::AttentionBackward(size_t block) {
  const BlockLayout& at = layout_.blocks[block];
  BlockActivations& b = blocks_[block];
  ProjectBackwardBias(at.o, dresidual_.data(), shape_.width);
  ProjectBackwardWeight(at.o, shape_.query_width, dresidual_.data(), shape_.width,
                        b.attention.data());
  ProjectBackwardInput(at.o, shape_.query_width, dresidual_.data(), shape_.width,
                       dattention_.data());
  AttentionHeadsBackward(b);
  RotateBackward(block);
  ProjectBackwardBias(at.qkv, dqkv_.data(), shape_.qkv_width);
  ProjectBackwardInput(at.qkv, shape_.width, dqkv_.data(), shape_.qkv_width, dnormed_.data());
  NormBackward(b.attention_input.data(), at.attention_norm, b.attention_rms.data(),
               /*accumulate_dx=*/true);
  ProjectBackwardWeight(at.qkv, shape_.width, dqkv_.data(), shape_.qkv_width, normed_.data());
}

template <typename T>
void CpuTransformer<T>::AttentionHeadsBackward(BlockActivations& block) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kAttention);
  const bool grouped = shape_.kv_heads != shape_.heads;
  pool_->ParallelFor(tokens_ / present_length_ * shape_.heads, [&](int64_t task) {
    const int64_t first_row = task / shape_.heads * present_length_;
    const int64_t column = task % shape_.heads * shape_.head_dim;
    AttentionHeadGradients<T> gradients = {
        .dout = dattention_.data() + first_row * shape_.query_width + column,
        .dq = dqkv_.data() + first_row * shape_.qkv_width + column,
        .dq_stride = shape_.qkv_width};
    if (grouped) {
      // Query heads that share a key head are different tasks: RotateBackward adds them up.
      gradients.dk = dkv_per_head_.data() + first_row * 2 * shape_.query_width + column;
      gradients.dv = gradients.dk + shape_.query_width;
      gradients.dkv_stride = 2 * shape_.query_width;
    } else {
      gradients.dk = gradients.dq + shape_.query_width;
      gradients.dv = gradients.dk + shape_.kv_width;
      gradients.dkv_stride = shape_.qkv_width;
    }
    const AttentionHead<T> head = HeadAt(block, task);
    ForEachDocument(task / shape_.heads, [&](int64_t begin, int64_t length) {
      worker::AttentionBackward(length, shape_.head_dim, head.From(begin),
                                gradients.From(begin, head.out_stride));
    });
  });
}

template <typename T>
void CpuTransformer<T>::RotateBackward(size_t block) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kRotate);
  const BlockLayout& at = layout_.blocks[block];
  const BlockActivations& b = blocks_[block];
  const HeadShape shape = {shape_.heads, shape_.kv_heads, shape_.head_dim};
  const T* const q_weight = shape_.qk_norm ? parameters_ + at.q_norm : nullptr;
  const T* const k_weight = shape_.qk_norm ? parameters_ + at.k_norm : nullptr;
  const int64_t group = shape_.heads / shape_.kv_heads;
  ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
    T* const dweights = partials_.data() + begin / kRowsPerTask * 2 * shape_.head_dim;
    std::fill_n(dweights, 2 * shape_.head_dim, T{0});
    for (int64_t n = begin; n < end; ++n) {
      T* const drow = dqkv_.data() + n * shape_.qkv_width;
      if (group > 1) {
        // The k and v parts, [2, kv_heads, head_dim], from [2, heads, head_dim].
        const T* const per_head = dkv_per_head_.data() + n * 2 * shape_.query_width;
        for (int64_t kv = 0; kv < 2 * shape_.kv_heads; ++kv) {
          T* const sum = drow + shape_.query_width + kv * shape_.head_dim;
          std::copy_n(per_head + kv * group * shape_.head_dim, shape_.head_dim, sum);
          for (int64_t member = 1; member < group; ++member) {
            kernels_.add(per_head + (kv * group + member) * shape_.head_dim, shape_.head_dim, sum);
          }
        }
      }
      const int64_t angle = n % present_length_ * (shape_.head_dim / 2);
      kernels_.rotate_backward(
          shape, q_weight, k_weight, cosine_.data() + angle, sine_.data() + angle,
          shape_.qk_norm ? b.raw_qk.data() + n * (shape_.query_width + shape_.kv_width) : nullptr,
          shape_.qk_norm ? b.qk_rms.data() + n * shape.rotated() : nullptr, drow, dweights);
    }
  });
  if (!shape_.qk_norm) return;
  ReducePartials(2 * shape_.head_dim, 0, shape_.head_dim, gradients_ + at.q_norm);
  ReducePartials(2 * shape_.head_dim, shape_.head_dim, shape_.head_dim, gradients_ + at.k_norm);
}

template <typename T>
void CpuTransformer<T>::EmbeddingBackward() {
  const KernelTimer timer(kernel_seconds_, KernelKind::kEmbedding);
  T* const dembedding = gradients_ + layout_.embedding;
  // A tied embedding already holds the head's gradient.
  if (!layout_.tied && !accumulate_) {
    pool_->ParallelFor(shape_.padded_vocabulary / kColumnsPerTask, [&](int64_t task) {
      std::fill_n(dembedding + task * kColumnsPerTask * shape_.width,
                  kColumnsPerTask * shape_.width, T{0});
    });
  }
  // Tasks own columns, not tokens: equal tokens add to the same row, always in this order.
  pool_->ParallelFor((shape_.width + kColumnsPerTask - 1) / kColumnsPerTask, [&](int64_t task) {
    const int64_t begin = task * kColumnsPerTask;
    const int64_t size = std::min(kColumnsPerTask, shape_.width - begin);
    for (int64_t n = 0; n < tokens_; ++n) {
      kernels_.add(dresidual_.data() + n * shape_.width + begin, size,
                   dembedding + inputs_[Size(n)] * shape_.width + begin);
    }
  });
}

template <typename T>
void CpuTransformer<T>::PositionsBackward() {
  const KernelTimer timer(kernel_seconds_, KernelKind::kEmbedding);
  T* const dpositions = gradients_ + layout_.positions;
  pool_->ParallelFor(layout_.learned_positions, [&](int64_t position) {
    T* const row = dpositions + position * shape_.width;
    if (!accumulate_) std::fill_n(row, shape_.width, T{0});
    if (position >= present_length_) return;
    for (int64_t n = position; n < tokens_; n += present_length_) {
      kernels_.add(dresidual_.data() + n * shape_.width, shape_.width, row);
    }
  });
}

template <typename T>
void CpuTransformer<T>::NormBackward(const T* x, const NormLayout& norm, const T* inverse_rms,
                                     bool accumulate_dx) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kNorm);
  const bool layer_norm = norm.bias >= 0;
  const T* const bias = layer_norm ? parameters_ + norm.bias : nullptr;
  const int64_t stride = layer_norm ? 2 * shape_.width : shape_.width;
  ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * shape_.width;
    T* const partial = partials_.data() + begin / kRowsPerTask * stride;
    std::fill_n(partial, stride, T{0});
    kernels_.norm_backward(dnormed_.data() + at, x + at, parameters_ + norm.weight, bias,
                           inverse_rms + begin, end - begin, shape_.width, accumulate_dx,
                           dresidual_.data() + at, normed_.data() + at, partial,
                           partial + shape_.width);
  });
  ReducePartials(stride, 0, shape_.width, gradients_ + norm.weight);
  if (layer_norm) ReducePartials(stride, shape_.width, shape_.width, gradients_ + norm.bias);
}

template <typename T>
void CpuTransformer<T>::ReducePartials(int64_t stride, int64_t begin, int64_t width, T* out) {
  if (!accumulate_) std::fill_n(out, width, T{0});
  const int64_t chunks = (tokens_ + kRowsPerTask - 1) / kRowsPerTask;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    kernels_.add(partials_.data() + chunk * stride + begin, width, out);
  }
}

template <typename T>
void CpuTransformer<T>::ProjectBackwardInput(const ProjectionLayout& projection, int64_t inputs,
                                             const T* dout, int64_t outputs, T* din) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kBlockProduct);
  for (const ProjectionSlice& slice : projection.matrices) {
    Gemm<T>(pool_, false, false, tokens_, inputs, slice.outputs, T{1}, dout + slice.first_output,
            outputs, parameters_ + slice.offset, inputs, slice.first_output == 0 ? T{0} : T{1}, din,
            inputs);
  }
}

template <typename T>
void CpuTransformer<T>::ProjectBackwardWeight(const ProjectionLayout& projection, int64_t inputs,
                                              const T* dout, int64_t outputs, const T* in) {
  const KernelTimer timer(kernel_seconds_, KernelKind::kBlockProduct);
  for (const ProjectionSlice& slice : projection.matrices) {
    Gemm<T>(pool_, true, false, slice.outputs, inputs, tokens_, T{1}, dout + slice.first_output,
            outputs, in, inputs, accumulate_ ? T{1} : T{0}, gradients_ + slice.offset, inputs);
  }
}

template <typename T>
void CpuTransformer<T>::ProjectBackwardBias(const ProjectionLayout& projection, const T* dout,
                                            int64_t outputs) {
  if (projection.biases.empty()) return;
  const KernelTimer timer(kernel_seconds_, KernelKind::kBlockProduct);
  ParallelRows(kRowsPerTask, [&](int64_t begin, int64_t end) {
    T* const partial = partials_.data() + begin / kRowsPerTask * outputs;
    std::fill_n(partial, outputs, T{0});
    for (int64_t n = begin; n < end; ++n) kernels_.add(dout + n * outputs, outputs, partial);
  });
  for (const ProjectionSlice& slice : projection.biases) {
    ReducePartials(outputs, slice.first_output, slice.outputs, gradients_ + slice.offset);
  }
}

// With what it calls; the rest of the class is instantiated in cpu_transformer.cc.
template void CpuTransformer<float>::Backward();
template void CpuTransformer<double>::Backward();

}  // namespace causeway::worker
