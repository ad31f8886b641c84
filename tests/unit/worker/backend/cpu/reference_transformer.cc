#include "tests/unit/worker/backend/cpu/reference_transformer.h"

#include <cmath>
#include <numbers>

namespace causeway::worker {
namespace {

using Vector = std::vector<double>;

class Reference {
 public:
  Reference(const v1::ModelConfig& model, const FragmentPlan& plan,
            std::span<const double> parameters)
      : model_(model), plan_(plan), parameters_(parameters) {}

  std::vector<Vector> Logits(std::span<const int32_t> tokens) const {
    std::vector<Vector> x;
    for (const int32_t token : tokens) {
      const auto row = Row("model.embed_tokens.weight", token);
      x.emplace_back(row.begin(), row.end());
      if (model_.learned_positions() == 0) continue;
      AddTo(x.back(), Row("model.embed_positions.weight", static_cast<int64_t>(x.size()) - 1));
    }
    for (int block = 0; block < model_.layers(); ++block) {
      const std::string prefix = "model.layers." + std::to_string(block) + ".";
      AddAttention(prefix, x);
      for (Vector& token : x) AddMlp(prefix, token);
    }
    const char* head = model_.untied_head() ? "lm_head.weight" : "model.embed_tokens.weight";
    std::vector<Vector> logits;
    for (const Vector& token : x) {
      Vector all = Multiply(head, NormalizeToken(token, "model.norm"));
      all.resize(static_cast<size_t>(model_.vocabulary_size()));
      logits.push_back(all);
    }
    return logits;
  }

 private:
  std::span<const double> Row(const std::string& name, int64_t row) const {
    const PlacedTensor* tensor = plan_.Find(name);
    const auto cols = static_cast<size_t>(tensor->info.cols);
    return parameters_.subspan(static_cast<size_t>(tensor->offset + row * tensor->info.cols), cols);
  }

  Vector Multiply(const std::string& name, const Vector& in) const {
    Vector out;
    for (int64_t r = 0; r < plan_.Find(name)->info.rows; ++r) {
      const auto row = Row(name, r);
      double sum = 0;
      for (size_t i = 0; i < in.size(); ++i) sum += row[i] * in[i];
      out.push_back(sum);
    }
    return out;
  }

  static void AddTo(Vector& sum, std::span<const double> values) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }

  std::span<const double> All(const std::string& name) const {
    const PlacedTensor* tensor = plan_.Find(name);
    return parameters_.subspan(static_cast<size_t>(tensor->offset),
                               static_cast<size_t>(tensor->info.size()));
  }

  // The projection of that name, with its bias if the model has one.
  Vector Project(const std::string& name, const Vector& in, bool bias) const {
    Vector out = Multiply(name + ".weight", in);
    if (bias) AddTo(out, All(name + ".bias"));
    return out;
  }

  // A norm between the blocks' halves.
  Vector NormalizeToken(const Vector& in, const std::string& name) const {
    if (!model_.layer_norm()) return Normalize(in, name + ".weight");
    double mean = 0;
    for (const double value : in) mean += value / static_cast<double>(in.size());
    double variance = 0;
    for (const double value : in) {
      variance += (value - mean) * (value - mean) / static_cast<double>(in.size());
    }
    Vector out;
    for (size_t i = 0; i < in.size(); ++i) {
      out.push_back((in[i] - mean) / std::sqrt(variance + model_.norm_epsilon()) *
                        All(name + ".weight")[i] +
                    All(name + ".bias")[i]);
    }
    return out;
  }

  double Frequency(int pair) const {
    const double frequency =
        std::pow(model_.rope_theta(), -2.0 * pair / static_cast<double>(model_.head_dim()));
    if (model_.learned_positions() > 0) return 0;
    if (!model_.has_rope_scaling()) return frequency;
    const v1::Llama3RopeScaling& scaling = model_.rope_scaling();
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double original = scaling.original_positions();
    if (wavelength < original / scaling.high_frequency_factor()) return frequency;
    if (wavelength > original / scaling.low_frequency_factor()) return frequency / scaling.factor();
    const double smooth = (original / wavelength - scaling.low_frequency_factor()) /
                          (scaling.high_frequency_factor() - scaling.low_frequency_factor());
    return (1 - smooth) * frequency / scaling.factor() + smooth * frequency;
  }

  Vector Normalize(const Vector& in, const std::string& name) const {
    double squares = 0;
    for (const double value : in) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(in.size()) + model_.norm_epsilon());
    Vector out;
    for (size_t i = 0; i < in.size(); ++i) {
      out.push_back(in[i] / rms * Row(name, static_cast<int64_t>(i))[0]);
    }
    return out;
  }

