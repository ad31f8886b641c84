#include "worker/backend/cuda/projection.h"

namespace causeway::worker::cuda {
namespace {

// The same, cut where column `split` begins. `row` values of the arena belong to an output.
std::vector<ProjectionSlice> Cut(const std::vector<ProjectionSlice>& slices, int64_t row,
                                 int64_t split) {
  std::vector<ProjectionSlice> cut;
  for (const ProjectionSlice& slice : slices) {
    const int64_t before = split - slice.first_output;
    if (before <= 0 || before >= slice.outputs) {
      cut.push_back(slice);
      continue;
    }
    cut.push_back({slice.offset, before, slice.first_output});
    cut.push_back({slice.offset + before * row, slice.outputs - before, split});
  }
  return cut;
}

// Where the biases of `matrix` begin, if they lie side by side.
int64_t BiasesOf(const std::vector<ProjectionSlice>& biases, const ProjectionSlice& matrix) {
  for (const ProjectionSlice& bias : biases) {
    const int64_t skipped = matrix.first_output - bias.first_output;
    if (skipped >= 0 && skipped + matrix.outputs <= bias.outputs) return bias.offset + skipped;
  }
  return -1;
}

}  // namespace

Projection::Projection(std::string name, const ProjectionLayout& layout, int64_t inputs,
                       int64_t split)
    : name_(std::move(name)),
      input_name_(name_ + ", gradient of its input"),
      weight_name_(name_ + ", gradient of its weights"),
      bias_name_(name_ + ", gradient of its biases"),
      layout_(layout),
      inputs_(inputs),
      split_(split) {
  for (const ProjectionSlice& slice : layout.matrices) outputs_ += slice.outputs;
  const std::vector<ProjectionSlice> biases = Cut(layout.biases, 1, split);
  for (const ProjectionSlice& slice : Cut(layout.matrices, inputs, split)) {
    parts_.push_back({slice, BiasesOf(biases, slice)});
  }
  const bool fused = std::ranges::all_of(parts_, [](const Part& part) { return part.bias >= 0; });
  if (fused) return;
  for (Part& part : parts_) part.bias = -1;
  added_biases_ = biases;
}

absl::Status Projection::Forward(const ProjectionPass& pass, const __nv_bfloat16* in,
                                 const Output& out, const Output& rest) const {
  const auto output_of = [&](const ProjectionSlice& slice) -> const Output& {
    return split_ > 0 && slice.first_output >= split_ ? rest : out;
  };
  return Probed(pass.probe, Kernel(name_, pass.tokens), pass.stream, [&]() -> absl::Status {
    for (const auto& [slice, bias] : parts_) {
      const Output& to = output_of(slice);
      RETURN_IF_ERROR(pass.gemm->Run(
          {.m = pass.tokens,
           .n = slice.outputs,
           .k = inputs_,
           .a = {.data = in, .stride = inputs_},
           .b = {.data = pass.weights + slice.offset, .stride = inputs_, .transpose = true},
           .d = to.data + (slice.first_output - to.first),
           .d_stride = to.stride,
           .bias = bias < 0 ? nullptr : pass.weights + bias},
          pass.stream));
    }
    for (const ProjectionSlice& bias : added_biases_) {
      const Output& to = output_of(bias);
      AddBias(pass.tokens, bias.outputs, to.stride, pass.weights + bias.offset,
              to.data + (bias.first_output - to.first), pass.stream);
    }
    return absl::OkStatus();
  });
}

absl::Status Projection::BackwardInput(const ProjectionPass& pass, const __nv_bfloat16* dout,
                                       __nv_bfloat16* din) const {
  return Probed(pass.probe, Kernel(input_name_, pass.tokens), pass.stream, [&]() -> absl::Status {
    for (const ProjectionSlice& slice : layout_.matrices) {
      RETURN_IF_ERROR(pass.gemm->Run({.m = pass.tokens,
                                      .n = inputs_,
                                      .k = slice.outputs,
                                      .beta = slice.first_output == 0 ? 0.0F : 1.0F,
                                      .a = {.data = dout + slice.first_output, .stride = outputs_},
                                      .b = {.data = pass.weights + slice.offset, .stride = inputs_},
                                      .d = din,
                                      .d_stride = inputs_,
                                      .c = din},
                                     pass.stream));
    }
    return absl::OkStatus();
  });
}

absl::Status Projection::BackwardWeight(const ProjectionPass& pass, const __nv_bfloat16* dout,
                                        const __nv_bfloat16* in) const {
  return Probed(pass.probe, Kernel(weight_name_, pass.tokens), pass.stream, [&]() -> absl::Status {
    for (const ProjectionSlice& slice : layout_.matrices) {
      float* const gradient = pass.gradients->At(slice.offset);
      RETURN_IF_ERROR(pass.gemm->Run(
          {.m = slice.outputs,
           .n = inputs_,
           .k = pass.tokens,
           .beta = pass.accumulate ? 1.0F : 0.0F,
           .a = {.data = dout + slice.first_output, .stride = outputs_, .transpose = true},
           .b = {.data = in, .stride = inputs_},
           .d_float = gradient,
           .d_stride = inputs_,
           .c = gradient},
          pass.stream));
    }
    return absl::OkStatus();
  });
}

absl::Status Projection::BackwardBias(const ProjectionPass& pass, const __nv_bfloat16* dout) const {
  if (layout_.biases.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(sizeof(*dout)) * pass.tokens * outputs_;
  return Probed(pass.probe, MemoryKernel(bias_name_, bytes), pass.stream, [&] {
    for (const ProjectionSlice& bias : layout_.biases) {
      cuda::BiasBackward(pass.tokens, bias.outputs, outputs_, dout + bias.first_output,
                         pass.accumulate, pass.gradients->At(bias.offset), pass.scratch,
                         pass.stream);
    }
  });
}

int64_t Projection::BiasScratch(int64_t tokens) const {
  int64_t most = 0;
  for (const ProjectionSlice& bias : layout_.biases) {
    most = std::max(most, BiasBackwardScratch(tokens, bias.outputs));
  }
  return most;
}

}  // namespace causeway::worker::cuda
