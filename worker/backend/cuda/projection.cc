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

Projection::Projection(const ProjectionLayout& layout, int64_t inputs, int64_t split)
    : layout_(layout), inputs_(inputs), split_(split) {
  const std::vector<ProjectionSlice> biases = Cut(layout.biases, 1, split);
  for (const ProjectionSlice& slice : Cut(layout.matrices, inputs, split)) {
    parts_.push_back({slice, BiasesOf(biases, slice)});
  }
  const bool fused = std::ranges::all_of(parts_, [](const Part& part) { return part.bias >= 0; });
  if (fused) return;
  for (Part& part : parts_) part.bias = -1;
  added_biases_ = biases;
}

absl::Status Projection::Forward(Gemm& gemm, int64_t tokens, const __nv_bfloat16* weights,
                                 const __nv_bfloat16* in, const Output& out, const Output& rest,
                                 cudaStream_t stream) const {
  const auto output_of = [&](const ProjectionSlice& slice) -> const Output& {
    return split_ > 0 && slice.first_output >= split_ ? rest : out;
  };
  for (const Part& part : parts_) {
    const Output& to = output_of(part.slice);
    RETURN_IF_ERROR(
        gemm.Run({.m = tokens,
                  .n = part.slice.outputs,
                  .k = inputs_,
                  .a = {.data = in, .stride = inputs_},
                  .b = {.data = weights + part.slice.offset, .stride = inputs_, .transpose = true},
                  .d = to.data + (part.slice.first_output - to.first),
                  .d_stride = to.stride,
                  .bias = part.bias < 0 ? nullptr : weights + part.bias},
                 stream));
  }
  for (const ProjectionSlice& bias : added_biases_) {
    const Output& to = output_of(bias);
    AddBias(tokens, bias.outputs, to.stride, weights + bias.offset,
            to.data + (bias.first_output - to.first), stream);
  }
  return absl::OkStatus();
}

absl::Status Projection::BackwardInput(Gemm& gemm, int64_t tokens, const __nv_bfloat16* weights,
                                       const __nv_bfloat16* dout, int64_t stride,
                                       __nv_bfloat16* din, cudaStream_t stream) const {
  for (const ProjectionSlice& slice : layout_.matrices) {
    RETURN_IF_ERROR(gemm.Run({.m = tokens,
                              .n = inputs_,
                              .k = slice.outputs,
                              .beta = slice.first_output == 0 ? 0.0F : 1.0F,
                              .a = {.data = dout + slice.first_output, .stride = stride},
                              .b = {.data = weights + slice.offset, .stride = inputs_},
                              .d = din,
                              .d_stride = inputs_,
                              .c = din},
                             stream));
  }
  return absl::OkStatus();
}

absl::Status Projection::BackwardWeight(Gemm& gemm, int64_t tokens, const __nv_bfloat16* dout,
                                        int64_t stride, const __nv_bfloat16* in, bool accumulate,
                                        const GradientPlaces& gradients,
                                        cudaStream_t stream) const {
  for (const ProjectionSlice& slice : layout_.matrices) {
    float* const gradient = gradients.At(slice.offset);
    RETURN_IF_ERROR(
        gemm.Run({.m = slice.outputs,
                  .n = inputs_,
                  .k = tokens,
                  .beta = accumulate ? 1.0F : 0.0F,
                  .a = {.data = dout + slice.first_output, .stride = stride, .transpose = true},
                  .b = {.data = in, .stride = inputs_},
                  .d_float = gradient,
                  .d_stride = inputs_,
                  .c = gradient},
                 stream));
  }
  return absl::OkStatus();
}

void Projection::BackwardBias(int64_t tokens, const __nv_bfloat16* dout, int64_t stride,
                              bool accumulate, const GradientPlaces& gradients, float* scratch,
                              cudaStream_t stream) const {
  for (const ProjectionSlice& bias : layout_.biases) {
    cuda::BiasBackward(tokens, bias.outputs, stride, dout + bias.first_output, accumulate,
                       gradients.At(bias.offset), scratch, stream);
  }
}

int64_t Projection::BiasScratch(int64_t tokens) const {
  int64_t most = 0;
  for (const ProjectionSlice& bias : layout_.biases) {
    most = std::max(most, BiasBackwardScratch(tokens, bias.outputs));
  }
  return most;
}

}  // namespace causeway::worker::cuda
