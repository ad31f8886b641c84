#include "tests/unit/worker/backend/cuda/bf16_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "worker/backend/cpu/attention.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker::cuda {
namespace {

using Values = std::vector<double>;

size_t Size(int64_t value) { return static_cast<size_t>(value); }

void Round(Values& values) {
  for (double& value : values) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    value = std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
  }
}

struct KeptBlock {
  Values attention_input, attention_deviation, attention_normed, raw_qk, qk_deviation, qkv;
  Values attention, log_sum_exp, mlp_input, mlp_deviation, mlp_normed, pre_activation, hidden;
};

class Reference {
 public:
  Reference(const v1::ModelConfig& model, const FragmentPlan& plan, const Values& parameters,
            std::span<const int32_t> inputs, std::span<const int32_t> documents)
      : model_(model),
        at_(ParameterLayout::Create(model, plan)),
        parameters_(parameters),
        inputs_(inputs),
        documents_(documents),
        gradients_(parameters.size(), 0.0) {}

  ReferencePass Run(std::span<const int32_t> targets) {
    Forward();
    ReferencePass pass;
    pass.cross_entropy = Head(targets);
    NormBackward(final_input_, at_.final_norm, final_deviation_, false);
    for (size_t i = at_.blocks.size(); i-- > 0;) {
      MlpBackward(at_.blocks[i], blocks_[i]);
      AttentionBackward(at_.blocks[i], blocks_[i]);
    }
    for (int64_t n = 0; n < tokens_; ++n) {
      AddRow(n, at_.embedding + int64_t{inputs_[Size(n)]} * width_);
      if (at_.positions >= 0) AddRow(n, at_.positions + n % length_ * width_);
    }
    pass.gradients = gradients_;
    return pass;
  }

 private:
  void AddRow(int64_t token, int64_t offset) {
    kernels_.add(dresidual_.data() + token * width_, width_, gradients_.data() + offset);
  }

  const double* BiasOf(const NormLayout& norm) const {
    return norm.bias < 0 ? nullptr : parameters_.data() + norm.bias;
  }

  // x [N, width] (the sum of both, rounded) and its norm.
  void Norm(const Values& in, const Values* addend, const NormLayout& norm, Values& x,
            Values& deviation, Values& out) {
    Values sum = in;
    if (addend != nullptr) kernels_.add(addend->data(), tokens_ * width_, sum.data());
    Round(sum);
    x = sum;
    out.resize(sum.size());
    deviation.resize(Size(tokens_));
    kernels_.norm(x.data(), nullptr, parameters_.data() + norm.weight, BiasOf(norm), epsilon_,
                  tokens_, width_, nullptr, out.data(), deviation.data());
    Round(out);
  }

  void NormBackward(const Values& x, const NormLayout& norm, const Values& deviation,
                    bool accumulate) {
    Values again(x.size());
    dresidual_.resize(x.size());
    kernels_.norm_backward(dnormed_.data(), x.data(), parameters_.data() + norm.weight,
                           BiasOf(norm), deviation.data(), tokens_, width_, accumulate,
                           dresidual_.data(), again.data(), gradients_.data() + norm.weight,
                           norm.bias < 0 ? nullptr : gradients_.data() + norm.bias);
    Round(dresidual_);
  }

  Values Project(const ProjectionLayout& projection, int64_t inputs, const Values& in,
                 int64_t outputs) {
    Values out(Size(tokens_ * outputs));
    for (const ProjectionSlice& slice : projection.matrices) {
      Gemm<double>(nullptr, false, true, tokens_, slice.outputs, inputs, 1.0, in.data(), inputs,
                   parameters_.data() + slice.offset, inputs, 0.0, out.data() + slice.first_output,
                   outputs);
    }
    for (const ProjectionSlice& slice : projection.biases) {
      for (int64_t n = 0; n < tokens_; ++n) {
        kernels_.add(parameters_.data() + slice.offset, slice.outputs,
                     out.data() + n * outputs + slice.first_output);
      }
    }
    Round(out);
    return out;
  }

