#include "worker/backend/cuda/cuda_transformer.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kLowerActivations[] = "a smaller train.micro_batch_sequences, or --recompute=block,";
constexpr char kLowerLogits[] = "a smaller train.micro_batch_sequences";
constexpr int64_t kHeadRows = 64;  // The head's chunks are multiples of it.

absl::Status CheckField(const char* field, int64_t value, int64_t multiple, int64_t most) {
  if (value % multiple == 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " must be a multiple of ", multiple,
                                                 " and at most ", most, " on a GPU; it is ", value,
                                                 ". Train this model with --device=cpu"));
}

// `to` = what was allocated.
template <typename T>
absl::Status AssignOr(T*& to, absl::StatusOr<T*> memory) {
  if (!memory.ok()) return memory.status();
  to = *memory;
  return absl::OkStatus();
}

}  // namespace

int64_t LogitsBytes(size_t device_memory) {
  constexpr int64_t kMost = int64_t{2} << 30;
  return std::clamp(static_cast<int64_t>(device_memory / 32), kLeastLogitsBytes, kMost);
}

int64_t HeadChunk(int64_t tokens, int64_t row_bytes, int64_t budget) {
  const int64_t limit = std::clamp<int64_t>(budget / row_bytes / kHeadRows * kHeadRows, kHeadRows,
                                            tokens + kHeadRows - 1);
  const int64_t chunks = (tokens + limit - 1) / limit;
  const int64_t rows = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (rows + kHeadRows - 1) / kHeadRows * kHeadRows);
}

AttentionShape AttentionOf(const v1::ModelConfig& model, int sequences) {
  return {.sequences = sequences,
          .length = model.sequence_length(),
          .heads = model.heads(),
          .kv_heads = model.kv_heads(),
          .head_dim = model.head_dim()};
}

absl::Status CheckShape(const v1::ModelConfig& model) {
  RETURN_IF_ERROR(CheckField("model.width", model.width(), kVectorValues, kMaxNormWidth));
  RETURN_IF_ERROR(
      CheckField("model.mlp_width", model.mlp_width(), kVectorValues, int64_t{1} << 30));
  for (const auto& [field, heads] :
       {std::pair("model.heads * model.head_dim", model.heads()),
        std::pair("model.kv_heads * model.head_dim", model.kv_heads())}) {
    RETURN_IF_ERROR(
        CheckField(field, int64_t{heads} * model.head_dim(), kVectorValues, int64_t{1} << 30));
  }
  const char* const refusal = AttentionRefusal(AttentionOf(model, /*sequences=*/1));
  if (refusal == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(refusal, "; or train this model with --device=cpu"));
}

CudaTransformer::Block::Block(const BlockLayout& layout, const CudaTransformer& of)
    : at(layout),
      qkv("queries, keys, values", layout.qkv, of.shape_.width,
          of.shape_.qk_norm ? of.shape_.query_width + of.shape_.kv_width : 0),
      o("attention's output", layout.o, of.shape_.query_width),
      mlp_in("MLP, up", layout.mlp_in, of.shape_.width),
      down("MLP, down", layout.down, of.shape_.mlp_width) {}

CudaTransformer::CudaTransformer(const v1::ModelConfig& model, const FragmentPlan& plan,
                                 const Options& options, const __nv_bfloat16* weights,
                                 const GradientPlaces& gradients, Gemm* gemm)
    : layout_(ParameterLayout::Create(model, plan)),
      options_(options),
      weights_(weights),
      gradients_(gradients),
      gemm_(*gemm),
      attention_(options.attention == nullptr ? own_attention_ : *options.attention),
      shape_(model),
      epsilon_(static_cast<float>(model.norm_epsilon())),
      z_loss_(static_cast<float>(model.z_loss())) {
  for (const BlockLayout& block : layout_.blocks) blocks_.emplace_back(block, *this);
}

absl::StatusOr<std::unique_ptr<CudaTransformer>> CudaTransformer::Create(
    const v1::ModelConfig& model, const FragmentPlan& plan, const Options& options,
    const __nv_bfloat16* weights, const GradientPlaces& gradients, DeviceMemory* memory, Gemm* gemm,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape(model));
  auto transformer = std::unique_ptr<CudaTransformer>(
      new CudaTransformer(model, plan, options, weights, gradients, gemm));
  RETURN_IF_ERROR(transformer->Allocate(*memory));
  RETURN_IF_ERROR(transformer->FillAngles(model, *memory, stream));
  return transformer;
}

