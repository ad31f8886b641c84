#include "worker/backend/cuda/bench.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/params/adamw.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/projection.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kStepArena[] = "timing kernels";
constexpr char kLower[] = "a smaller --micro_batch";
constexpr double kBf16 = 2;   // Bytes.
constexpr double kFloat = 4;  // The same.
constexpr float kWeightScale = 0.035F;

// Buffers of one block's shapes, and what is timed on them.
class StepKernels {
 public:
  StepKernels(const v1::RunConfig& config, const FragmentPlan& plan, const DeviceInfo& device,
              Gemm& gemm, AttentionProvider& attention, cudaStream_t stream)
      : model_(config.model()),
        plan_(plan),
        layout_(ParameterLayout::Create(model_, plan)),
        logits_bytes_(LogitsBytes(device.memory)),
        gemm_(gemm),
        attention_(attention),
        stream_(stream),
        passes_(config.train().batch_sequences() / config.train().micro_batch_sequences()),
        sequences_(config.train().micro_batch_sequences()),
        tokens_(sequences_ * int64_t{model_.sequence_length()}),
        shape_(model_),
        adamw_(config.train().optimizer() != v1::TrainConfig::MUON) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Allocate());
    RETURN_IF_ERROR(TimeProjections());
    RETURN_IF_ERROR(TimeHead());
    RETURN_IF_ERROR(TimeAttention());
    RETURN_IF_ERROR(TimeNorms());
    RETURN_IF_ERROR(TimeElementwise());
    return adamw_ ? TimeOptimizer() : absl::OkStatus();
  }
  std::vector<KernelTime> times() && { return std::move(times_); }

 private:
  absl::StatusOr<__nv_bfloat16*> Bf16(int64_t size, float scale = 1) {
    ASSIGN_OR_RETURN(__nv_bfloat16* const values,
                     memory_.Allocate<__nv_bfloat16>(kStepArena, size, kLower));
    FillRandom(size, ++seed_, scale, values, stream_);
    return values;
  }
  absl::StatusOr<float*> Float(int64_t size, float scale = 1) {
    ASSIGN_OR_RETURN(float* const values, memory_.Allocate<float>(kStepArena, size, kLower));
    FillRandom(size, ++seed_, scale, values, stream_);
    return values;
  }
  template <typename T>
  absl::StatusOr<T*> Upload(const std::vector<T>& values) {
    const auto size = static_cast<int64_t>(values.size());
    ASSIGN_OR_RETURN(T* const on_device, memory_.Allocate<T>(kStepArena, size, kLower));
    RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(on_device, values.data(), values.size() * sizeof(T),
                                              cudaMemcpyHostToDevice, stream_),
                              "copying to the device"));
    RETURN_IF_ERROR(CheckCuda(cudaStreamSynchronize(stream_), "copying to the device"));
    return on_device;
  }

  // A weight whose offset in the arena is -1 is not there.
  const __nv_bfloat16* Weight(int64_t offset) const {
    return offset < 0 ? nullptr : weights_ + offset;
  }
  float* Gradient(int64_t offset) const { return offset < 0 ? nullptr : gradients_ + offset; }

  absl::Status Time(std::string name, KernelLimit limit, int64_t calls, double flops, double bytes,
                    const std::function<absl::Status()>& enqueue) {
    ASSIGN_OR_RETURN(const double seconds, MedianSeconds(enqueue, stream_));
    times_.push_back({std::move(name), limit, calls, flops, bytes, seconds});
    return absl::OkStatus();
  }
  absl::Status TimeMemory(std::string name, int64_t calls, double bytes,
                          const std::function<void()>& enqueue) {
    return Time(std::move(name), KernelLimit::kMemory, calls, 0, bytes, [&] {
      enqueue();
      return absl::OkStatus();
    });
  }

  absl::Status Allocate();
  absl::Status TimeProjection(const std::string& name, const ProjectionLayout& layout,
                              int64_t inputs, int64_t outputs);
  absl::Status TimeProjections();
  absl::Status TimeHead();
  absl::Status TimeAttention();
  absl::Status TimeNorms();
  absl::Status TimeElementwise();
  absl::Status TimeOptimizer();

  const v1::ModelConfig& model_;
  const FragmentPlan& plan_;
  const ParameterLayout layout_;
  const int64_t logits_bytes_;
  Gemm& gemm_;
  AttentionProvider& attention_;
  const cudaStream_t stream_;
  const int64_t passes_;  // Micro-batches per step.
  const int64_t sequences_, tokens_;
  const ModelShape shape_;
  const bool adamw_;

  DeviceMemory memory_;
  uint32_t seed_ = 0;
  std::vector<KernelTime> times_;
  __nv_bfloat16* weights_ = nullptr;
  float* gradients_ = nullptr;
  // [tokens, width] each, and the widest rows of a block.
  __nv_bfloat16 *stream_in_ = nullptr, *addend_ = nullptr, *stream_out_ = nullptr,
                *normed_ = nullptr, *wide_in_ = nullptr, *wide_out_ = nullptr;
  float *row_values_ = nullptr, *row_means_ = nullptr;  // [tokens, heads], [tokens]
  float* scratch_ = nullptr;
  int32_t* inputs_ = nullptr;
  int32_t* order_ = nullptr;
};