  Values ProjectBackward(const ProjectionLayout& projection, int64_t inputs, const Values& in,
                         const Values& dout, int64_t outputs) {
    Values din(Size(tokens_ * inputs));
    for (const ProjectionSlice& slice : projection.matrices) {
      Gemm<double>(nullptr, false, false, tokens_, inputs, slice.outputs, 1.0,
                   dout.data() + slice.first_output, outputs, parameters_.data() + slice.offset,
                   inputs, slice.first_output == 0 ? 0.0 : 1.0, din.data(), inputs);
      Round(din);
      Gemm<double>(nullptr, true, false, slice.outputs, inputs, tokens_, 1.0,
                   dout.data() + slice.first_output, outputs, in.data(), inputs, 0.0,
                   gradients_.data() + slice.offset, inputs);
    }
    for (const ProjectionSlice& slice : projection.biases) {
      for (int64_t n = 0; n < tokens_; ++n) {
        kernels_.add(dout.data() + n * outputs + slice.first_output, slice.outputs,
                     gradients_.data() + slice.offset);
      }
    }
    return din;
  }

  // Calls visit(first token, tokens, head) for every stretch that attends to itself alone.
  template <typename Visit>
  void ForEachStretch(const Visit& visit) {
    for (int64_t begin = 0; begin < tokens_;) {
      int64_t end = begin + 1;
      while (end % length_ != 0 &&
             (documents_.empty() || documents_[Size(end)] == documents_[Size(begin)])) {
        ++end;
      }
      for (int64_t head = 0; head < heads_; ++head) visit(begin, end - begin, head);
      begin = end;
    }
  }

  AttentionHead<double> HeadOf(KeptBlock& block, int64_t begin, int64_t head) {
    const double* const row = block.qkv.data() + begin * qkv_width_;
    const int64_t kv = query_width_ + head / (heads_ / kv_heads_) * head_dim_;
    return {.q = row + head * head_dim_,
            .k = row + kv,
            .v = row + kv + kv_heads_ * head_dim_,
            .qkv_stride = qkv_width_,
            .out = block.attention.data() + begin * query_width_ + head * head_dim_,
            .out_stride = query_width_,
            .log_sum_exp = block.log_sum_exp.data() + head * tokens_ + begin};
  }