  // One head's part of a projected token, normalized if the model says so, then rotated.
  Vector Head(const Vector& all, int head, int position, const std::string& norm) const {
    const int size = model_.head_dim();
    Vector part(all.begin() + head * size, all.begin() + (head + 1) * size);
    if (model_.qk_norm()) part = Normalize(part, norm);
    Vector out = part;
    for (int i = 0; i < size / 2; ++i) {
      const double angle = position * Frequency(i);
      const auto a = static_cast<size_t>(i);
      const auto b = static_cast<size_t>(i + size / 2);
      out[a] = part[a] * std::cos(angle) - part[b] * std::sin(angle);
      out[b] = part[b] * std::cos(angle) + part[a] * std::sin(angle);
    }
    return out;
  }

  void AddAttention(const std::string& prefix, std::vector<Vector>& x) const {
    const std::string attention = prefix + "self_attn.";
    const int size = model_.head_dim();
    std::vector<Vector> q, k, v;
    for (const Vector& token : x) {
      const Vector in = NormalizeToken(token, prefix + "input_layernorm");
      q.push_back(Project(attention + "q_proj", in, model_.qkv_bias()));
      k.push_back(Project(attention + "k_proj", in, model_.qkv_bias()));
      v.push_back(Project(attention + "v_proj", in, model_.qkv_bias()));
    }
    std::vector<Vector> mixed(x.size());
    for (int head = 0; head < model_.heads(); ++head) {
      const int kv_head = head / (model_.heads() / model_.kv_heads());
      std::vector<Vector> keys;
      for (size_t t = 0; t < x.size(); ++t) {
        keys.push_back(Head(k[t], kv_head, static_cast<int>(t), attention + "k_norm.weight"));
      }
      for (size_t t = 0; t < x.size(); ++t) {
        const Vector query = Head(q[t], head, static_cast<int>(t), attention + "q_norm.weight");
        Vector weights;
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < query.size(); ++i) score += query[i] * keys[s][i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
          sum += weights.back();
        }
        for (int i = 0; i < size; ++i) {
          double value = 0;
          for (size_t s = 0; s <= t; ++s) {
            value += weights[s] / sum * v[s][static_cast<size_t>(kv_head * size + i)];
          }
          mixed[t].push_back(value);
        }
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector out = Project(attention + "o_proj", mixed[t], model_.output_bias());
      for (size_t i = 0; i < out.size(); ++i) x[t][i] += out[i];
    }
  }

  void AddMlp(const std::string& prefix, Vector& token) const {
    const Vector in = NormalizeToken(token, prefix + "post_attention_layernorm");
    Vector hidden = Project(prefix + "mlp.up_proj", in, model_.mlp_bias());
    if (model_.mlp() == v1::ModelConfig::SWIGLU) {
      const Vector gate = Project(prefix + "mlp.gate_proj", in, model_.mlp_bias());
      for (size_t i = 0; i < hidden.size(); ++i) {
        hidden[i] *= gate[i] / (1 + std::exp(-gate[i]));
      }
    } else {
      for (double& h : hidden) {
        h *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (h + 0.044715 * h * h * h)));
      }
    }
    const Vector out = Project(prefix + "mlp.down_proj", hidden, model_.mlp_bias());
    for (size_t i = 0; i < out.size(); ++i) token[i] += out[i];
  }

  const v1::ModelConfig& model_;
  const FragmentPlan& plan_;
  const std::span<const double> parameters_;
};

}  // namespace

std::vector<std::vector<double>> ReferenceLogits(const v1::ModelConfig& model,
                                                 const FragmentPlan& plan,
                                                 std::span<const double> parameters,
                                                 std::span<const int32_t> tokens) {
  return Reference(model, plan, parameters).Logits(tokens);
}

ReferenceLoss ComputeReferenceLoss(const v1::ModelConfig& model, const FragmentPlan& plan,
                                   std::span<const double> parameters,
                                   std::span<const int32_t> inputs,
                                   std::span<const int32_t> targets) {
  const auto length = static_cast<size_t>(model.sequence_length());
  ReferenceLoss loss;
  double count = 0;
  for (size_t begin = 0; begin < inputs.size(); begin += length) {
    const auto logits = ReferenceLogits(model, plan, parameters, inputs.subspan(begin, length));
    for (size_t t = 0; t < length; ++t) {
      if (targets[begin + t] < 0) continue;
      double sum = 0;
      for (const double logit : logits[t]) sum += std::exp(logit);
      const double log_sum = std::log(sum);
      const double entropy = log_sum - logits[t][static_cast<size_t>(targets[begin + t])];
      loss.cross_entropy += entropy;
      loss.total += entropy + model.z_loss() * log_sum * log_sum;
      count += 1;
    }
  }
  loss.cross_entropy /= count;
  loss.total /= count;
  return loss;
}

}  // namespace causeway::worker