absl::Status StepKernels::Allocate() {
  ASSIGN_OR_RETURN(weights_, Bf16(plan_.arena_size(), kWeightScale));
  ASSIGN_OR_RETURN(gradients_, Float(plan_.arena_size(), 1e-3F));
  for (auto* buffer : {&stream_in_, &addend_, &stream_out_, &normed_}) {
    ASSIGN_OR_RETURN(*buffer, Bf16(tokens_ * shape_.width));
  }
  const int64_t widest = std::max({shape_.qkv_width, shape_.mlp_inputs, shape_.width});
  for (auto* buffer : {&wide_in_, &wide_out_}) {
    ASSIGN_OR_RETURN(*buffer, Bf16(tokens_ * widest));
  }
  ASSIGN_OR_RETURN(row_values_, Float(tokens_ * model_.heads()));
  ASSIGN_OR_RETURN(row_means_, Float(tokens_));
  std::vector<int32_t> inputs(static_cast<size_t>(tokens_));
  std::vector<int32_t> order(inputs.size());
  ASSIGN_OR_RETURN(inputs_, Upload(inputs));
  FillRandom(tokens_, ++seed_, model_.vocabulary_size(), inputs_, stream_);
  RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(inputs.data(), inputs_, inputs.size() * sizeof(int32_t),
                                            cudaMemcpyDeviceToHost, stream_),
                            "copying tokens"));
  RETURN_IF_ERROR(CheckCuda(cudaStreamSynchronize(stream_), "copying tokens"));
  TokenOrder(model_.vocabulary_size()).Sort(inputs, order);
  ASSIGN_OR_RETURN(order_, Upload(order));
  int64_t scratch = std::max(NormBackwardScratch(tokens_, shape_.width, model_.layer_norm()),
                             EmbeddingBackwardScratch(tokens_, shape_.width));
  scratch = std::max(scratch, BiasBackwardScratch(tokens_, widest));
  scratch = std::max(scratch, RotaryBackwardScratch({.tokens = tokens_,
                                                     .length = model_.sequence_length(),
                                                     .query_heads = model_.heads(),
                                                     .kv_heads = model_.kv_heads(),
                                                     .head_dim = model_.head_dim(),
                                                     .query_weight = weights_,
                                                     .key_weight = weights_}));
  ASSIGN_OR_RETURN(scratch_, Float(std::max<int64_t>(scratch, 1)));
  return absl::OkStatus();
}

absl::Status StepKernels::TimeProjection(const std::string& name, const ProjectionLayout& layout,
                                         int64_t inputs, int64_t outputs) {
  const Projection projection(layout, inputs);
  const int64_t calls = passes_ * model_.layers();
  const double flops = 2.0 * static_cast<double>(tokens_) * static_cast<double>(inputs) *
                       static_cast<double>(outputs);
  RETURN_IF_ERROR(Time(name, KernelLimit::kProducts, calls, flops, 0, [&] {
    return projection.Forward(gemm_, tokens_, weights_, wide_in_, {wide_out_, outputs, 0}, {},
                              stream_);
  }));
  RETURN_IF_ERROR(
      Time(name + ", gradient of its input", KernelLimit::kProducts, calls, flops, 0, [&] {
        return projection.BackwardInput(gemm_, tokens_, weights_, wide_in_, outputs, wide_out_,
                                        stream_);
      }));
  RETURN_IF_ERROR(
      Time(name + ", gradient of its weights", KernelLimit::kProducts, calls, flops, 0, [&] {
        return projection.BackwardWeight(gemm_, tokens_, wide_in_, outputs, wide_out_, passes_ > 1,
                                         GradientPlaces(gradients_), stream_);
      }));
  if (layout.biases.empty()) return absl::OkStatus();
  return TimeMemory(name + ", gradient of its biases", calls,
                    kBf16 * static_cast<double>(tokens_ * outputs), [&] {
                      projection.BackwardBias(tokens_, wide_in_, outputs, true,
                                              GradientPlaces(gradients_), scratch_, stream_);
                    });
}