absl::Status CudaTransformer::AllocateActivations(DeviceMemory& memory) {
  const int64_t tokens = int64_t{options_.micro_batch_sequences} * shape_.length;
  const auto take = [&]<typename T>(T*& to, int64_t width) {
    return AssignOr(to, memory.Allocate<T>("activations", tokens * width, kLowerActivations));
  };
  const bool keeps_normed = options_.recompute == Recompute::kNone;
  __nv_bfloat16* shared_hidden = nullptr;
  if (!keeps_normed) RETURN_IF_ERROR(take(shared_hidden, shape_.mlp_width));
  for (Block& block : blocks_) {
    BlockActivations& kept = block.kept;
    if (options_.recompute == Recompute::kBlocks && &block != &blocks_.front()) {
      kept = blocks_.front().kept;
      RETURN_IF_ERROR(take(kept.attention_input, shape_.width));
      continue;
    }
    RETURN_IF_ERROR(take(kept.attention_input, shape_.width));
    RETURN_IF_ERROR(take(kept.attention_deviation, 1));
    if (shape_.qk_norm) RETURN_IF_ERROR(take(kept.raw_qk, shape_.query_width + shape_.kv_width));
    RETURN_IF_ERROR(take(kept.qkv, shape_.qkv_width));
    RETURN_IF_ERROR(take(kept.attention, shape_.query_width));
    RETURN_IF_ERROR(take(kept.log_sum_exp, shape_.heads));
    RETURN_IF_ERROR(take(kept.mlp_input, shape_.width));
    RETURN_IF_ERROR(take(kept.mlp_deviation, 1));
    RETURN_IF_ERROR(take(kept.pre_activation, shape_.mlp_inputs));
    if (shape_.layer_norm) {
      RETURN_IF_ERROR(take(kept.attention_mean, 1));
      RETURN_IF_ERROR(take(kept.mlp_mean, 1));
    }
    if (keeps_normed) {
      RETURN_IF_ERROR(take(kept.attention_normed, shape_.width));
      RETURN_IF_ERROR(take(kept.mlp_normed, shape_.width));
      RETURN_IF_ERROR(take(kept.hidden, shape_.mlp_width));
    } else {
      kept.attention_normed = normed_;
      kept.mlp_normed = normed_;
      kept.hidden = shared_hidden;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaTransformer::Allocate(DeviceMemory& memory) {
  const int64_t tokens = int64_t{options_.micro_batch_sequences} * shape_.length;
  const auto take = [&]<typename T>(T*& to, int64_t width) {
    return AssignOr(to, memory.Allocate<T>("activations' gradients", tokens * width, kLowerLogits));
  };
  for (auto* buffer : {&final_input_, &normed_, &projected_, &dresidual_, &dnormed_}) {
    RETURN_IF_ERROR(take(*buffer, shape_.width));
  }
  RETURN_IF_ERROR(take(dhidden_, shape_.mlp_width));
  RETURN_IF_ERROR(take(dattention_, shape_.query_width));
  RETURN_IF_ERROR(take(dqkv_, shape_.qkv_width));
  for (auto* buffer : {&final_deviation_, &row_loss_, &row_lse_}) RETURN_IF_ERROR(take(*buffer, 1));
  if (shape_.layer_norm) RETURN_IF_ERROR(take(final_mean_, 1));
  RETURN_IF_ERROR(take(delta_, shape_.heads));
  RETURN_IF_ERROR(AllocateActivations(memory));

  head_chunk_ =
      HeadChunk(tokens, shape_.padded_vocabulary * static_cast<int64_t>(sizeof(__nv_bfloat16)),
                options_.logits_bytes);
  RETURN_IF_ERROR(
      AssignOr(logits_, memory.Allocate<__nv_bfloat16>(
                            "logits", head_chunk_ * shape_.padded_vocabulary, kLowerLogits)));
  RETURN_IF_ERROR(AssignOr(target_count_, memory.Allocate<TargetCount>("partial sums", 1, "")));

  Begin({}, tokens, shape_.length, /*accumulate=*/false, /*stream=*/nullptr);
  int64_t scratch = std::max({NormBackwardScratch(tokens, shape_.width, shape_.layer_norm),
                              EmbeddingBackwardScratch(tokens, shape_.width), int64_t{1}});
  for (const Block& block : blocks_) {
    scratch = std::max({scratch, block.qkv.BiasScratch(tokens), block.o.BiasScratch(tokens),
                        block.mlp_in.BiasScratch(tokens), block.down.BiasScratch(tokens)});
    if (shape_.qk_norm) scratch = std::max(scratch, RotaryBackwardScratch(Rotary(block)));
  }
  return AssignOr(scratch_, memory.Allocate<float>("partial sums", scratch, kLowerLogits));
}

absl::Status CudaTransformer::FillAngles(const v1::ModelConfig& model, DeviceMemory& memory,
                                         cudaStream_t stream) {
  if (model.learned_positions() > 0) return absl::OkStatus();
  std::vector<float> cosine;
  std::vector<float> sine;
  worker::FillAngles(model, shape_.length, cosine, sine);
  for (const auto& [to, values] : {std::pair(&cosine_, &cosine), std::pair(&sine_, &sine)}) {
    RETURN_IF_ERROR(AssignOr(*to, memory.Upload("angles of positions", *values,
                                                "a smaller model.sequence_length", stream)));
  }
  return absl::OkStatus();
}

CudaTransformer::NormPlace CudaTransformer::AttentionNorm(const Block& block) {
  return {block.kept.attention_input, block.at.attention_norm, block.kept.attention_deviation,
          block.kept.attention_mean};
}

CudaTransformer::NormPlace CudaTransformer::MlpNorm(const Block& block) {
  return {block.kept.mlp_input, block.at.mlp_norm, block.kept.mlp_deviation, block.kept.mlp_mean};
}

CudaTransformer::NormPlace CudaTransformer::FinalNorm() const {
  return {final_input_, layout_.final_norm, final_deviation_, final_mean_};
}

RotaryShape CudaTransformer::Rotary(const Block& block) const {
  return {.tokens = pass_.tokens,
          .length = present_length_,
          .query_heads = shape_.heads,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .query_weight = Weight(block.at.q_norm),
          .key_weight = Weight(block.at.k_norm),
          .epsilon = epsilon_,
          .cosine = cosine_,
          .sine = sine_};
}

AttentionCall CudaTransformer::Attention(const Block& block) const {
  return {.shape = {.sequences = static_cast<int>(pass_.tokens / present_length_),
                    .length = static_cast<int>(present_length_),
                    .heads = static_cast<int>(shape_.heads),
                    .kv_heads = static_cast<int>(shape_.kv_heads),
                    .head_dim = static_cast<int>(shape_.head_dim)},
          .qkv = block.kept.qkv,
          .document_starts = tokens_.document_starts,
          .out = block.kept.attention,
          .log_sum_exp = block.kept.log_sum_exp,
          .dout = dattention_,
          .delta = delta_,
          .dqkv = dqkv_};
}

void CudaTransformer::Begin(const DeviceTokens& tokens, int64_t count, int64_t length,
                            bool accumulate, cudaStream_t stream) {
  tokens_ = tokens;
  present_length_ = length;
  pass_ = {.gemm = &gemm_,
           .probe = options_.probe,
           .weights = weights_,
           .tokens = count,
           .stream = stream,
           .gradients = &gradients_,
           .accumulate = accumulate,
           .scratch = scratch_};
}

StepKernel CudaTransformer::AttentionKernel(const char* name, int products) const {
  const auto length = static_cast<double>(present_length_);
  return {
      .name = name,
      .limit =
          attention_.name() == kOwnAttention ? KernelLimit::kAttention : KernelLimit::kProducts,
      .flops = products * static_cast<double>(pass_.tokens * shape_.query_width) * (length + 1)};
}

absl::Status CudaTransformer::Norm(const NormPlace& place, const __nv_bfloat16* addend,
                                   __nv_bfloat16* x_out, __nv_bfloat16* out) {
  const int64_t rows = addend == nullptr ? 2 : 4;
  return Probed(TokenKernel("norm and residual", rows * shape_.width), [&] {
    NormForward({.rows = pass_.tokens,
                 .width = shape_.width,
                 .epsilon = epsilon_,
                 .x = place.x,
                 .addend = addend,
                 .weight = Weight(place.layout.weight),
                 .bias = Weight(place.layout.bias),
                 .x_out = x_out,
                 .out = out,
                 .inverse_deviation = place.deviation,
                 .mean = place.mean},
                pass_.stream);
  });
}

absl::Status CudaTransformer::ForwardBackward(const Pass& pass, const StageHooks& hooks,
                                              cudaStream_t stream) {
  Begin(pass.tokens, options_.micro_batch_sequences * shape_.length, shape_.length, pass.accumulate,
        stream);
  RETURN_IF_ERROR(ForwardToHead(&hooks));
  if (hooks.before_backward != nullptr) RETURN_IF_ERROR(hooks.before_backward(0));
  RETURN_IF_ERROR(Head(&pass, pass.loss));
  RETURN_IF_ERROR(Backward(hooks));
  return CheckLaunches("forward and backward pass");
}

absl::Status CudaTransformer::Forward(const DeviceTokens& tokens, int sequences, int64_t length,
                                      StepLoss* loss, cudaStream_t stream) {
  Begin(tokens, sequences * length, length, /*accumulate=*/false, stream);
  RETURN_IF_ERROR(ForwardToHead(nullptr));
  RETURN_IF_ERROR(Head(nullptr, loss));
  return CheckLaunches("forward pass");
}

absl::Status CudaTransformer::ForwardToHead(const StageHooks* hooks) {
  const auto layers = static_cast<int>(blocks_.size());
  const auto needs = [&](int stage) {
    return hooks == nullptr || hooks->before_forward == nullptr ? absl::OkStatus()
                                                                : hooks->before_forward(stage);
  };
  RETURN_IF_ERROR(needs(layers + 1));
  RETURN_IF_ERROR(Probed(TokenKernel("embedding", 2 * shape_.width), [&] {
    EmbeddingForward({.tokens = pass_.tokens,
                      .length = present_length_,
                      .width = shape_.width,
                      .inputs = tokens_.inputs,
                      .embedding = Weight(layout_.embedding),
                      .positions = Weight(layout_.positions),
                      .out = blocks_.front().kept.attention_input},
                     pass_.stream);
  }));
  for (int i = 0; i < layers; ++i) {
    Block& block = blocks_[static_cast<size_t>(i)];
    BlockActivations& kept = block.kept;
    RETURN_IF_ERROR(needs(layers - i));
    NormPlace norm = AttentionNorm(block);
    if (i == 0) {
      RETURN_IF_ERROR(Norm(norm, nullptr, nullptr, kept.attention_normed));
    } else {
      norm.x = blocks_[static_cast<size_t>(i - 1)].kept.mlp_input;
      RETURN_IF_ERROR(Norm(norm, projected_, kept.attention_input, kept.attention_normed));
    }
    RETURN_IF_ERROR(AttentionForwardPass(block));
    norm = MlpNorm(block);
    norm.x = kept.attention_input;
    RETURN_IF_ERROR(Norm(norm, projected_, kept.mlp_input, kept.mlp_normed));
    RETURN_IF_ERROR(MlpForwardPass(block));
  }
  RETURN_IF_ERROR(needs(0));
  NormPlace norm = FinalNorm();
  norm.x = blocks_.back().kept.mlp_input;
  return Norm(norm, projected_, final_input_, normed_);
}

absl::Status CudaTransformer::AttentionForwardPass(Block& block) {
  BlockActivations& kept = block.kept;
  const Projection::Output qkv = {.data = kept.qkv, .stride = shape_.qkv_width};
  const Projection::Output raw = {.data = kept.raw_qk,
                                  .stride = shape_.query_width + shape_.kv_width};
  const Projection::Output& queries = shape_.qk_norm ? raw : qkv;
  RETURN_IF_ERROR(block.qkv.Forward(pass_, kept.attention_normed, queries, qkv));
  if (shape_.qk_norm || cosine_ != nullptr) {
    RETURN_IF_ERROR(Probed(TokenKernel("QK-norm, RoPE", 2 * (shape_.query_width + shape_.kv_width),
                                       /*in_place=*/!shape_.qk_norm),
                           [&] {
                             RotaryForward({.shape = Rotary(block),
                                            .in = queries.data,
                                            .in_stride = queries.stride,
                                            .out = kept.qkv,
                                            .out_stride = shape_.qkv_width},
                                           pass_.stream);
                           }));
  }
  RETURN_IF_ERROR(Probed(AttentionKernel("attention", 2),
                         [&] { return attention_.Forward(Attention(block), pass_.stream); }));
  return block.o.Forward(pass_, kept.attention, projected_);
}

absl::Status CudaTransformer::MlpForwardPass(Block& block) {
  BlockActivations& kept = block.kept;
  RETURN_IF_ERROR(block.mlp_in.Forward(pass_, kept.mlp_normed, kept.pre_activation));
  const auto activation = shape_.gated ? SwigluForward : GeluForward;
  RETURN_IF_ERROR(Probed(TokenKernel("activation", shape_.mlp_inputs + shape_.mlp_width), [&] {
    activation(pass_.tokens, shape_.mlp_width, kept.pre_activation, kept.hidden, pass_.stream);
  }));
  return block.down.Forward(pass_, kept.hidden, projected_);
}

absl::Status CudaTransformer::Head(const Pass* pass, StepLoss* loss) {
  CountTargets(pass_.tokens, tokens_.targets, pass == nullptr ? 1.0F : pass->gradient_scale,
               target_count_, pass_.stream);
  const __nv_bfloat16* const head = Weight(layout_.head);
  for (int64_t begin = 0; begin < pass_.tokens; begin += head_chunk_) {
    const int64_t rows = std::min(head_chunk_, pass_.tokens - begin);
    const __nv_bfloat16* const normed = normed_ + begin * shape_.width;
    const auto product = [&](const char* name, const GemmCall& call) {
      return Probed(ProductKernel(name, call.m, call.n, call.k),
                    [&] { return gemm_.Run(call, pass_.stream); });
    };
    RETURN_IF_ERROR(product("head", {.m = rows,
                                     .n = shape_.padded_vocabulary,
                                     .k = shape_.width,
                                     .a = {.data = normed, .stride = shape_.width},
                                     .b = {.data = head, .stride = shape_.width, .transpose = true},
                                     .d = logits_,
                                     .d_stride = shape_.padded_vocabulary}));
    RETURN_IF_ERROR(
        Probed(MemoryKernel("classifier", 2 * kBf16Bytes * rows * shape_.padded_vocabulary,
                            /*in_place=*/true),
               [&] {
                 Classifier({.rows = rows,
                             .vocabulary = shape_.vocabulary,
                             .stride = shape_.padded_vocabulary,
                             .z_loss = z_loss_,
                             .gradient = pass != nullptr,
                             .logits = logits_,
                             .targets = tokens_.targets + begin,
                             .count = target_count_,
                             .loss = row_loss_ + begin,
                             .log_sum_exp = row_lse_ + begin},
                            pass_.stream);
               }));
    if (pass == nullptr) continue;
    RETURN_IF_ERROR(product("head, gradient of its input",
                            {.m = rows,
                             .n = shape_.width,
                             .k = shape_.padded_vocabulary,
                             .a = {.data = logits_, .stride = shape_.padded_vocabulary},
                             .b = {.data = head, .stride = shape_.width},
                             .d = dnormed_ + begin * shape_.width,
                             .d_stride = shape_.width}));
    float* const dhead = Gradient(layout_.head);
    RETURN_IF_ERROR(
        product("head, gradient of its weights",
                {.m = shape_.padded_vocabulary,
                 .n = shape_.width,
                 .k = rows,
                 .beta = begin > 0 || pass->accumulate ? 1.0F : 0.0F,
                 .a = {.data = logits_, .stride = shape_.padded_vocabulary, .transpose = true},
                 .b = {.data = normed, .stride = shape_.width},
                 .d_float = dhead,
                 .d_stride = shape_.width,
                 .c = dhead}));
  }
  ReduceLoss(pass_.tokens, row_loss_, row_lse_, z_loss_, target_count_,
             pass == nullptr ? 1.0 : pass->loss_weight, pass != nullptr && pass->accumulate_loss,
             loss, pass_.stream);
  return absl::OkStatus();
}

}  // namespace causeway::worker::cuda
