#include "worker/model/parameter_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

int64_t OffsetOf(const FragmentPlan& plan, const std::string& name, int64_t expected_size) {
  const PlacedTensor* tensor = plan.Find(name);
  if (tensor == nullptr || tensor->info.size() != expected_size) {
    Fatal(absl::StrCat("the fragment plan has no tensor ", name, " of ", expected_size,
                       " values: it was made from another model"));
  }
  return tensor->offset;
}

// Lines the matrices' outputs up side by side and merges those that are neighbours in the arena.
std::vector<ProjectionSlice> Join(const std::vector<ProjectionSlice>& matrices, int64_t width) {
  std::vector<ProjectionSlice> slices;
  int64_t first_output = 0;
  for (const ProjectionSlice& matrix : matrices) {
    if (!slices.empty() && matrix.offset == slices.back().offset + slices.back().outputs * width) {
      slices.back().outputs += matrix.outputs;
    } else {
      slices.push_back({matrix.offset, matrix.outputs, first_output});
    }
    first_output += matrix.outputs;
  }
  return slices;
}

}  // namespace

ParameterLayout ParameterLayout::Create(const v1::ModelConfig& model, const FragmentPlan& plan) {
  const int64_t width = model.width();
  const int64_t queries = int64_t{model.heads()} * model.head_dim();
  const int64_t keys = int64_t{model.kv_heads()} * model.head_dim();
  const int64_t mlp = model.mlp_width();
  const int64_t vocabulary = PaddedVocabulary(model) * width;

  ParameterLayout layout;
  layout.arena_size = plan.arena_size();
  layout.tied = !model.untied_head();
  layout.embedding = OffsetOf(plan, "model.embed_tokens.weight", vocabulary);
  layout.learned_positions = model.learned_positions();
  if (layout.learned_positions > 0) {
    layout.positions =
        OffsetOf(plan, "model.embed_positions.weight", layout.learned_positions * width);
  }
  layout.final_norm.weight = OffsetOf(plan, "model.norm.weight", width);
  if (model.layer_norm()) layout.final_norm.bias = OffsetOf(plan, "model.norm.bias", width);
  layout.head = layout.tied ? layout.embedding : OffsetOf(plan, "lm_head.weight", vocabulary);
  for (int block = 0; block < model.layers(); ++block) {
    const auto offset = [&](absl::string_view name, int64_t size) {
      return OffsetOf(plan, absl::StrCat("model.layers.", block, ".", name), size);
    };
    const auto norm = [&](const std::string& name) {
      return NormLayout{
          .weight = offset(name + ".weight", width),
          .bias = model.layer_norm() ? offset(name + ".bias", width) : -1,
      };
    };
    // Lays matrices [outputs, inputs] of those names side by side.
    const auto projection = [&](const std::vector<std::pair<std::string, int64_t>>& names,
                                int64_t inputs, bool bias) {
      std::vector<ProjectionSlice> matrices;
      std::vector<ProjectionSlice> biases;
      for (const auto& [name, outputs] : names) {
        matrices.push_back({offset(name + ".weight", outputs * inputs), outputs});
        if (bias) biases.push_back({offset(name + ".bias", outputs), outputs});
      }
      return ProjectionLayout{Join(matrices, inputs), Join(biases, 1)};
    };
    BlockLayout b;
    b.attention_norm = norm("input_layernorm");
    b.qkv = projection(
        {{"self_attn.q_proj", queries}, {"self_attn.k_proj", keys}, {"self_attn.v_proj", keys}},
        width, model.qkv_bias());
    if (model.qk_norm()) {
      b.q_norm = offset("self_attn.q_norm.weight", model.head_dim());
      b.k_norm = offset("self_attn.k_norm.weight", model.head_dim());
    }
    b.o = projection({{"self_attn.o_proj", width}}, queries, model.output_bias());
    b.mlp_norm = norm("post_attention_layernorm");
    std::vector<std::pair<std::string, int64_t>> mlp_in;
    if (model.mlp() == v1::ModelConfig::SWIGLU) mlp_in.push_back({"mlp.gate_proj", mlp});
    mlp_in.push_back({"mlp.up_proj", mlp});
    b.mlp_in = projection(mlp_in, width, model.mlp_bias());
    b.down = projection({{"mlp.down_proj", width}}, mlp, model.mlp_bias());
    layout.blocks.push_back(b);
  }
  layout.gaps = plan.gaps();
  return layout;
}

}  // namespace causeway::worker