absl::Status StepKernels::TimeProjections() {
  const BlockLayout& block = layout_.blocks.front();
  RETURN_IF_ERROR(
      TimeProjection("queries, keys, values", block.qkv, shape_.width, shape_.qkv_width));
  RETURN_IF_ERROR(TimeProjection("attention's output", block.o, shape_.query_width, shape_.width));
  RETURN_IF_ERROR(TimeProjection("MLP, up", block.mlp_in, shape_.width, shape_.mlp_inputs));
  return TimeProjection("MLP, down", block.down, shape_.mlp_width, shape_.width);
}

absl::Status StepKernels::TimeHead() {
  const int64_t rows =
      HeadChunk(tokens_, shape_.padded_vocabulary * static_cast<int64_t>(sizeof(__nv_bfloat16)),
                logits_bytes_);
  const int64_t calls = passes_ * ((tokens_ + rows - 1) / rows);
  ASSIGN_OR_RETURN(__nv_bfloat16* const logits, Bf16(rows * shape_.padded_vocabulary));
  const TargetCount count = {.targets = static_cast<int32_t>(tokens_), .factor = 1e-5F};
  ASSIGN_OR_RETURN(const TargetCount* const target_count, Upload<TargetCount>({count}));
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(shape_.width) *
                       static_cast<double>(shape_.padded_vocabulary);
  GemmCall forward;
  forward.m = rows;
  forward.n = shape_.padded_vocabulary;
  forward.k = shape_.width;
  forward.a = {.data = normed_, .stride = shape_.width};
  forward.b = {.data = weights_ + layout_.head, .stride = shape_.width, .transpose = true};
  forward.d = logits;
  forward.d_stride = shape_.padded_vocabulary;
  RETURN_IF_ERROR(Time("head", KernelLimit::kProducts, calls, flops, 0,
                       [&] { return gemm_.Run(forward, stream_); }));
  RETURN_IF_ERROR(TimeMemory("classifier", calls,
                             2 * kBf16 * static_cast<double>(rows * shape_.padded_vocabulary), [&] {
                               Classifier({.rows = rows,
                                           .vocabulary = model_.vocabulary_size(),
                                           .stride = shape_.padded_vocabulary,
                                           .z_loss = static_cast<float>(model_.z_loss()),
                                           .gradient = true,
                                           .logits = logits,
                                           .targets = inputs_,
                                           .count = target_count,
                                           .loss = row_values_,
                                           .log_sum_exp = row_means_},
                                          stream_);
                             }));
  GemmCall input;
  input.m = rows;
  input.n = shape_.width;
  input.k = shape_.padded_vocabulary;
  input.a = {.data = logits, .stride = shape_.padded_vocabulary};
  input.b = {.data = weights_ + layout_.head, .stride = shape_.width};
  input.d = stream_out_;
  input.d_stride = shape_.width;
  RETURN_IF_ERROR(Time("head, gradient of its input", KernelLimit::kProducts, calls, flops, 0,
                       [&] { return gemm_.Run(input, stream_); }));
  GemmCall weights;
  weights.m = shape_.padded_vocabulary;
  weights.n = shape_.width;
  weights.k = rows;
  weights.beta = calls > 1 ? 1.0F : 0.0F;
  weights.a = {.data = logits, .stride = shape_.padded_vocabulary, .transpose = true};
  weights.b = {.data = normed_, .stride = shape_.width};
  weights.d_float = gradients_ + layout_.head;
  weights.d_stride = shape_.width;
  weights.c = weights.d_float;
  return Time("head, gradient of its weights", KernelLimit::kProducts, calls, flops, 0,
              [&] { return gemm_.Run(weights, stream_); });
}

absl::Status StepKernels::TimeAttention() {
  const AttentionShape shape = AttentionOf(model_, static_cast<int>(sequences_));
  const KernelLimit limit =
      attention_.name() == kOwnAttention ? KernelLimit::kAttention : KernelLimit::kProducts;
  const int64_t calls = passes_ * model_.layers();
  const auto length = static_cast<double>(shape.length);
  // One product of a causal half; the forward pass has two, the backward pass five.
  const double product =
      static_cast<double>(sequences_ * shape_.query_width) * length * (length + 1);
  ASSIGN_OR_RETURN(__nv_bfloat16* const out, Bf16(tokens_ * shape_.query_width));
  ASSIGN_OR_RETURN(__nv_bfloat16* const dout, Bf16(tokens_ * shape_.query_width));
  ASSIGN_OR_RETURN(float* const delta, Float(tokens_ * model_.heads()));
  RETURN_IF_ERROR(Time("attention", limit, calls, 2 * product, 0, [&] {
    return attention_.Forward(shape, wide_in_, nullptr, out, row_values_, stream_);
  }));
  return Time("attention, backward", limit, calls, 5 * product, 0, [&] {
    return attention_.Backward(shape, wide_in_, nullptr, out, row_values_, dout, delta, wide_out_,
                               stream_);
  });
}

