#include "worker/backend/cpu/parameter_layout.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/fatal.h"

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
  layout.final_norm = OffsetOf(plan, "model.norm.weight", width);
  layout.head = layout.tied ? layout.embedding : OffsetOf(plan, "lm_head.weight", vocabulary);
  for (int block = 0; block < model.layers(); ++block) {
    const auto offset = [&](absl::string_view name, int64_t size) {
      return OffsetOf(plan, absl::StrCat("model.layers.", block, ".", name), size);
    };
    BlockLayout b;
    b.attention_norm = offset("input_layernorm.weight", width);
    b.qkv = Join({{offset("self_attn.q_proj.weight", queries * width), queries},
                  {offset("self_attn.k_proj.weight", keys * width), keys},
                  {offset("self_attn.v_proj.weight", keys * width), keys}},
                 width);
    if (model.qk_norm()) {
      b.q_norm = offset("self_attn.q_norm.weight", model.head_dim());
      b.k_norm = offset("self_attn.k_norm.weight", model.head_dim());
    }
    b.o = {{offset("self_attn.o_proj.weight", queries * width), width}};
    b.mlp_norm = offset("post_attention_layernorm.weight", width);
    std::vector<ProjectionSlice> mlp_in;
    if (model.mlp() == v1::ModelConfig::SWIGLU) {
      mlp_in.push_back({offset("mlp.gate_proj.weight", mlp * width), mlp});
    }
    mlp_in.push_back({offset("mlp.up_proj.weight", mlp * width), mlp});
    b.mlp_in = Join(mlp_in, width);
    b.down = {{offset("mlp.down_proj.weight", mlp * width), width}};
    layout.blocks.push_back(b);
  }

  int64_t end = 0;
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (tensor.offset > end) layout.gaps.push_back({end, tensor.offset});
    end = tensor.offset + tensor.info.size();
  }
  if (plan.arena_size() > end) layout.gaps.push_back({end, plan.arena_size()});
  return layout;
}

}  // namespace causeway::worker