  void Forward() {
    Values x(Size(tokens_ * width_));
    for (int64_t n = 0; n < tokens_; ++n) {
      std::copy_n(parameters_.data() + at_.embedding + int64_t{inputs_[Size(n)]} * width_, width_,
                  x.data() + n * width_);
      if (at_.positions < 0) continue;
      kernels_.add(parameters_.data() + at_.positions + n % length_ * width_, width_,
                   x.data() + n * width_);
    }
    blocks_.resize(at_.blocks.size());
    Values projected;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      KeptBlock& b = blocks_[i];
      const BlockLayout& at = at_.blocks[i];
      Norm(i == 0 ? x : blocks_[i - 1].mlp_input, i == 0 ? nullptr : &projected, at.attention_norm,
           b.attention_input, b.attention_deviation, b.attention_normed);
      b.qkv = Project(at.qkv, width_, b.attention_normed, qkv_width_);
      Rotate(at, b);
      b.attention.resize(Size(tokens_ * query_width_));
      b.log_sum_exp.resize(Size(tokens_ * heads_));
      ForEachStretch([&](int64_t begin, int64_t size, int64_t head) {
        AttentionForward(size, head_dim_, HeadOf(b, begin, head));
      });
      Round(b.attention);
      projected = Project(at.o, query_width_, b.attention, width_);
      Norm(b.attention_input, &projected, at.mlp_norm, b.mlp_input, b.mlp_deviation, b.mlp_normed);
      b.pre_activation = Project(at.mlp_in, width_, b.mlp_normed, mlp_inputs_);
      b.hidden.resize(Size(tokens_ * mlp_width_));
      (gated_ ? kernels_.swiglu : kernels_.gelu)(b.pre_activation.data(), tokens_, mlp_width_,
                                                 b.hidden.data());
      Round(b.hidden);
      projected = Project(at.down, mlp_width_, b.hidden, width_);
    }
    Norm(blocks_.back().mlp_input, &projected, at_.final_norm, final_input_, final_deviation_,
         final_normed_);
  }

  const double* Weight(int64_t offset) const {
    return model_.qk_norm() ? parameters_.data() + offset : nullptr;
  }

  void Angles(int64_t position, Values& cosine, Values& sine) const {
    const std::vector<double> frequencies = RopeFrequencies(model_);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      cosine.push_back(std::cos(static_cast<double>(position) * frequencies[i]));
      sine.push_back(std::sin(static_cast<double>(position) * frequencies[i]));
    }
  }

  void Rotate(const BlockLayout& at, KeptBlock& b) {
    const HeadShape shape = {heads_, kv_heads_, head_dim_};
    b.raw_qk.resize(Size(tokens_ * shape.rotated() * head_dim_));
    b.qk_deviation.resize(Size(tokens_ * shape.rotated()));
    for (int64_t n = 0; n < tokens_; ++n) {
      Values cosine, sine;
      Angles(n % length_, cosine, sine);
      kernels_.rotate(shape, Weight(at.q_norm), Weight(at.k_norm), epsilon_, cosine.data(),
                      sine.data(), b.qkv.data() + n * qkv_width_,
                      b.raw_qk.data() + n * shape.rotated() * head_dim_,
                      b.qk_deviation.data() + n * shape.rotated());
    }
    Round(b.qkv);
  }

  double Head(std::span<const int32_t> targets) {
    const int64_t vocabulary = PaddedVocabulary(model_);
    Values logits(Size(tokens_ * vocabulary));
    const double* const head = parameters_.data() + at_.head;
    Gemm<double>(nullptr, false, true, tokens_, vocabulary, width_, 1.0, final_normed_.data(),
                 width_, head, width_, 0.0, logits.data(), vocabulary);
    Round(logits);
    const auto count = static_cast<double>(
        std::ranges::count_if(targets, [](int32_t target) { return target >= 0; }));
    Values loss(Size(tokens_)), lse(Size(tokens_));
    kernels_.classifier(logits.data(), targets.data(), tokens_, model_.vocabulary_size(),
                        vocabulary, 1 / count, model_.z_loss(), true, loss.data(), lse.data());
    Round(logits);
    dnormed_.resize(Size(tokens_ * width_));
    Gemm<double>(nullptr, false, false, tokens_, width_, vocabulary, 1.0, logits.data(), vocabulary,
                 head, width_, 0.0, dnormed_.data(), width_);
    Round(dnormed_);
    Gemm<double>(nullptr, true, false, vocabulary, width_, tokens_, 1.0, logits.data(), vocabulary,
                 final_normed_.data(), width_, 0.0, gradients_.data() + at_.head, width_);
    double sum = 0;
    for (const double row : loss) sum += row;
    return sum / count;
  }

  void MlpBackward(const BlockLayout& at, KeptBlock& b) {
    Values dhidden = ProjectBackward(at.down, mlp_width_, b.hidden, dresidual_, width_);
    Values again(b.hidden.size());
    (gated_ ? kernels_.swiglu_backward : kernels_.gelu_backward)(
        dhidden.data(), tokens_, mlp_width_, b.pre_activation.data(), again.data());
    Round(b.pre_activation);
    dnormed_ = ProjectBackward(at.mlp_in, width_, b.mlp_normed, b.pre_activation, mlp_inputs_);
    NormBackward(b.mlp_input, at.mlp_norm, b.mlp_deviation, true);
  }

  void AttentionBackward(const BlockLayout& at, KeptBlock& b) {
    const Values dattention = ProjectBackward(at.o, query_width_, b.attention, dresidual_, width_);
    Values dqkv(Size(tokens_ * qkv_width_));
    Values dk(Size(length_ * head_dim_)), dv(dk.size());
    ForEachStretch([&](int64_t begin, int64_t size, int64_t head) {
      worker::AttentionBackward(
          size, head_dim_, HeadOf(b, begin, head),
          AttentionHeadGradients<double>{
              .dout = dattention.data() + begin * query_width_ + head * head_dim_,
              .dq = dqkv.data() + begin * qkv_width_ + head * head_dim_,
              .dq_stride = qkv_width_,
              .dk = dk.data(),
              .dv = dv.data(),
              .dkv_stride = head_dim_});
      const int64_t kv = query_width_ + head / (heads_ / kv_heads_) * head_dim_;
      for (int64_t n = 0; n < size; ++n) {
        double* const row = dqkv.data() + (begin + n) * qkv_width_ + kv;
        kernels_.add(dk.data() + n * head_dim_, head_dim_, row);
        kernels_.add(dv.data() + n * head_dim_, head_dim_, row + kv_heads_ * head_dim_);
      }
    });
    Round(dqkv);
    const HeadShape shape = {heads_, kv_heads_, head_dim_};
    Values dweights(Size(2 * head_dim_));
    for (int64_t n = 0; n < tokens_; ++n) {
      Values cosine, sine;
      Angles(n % length_, cosine, sine);
      kernels_.rotate_backward(shape, Weight(at.q_norm), Weight(at.k_norm), cosine.data(),
                               sine.data(), b.raw_qk.data() + n * shape.rotated() * head_dim_,
                               b.qk_deviation.data() + n * shape.rotated(),
                               dqkv.data() + n * qkv_width_, dweights.data());
    }
    if (model_.qk_norm()) {
      std::copy_n(dweights.data(), head_dim_, gradients_.data() + at.q_norm);
      std::copy_n(dweights.data() + head_dim_, head_dim_, gradients_.data() + at.k_norm);
    }
    Round(dqkv);
    dnormed_ = ProjectBackward(at.qkv, width_, b.attention_normed, dqkv, qkv_width_);
    NormBackward(b.attention_input, at.attention_norm, b.attention_deviation, true);
  }

  const v1::ModelConfig& model_;
  const ParameterLayout at_;
  const Values& parameters_;
  const std::span<const int32_t> inputs_, documents_;
  const Kernels<double>& kernels_ = GetKernels<double>();
  const bool gated_ = model_.mlp() == v1::ModelConfig::SWIGLU;
  const double epsilon_ = model_.norm_epsilon();
  const int64_t tokens_ = std::ssize(inputs_), length_ = model_.sequence_length();
  const int64_t width_ = model_.width(), mlp_width_ = model_.mlp_width();
  const int64_t mlp_inputs_ = gated_ ? 2 * mlp_width_ : mlp_width_;
  const int64_t heads_ = model_.heads(), kv_heads_ = model_.kv_heads();
  const int64_t head_dim_ = model_.head_dim(), query_width_ = heads_ * head_dim_;
  const int64_t qkv_width_ = query_width_ + 2 * kv_heads_ * head_dim_;
  std::vector<KeptBlock> blocks_;
  Values final_input_, final_deviation_, final_normed_, dnormed_, dresidual_;
  Values gradients_;
};

}  // namespace

ReferencePass RunBf16Reference(const v1::ModelConfig& model, const FragmentPlan& plan,
                               const std::vector<double>& parameters,
                               std::span<const int32_t> inputs, std::span<const int32_t> targets,
                               std::span<const int32_t> document_starts) {
  return Reference(model, plan, parameters, inputs, document_starts).Run(targets);
}

}  // namespace causeway::worker::cuda