absl::Status StepKernels::TimeNorms() {
  const NormLayout norm = layout_.blocks.front().mlp_norm;
  const int64_t calls = passes_ * (2 * model_.layers() + 1);
  const double row_bytes = kBf16 * static_cast<double>(tokens_ * shape_.width);
  RETURN_IF_ERROR(TimeMemory("norm and residual", calls, 4 * row_bytes, [&] {
    NormForward({.rows = tokens_,
                 .width = shape_.width,
                 .epsilon = static_cast<float>(model_.norm_epsilon()),
                 .x = stream_in_,
                 .addend = addend_,
                 .weight = Weight(norm.weight),
                 .bias = Weight(norm.bias),
                 .x_out = stream_out_,
                 .out = normed_,
                 .inverse_deviation = row_values_,
                 .mean = row_means_},
                stream_);
  }));
  return TimeMemory("norm, backward", calls, 4 * row_bytes, [&] {
    NormBackward({.rows = tokens_,
                  .width = shape_.width,
                  .dout = addend_,
                  .x = stream_in_,
                  .weight = Weight(norm.weight),
                  .bias = Weight(norm.bias),
                  .inverse_deviation = row_values_,
                  .mean = row_means_,
                  .accumulate_dx = true,
                  .dx = stream_out_,
                  .accumulate_weight = true,
                  .dweight = Gradient(norm.weight),
                  .dbias = Gradient(norm.bias),
                  .scratch = scratch_},
                 stream_);
  });
}

absl::Status StepKernels::TimeElementwise() {
  const int64_t calls = passes_ * model_.layers();
  const auto bytes = [&](int64_t width) { return kBf16 * static_cast<double>(tokens_ * width); };
  const BlockLayout& block = layout_.blocks.front();
  if (layout_.positions < 0 || model_.qk_norm()) {
    const int64_t angles = int64_t{model_.sequence_length()} * model_.head_dim() / 2;
    ASSIGN_OR_RETURN(float* const turns, Float(2 * angles));
    const RotaryShape shape = {.tokens = tokens_,
                               .length = model_.sequence_length(),
                               .query_heads = model_.heads(),
                               .kv_heads = model_.kv_heads(),
                               .head_dim = model_.head_dim(),
                               .query_weight = Weight(block.q_norm),
                               .key_weight = Weight(block.k_norm),
                               .epsilon = static_cast<float>(model_.norm_epsilon()),
                               .cosine = layout_.positions < 0 ? turns : nullptr,
                               .sine = layout_.positions < 0 ? turns + angles : nullptr};
    const int64_t rotated = shape_.query_width + shape_.kv_width;
    RETURN_IF_ERROR(TimeMemory("QK-norm, RoPE", calls, 2 * bytes(rotated), [&] {
      RotaryForward({.shape = shape,
                     .in = wide_in_,
                     .in_stride = shape_.qkv_width,
                     .out = wide_out_,
                     .out_stride = shape_.qkv_width},
                    stream_);
    }));
    const double again = model_.qk_norm() ? bytes(rotated) : 0;
    RETURN_IF_ERROR(TimeMemory("QK-norm, RoPE, backward", calls, 2 * bytes(rotated) + again, [&] {
      RotaryBackward({.shape = shape,
                      .raw = wide_in_,
                      .raw_stride = shape_.qkv_width,
                      .dheads = wide_out_,
                      .dheads_stride = shape_.qkv_width,
                      .accumulate_weight = true,
                      .dquery_weight = Gradient(block.q_norm),
                      .dkey_weight = Gradient(block.k_norm),
                      .scratch = scratch_},
                     stream_);
    }));
  }
  ASSIGN_OR_RETURN(__nv_bfloat16* const hidden, Bf16(tokens_ * shape_.mlp_width));
  RETURN_IF_ERROR(TimeMemory("activation", calls, bytes(shape_.mlp_inputs + shape_.mlp_width), [&] {
    (shape_.gated ? SwigluForward : GeluForward)(tokens_, shape_.mlp_width, wide_in_, hidden,
                                                 stream_);
  }));
  RETURN_IF_ERROR(TimeMemory("activation, backward", calls,
                             bytes(2 * shape_.mlp_inputs + shape_.mlp_width), [&] {
                               (shape_.gated ? SwigluBackward : GeluBackward)(
                                   tokens_, shape_.mlp_width, hidden, wide_in_, nullptr, stream_);
                             }));
  RETURN_IF_ERROR(TimeMemory("embedding", passes_, 2 * bytes(shape_.width), [&] {
    EmbeddingForward({.tokens = tokens_,
                      .length = model_.sequence_length(),
                      .width = shape_.width,
                      .inputs = inputs_,
                      .embedding = Weight(layout_.embedding),
                      .positions = Weight(layout_.positions),
                      .out = stream_out_},
                     stream_);
  }));
  const double rows = static_cast<double>(std::min<int64_t>(tokens_, model_.vocabulary_size()));
  return TimeMemory("embedding, backward", passes_,
                    bytes(shape_.width) + 2 * kFloat * rows * static_cast<double>(shape_.width),
                    [&] {
                      EmbeddingBackward({.tokens = tokens_,
                                         .width = shape_.width,
                                         .inputs = inputs_,
                                         .order = order_,
                                         .dout = stream_in_,
                                         .dembedding = Gradient(layout_.embedding),
                                         .scratch = scratch_},
                                        stream_);
                    });
}

absl::Status StepKernels::TimeOptimizer() {
  const int64_t size = plan_.arena_size();
  ASSIGN_OR_RETURN(float* const master, Float(size, kWeightScale));
  ASSIGN_OR_RETURN(float* const first_moments, Float(size, 1e-3F));
  ASSIGN_OR_RETURN(float* const second_moments, Float(size, 0));
  std::vector<AdamWSlice> slices;
  for (const PlacedTensor& tensor : plan_.tensors()) {
    AppendAdamWSlices({.state = tensor.offset,
                       .second = tensor.offset,
                       .gradient = tensor.offset,
                       .weight = tensor.offset,
                       .weight_decay = 0.1F},
                      tensor.info.size(), &slices);
  }
  ASSIGN_OR_RETURN(const AdamWSlice* const on_device, Upload(slices));
  ASSIGN_OR_RETURN(
      const AdamWStep<float>* const step,
      Upload<AdamWStep<float>>({AdamWStep<float>(1e-4, 0.9, 0.95, 1e-8, /*step=*/1000)}));
  ASSIGN_OR_RETURN(GradientNorm* const norm,
                   Upload<GradientNorm>({{.norm = 1, .factor = 1, .finite = 1}}));
  ASSIGN_OR_RETURN(double* const sums, memory_.Allocate<double>(kStepArena, 1, kLower));
  ASSIGN_OR_RETURN(double* const sum_scratch,
                   memory_.Allocate<double>(kStepArena, SumOfSquaresScratch(size), kLower));
  const auto values = static_cast<double>(size);
  RETURN_IF_ERROR(TimeMemory("gradient norm", 1, kFloat * values, [&] {
    SumOfSquares(size, gradients_, /*accumulate=*/false, sums, sum_scratch, stream_);
    FinishGradientNorm(1, sums, /*clip_norm=*/1, norm, stream_);
  }));
  // Reads the gradient; reads and writes weight and moments; writes the bf16 weight.
  return TimeMemory("AdamW", 1, (7 * kFloat + kBf16) * values, [&] {
    AdamWUpdate({.count = static_cast<int64_t>(slices.size()),
                 .slices = on_device,
                 .step = step,
                 .norm = norm,
                 .gradient = gradients_,
                 .master = master,
                 .m = first_moments,
                 .v = second_moments,
                 .weight = weights_},
                stream_);
  });
}

}  // namespace

double KernelTime::LeastSeconds(const DeviceRates& rates) const {
  return limit == KernelLimit::kAttention ? flops / rates.mma_flops : RooflineSeconds(rates);
}

double KernelTime::RooflineSeconds(const DeviceRates& rates) const {
  return limit == KernelLimit::kMemory ? bytes / rates.copy_bytes : flops / rates.gemm_flops;
}

absl::StatusOr<std::vector<KernelTime>> TimeStepKernels(const v1::RunConfig& config,
                                                        const FragmentPlan& plan,
                                                        const DeviceInfo& device, Gemm& gemm,
                                                        AttentionProvider& attention,
                                                        cudaStream_t stream) {
  StepKernels kernels(config, plan, device, gemm, attention, stream);
  RETURN_IF_ERROR(kernels.Run());
  return std::move(kernels).times();
}

}  // namespace causeway::worker::cuda
