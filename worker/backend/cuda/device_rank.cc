#include "worker/backend/cuda/device_rank.h"

#include "absl/synchronization/notification.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kMicroBatch[] = "a smaller train.micro_batch_sequences";
// About the size of trained weights: what products are timed with. Zeros would draw less power.
constexpr float kRehearsedWeights = 0.05F;

}  // namespace

DeviceRank::DeviceRank(const Options& options)
    : options_(options),
      slots_(options.config->train().batch_sequences() /
             options.config->train().micro_batch_sequences() / options.shards->ranks()),
      micro_tokens_(int64_t{options.config->train().micro_batch_sequences()} *
                    options.config->model().sequence_length()),
      document_masking_(options.config->train().document_masking()),
      slot_values_((document_masking_ ? 4 : 3) * micro_tokens_),
      token_order_(options.config->model().vocabulary_size()) {
  for (const ShardPiece& piece : options.shards->pieces(options.rank)) {
    AppendStateRange({piece.begin, piece.offset, piece.size()}, &ranges_);
  }
}

DeviceRank::~DeviceRank() {
  // Nothing is freed that work still uses.
  if (stream_.get() != nullptr) (void)cudaStreamSynchronize(stream_.get());
  if (exchange_.get() != nullptr) (void)cudaStreamSynchronize(exchange_.get());
}

absl::StatusOr<std::unique_ptr<DeviceRank>> DeviceRank::Create(const Options& options) {
  RETURN_IF_ERROR(UseDevice(options.device.index));
  auto rank = std::unique_ptr<DeviceRank>(new DeviceRank(options));
  RETURN_IF_ERROR(rank->Allocate());
  RETURN_IF_ERROR(rank->Rehearse());
  return rank;
}

absl::Status DeviceRank::Allocate() {
  const v1::RunConfig& config = *options_.config;
  const int64_t arena = options_.plan->arena_size();
  const int64_t own = options_.shards->shard_size(options_.rank);
  ASSIGN_OR_RETURN(stream_, Stream::Create());
  ASSIGN_OR_RETURN(snapshots_done_, Event::Create());
  if (!alone()) {
    ASSIGN_OR_RETURN(exchange_, Stream::Create(/*urgent=*/true));
    ASSIGN_OR_RETURN(gradients_ready_, Event::Create());
    ASSIGN_OR_RETURN(exchanged_, Event::Create());
    for (int stage = 0; stage < options_.shards->stages(); ++stage) {
      ASSIGN_OR_RETURN(Event event, Event::Create());
      weights_gathered_.push_back(std::move(event));
    }
  }
  ASSIGN_OR_RETURN(arrays_.weights,
                   memory_.Allocate<__nv_bfloat16>("bf16 weights", arena, "a smaller model"));
  RETURN_IF_ERROR(AllocateGradients());
  ASSIGN_OR_RETURN(arrays_.master, memory_.Allocate<float>("master weights and moments", own,
                                                           "more GPUs (each keeps its share)"));
  // The gaps between tensors are never written again.
  const int64_t gradients = arrays_.gradients_are_own ? own : arena;
  RETURN_IF_ERROR(ClearAsync(arrays_.weights, arena, stream_.get(), "clearing weights"));
  RETURN_IF_ERROR(ClearAsync(arrays_.gradients, gradients, stream_.get(), "clearing gradients"));
  RETURN_IF_ERROR(ClearAsync(arrays_.master, own, stream_.get(), "clearing master weights"));
  ASSIGN_OR_RETURN(int32_t* const tokens,
                   memory_.Allocate<int32_t>("tokens", 4 * micro_tokens_, kMicroBatch));
  tokens_ = {.inputs = tokens,
             .targets = tokens + micro_tokens_,
             .document_starts = nullptr,
             .order = tokens + 2 * micro_tokens_};
  int32_t* const document_starts = tokens + 3 * micro_tokens_;
  if (document_masking_) tokens_.document_starts = document_starts;
  ASSIGN_OR_RETURN(loss_, memory_.Allocate<StepLoss>("partial sums", 1, ""));
  ASSIGN_OR_RETURN(host_tokens_,
                   PinnedBuffer<int32_t>::Create(static_cast<size_t>(slots_ * slot_values_)));
  ASSIGN_OR_RETURN(host_result_, PinnedBuffer<Result>::Create(1));
  ASSIGN_OR_RETURN(gemm_, options_.make_gemm(options_.device, &memory_));
  if (config.sync().contribution() != v1::SyncConfig::GRADIENT) {
    ASSIGN_OR_RETURN(
        optimizer_,
        DeviceOptimizer::Create(*options_.plan, config.train(), *options_.shards, options_.rank,
                                options_.group, arrays_, options_.muon_rank_values, &memory_,
                                gemm_.get(), options_.probe, stream_.get(), exchange_.get()));
  }
  if (options_.make_attention != nullptr) {
    ASSIGN_OR_RETURN(
        attention_,
        options_.make_attention(options_.device,
                                AttentionOf(config.model(), config.train().micro_batch_sequences()),
                                &memory_));
  }
  ASSIGN_OR_RETURN(
      transformer_,
      CudaTransformer::Create(config.model(), *options_.plan,
                              {.micro_batch_sequences = config.train().micro_batch_sequences(),
                               .recompute = options_.recompute,
                               .logits_bytes = LogitsBytes(options_.device.memory),
                               .attention = attention_.get(),
                               .probe = options_.probe},
                              arrays_.weights,
                              staged_gradients_ == nullptr ? GradientPlaces(arrays_.gradients)
                                                           : staged_gradients_->places(),
                              &memory_, gemm_.get(), stream_.get()));
  DeviceTokens evaluated = tokens_;
  evaluated.document_starts = document_starts;
  return evaluator_.Begin({.transformer = transformer_.get(),
                           .weights = arrays_.weights,
                           .tokens = evaluated,
                           .loss = loss_,
                           .stream = stream_.get()},
                          &memory_);
}

absl::Status DeviceRank::AllocateGradients() {
  if (!alone() && options_.shard_gradients) {
    ASSIGN_OR_RETURN(staged_gradients_,
                     StagedGradients::Create({.plan = options_.plan,
                                              .shards = options_.shards,
                                              .group = options_.group,
                                              .rank = options_.rank,
                                              .tied_head = !options_.config->model().untied_head()},
                                             &memory_, stream_.get(), exchange_.get()));
    arrays_.gradients = staged_gradients_->own();
    arrays_.gradients_are_own = true;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      arrays_.gradients,
      memory_.Allocate<float>(
          "gradients", options_.plan->arena_size(),
          alone() ? "a smaller model" : "--gradients=sharded (each GPU keeps its share)"));
  return alone() ? absl::OkStatus() : ListGaps();
}

absl::Status DeviceRank::ListGaps() {
  std::vector<ClearedRange> gaps;
  for (const ArenaGap& gap : options_.plan->gaps()) {
    gaps.push_back({gap.begin, gap.end - gap.begin});
  }
  gap_count_ = std::ssize(gaps);
  ASSIGN_OR_RETURN(gaps_, memory_.Upload("tables of slices", gaps, "", stream_.get()));
  return absl::OkStatus();
}

CudaTransformer::Pass DeviceRank::PassOf(bool first) const {
  const double micro_batches = static_cast<double>(slots_) * options_.shards->ranks();
  return {.tokens = tokens_,
          .gradient_scale = static_cast<float>(1.0F / static_cast<float>(micro_batches)),
          .loss_weight = 1 / micro_batches,
          .accumulate = !first && staged_gradients_ == nullptr,
          .accumulate_loss = !first,
          .loss = loss_};
}

absl::Status DeviceRank::Rehearse() {
  std::fill_n(host_tokens_.data(), host_tokens_.size(), 0);
  RETURN_IF_ERROR(CopyTokens(0));
  const int64_t arena = options_.plan->arena_size();
  FillRandom(arena, /*seed=*/1, kRehearsedWeights, arrays_.weights, stream_.get());
  gemm_->SetTuning(true);
  for (const bool first : {true, false}) {
    RETURN_IF_ERROR(transformer_->ForwardBackward(PassOf(first), {}, stream_.get()));
  }
  if (has_optimizer()) RETURN_IF_ERROR(optimizer_->Rehearse(stream_.get()));
  RETURN_IF_ERROR(ClearAsync(arrays_.weights, arena, stream_.get(), "clearing weights"));
  RETURN_IF_ERROR(stream_.Wait("a first micro-step"));
  gemm_->SetTuning(false);
  if (!options_.graphs || staged_gradients_ != nullptr) return absl::OkStatus();
  for (const bool first : {true, false}) {
    auto& graph = first ? first_micro_step_ : next_micro_step_;
    ASSIGN_OR_RETURN(graph, Graph::Record(stream_.get(), [&] {
                       return transformer_->ForwardBackward(PassOf(first), {}, stream_.get());
                     }));
  }
  return absl::OkStatus();
}

MicroBatch DeviceRank::HostTokens(int slot) {
  const auto tokens = static_cast<size_t>(micro_tokens_);
  int32_t* const data = host_tokens_.data() + slot * slot_values_;
  return {.inputs = {data, tokens},
          .targets = {data + tokens, tokens},
          .document_starts = {data + 3 * tokens, document_masking_ ? tokens : 0}};
}

absl::Status DeviceRank::CopyTokens(int slot) {
  const auto tokens = static_cast<size_t>(micro_tokens_);
  int32_t* const data = host_tokens_.data() + slot * slot_values_;
  token_order_.Sort({data, tokens}, {data + 2 * tokens, tokens});
  return CopyAsync(tokens_.inputs, data, slot_values_, stream_.get(), "copying tokens");
}

absl::Status DeviceRank::Begin(bool refresh_all, const std::vector<int>& refresh_fragments) {
  RETURN_IF_ERROR(UseDevice(device()));
  if (!has_optimizer()) RETURN_IF_ERROR(snapshots_done_.HoldUp(stream_.get()));
  if (gap_count_ > 0) ClearRanges(gap_count_, gaps_, arrays_.gradients, stream_.get());
  if (refresh_all) {
    // Sums and copies that are under way end first.
    RETURN_IF_ERROR(WaitForExchange());
    for (const StateRange& range : ranges_) {
      CastToBf16(range.size, arrays_.master + range.offset, arrays_.weights + range.begin,
                 stream_.get());
    }
  }
  if (alone() || (!refresh_all && refresh_fragments.empty())) {
    return CheckLaunches("casting weights");
  }
  return GatherWeights([&](const ShardBucket& bucket) {
    return refresh_all || std::ranges::count(refresh_fragments, bucket.fragment) > 0;
  });
}

absl::Status DeviceRank::WaitForExchange() {
  if (alone()) return absl::OkStatus();
  RETURN_IF_ERROR(exchanged_.Record(exchange_.get()));
  return exchanged_.HoldUp(stream_.get());
}

absl::Status DeviceRank::MicroStep(int slot) {
  RETURN_IF_ERROR(CopyTokens(slot));
  const bool first = slot == 0;
  const bool last = slot == slots_ - 1;
  const Graph& graph = first ? first_micro_step_ : next_micro_step_;
  const bool is_probed = options_.probe != nullptr && options_.probe->is_active();
  if (graph.recorded() && !is_probed && (alone() || !(first || last))) {
    return graph.Start(stream_.get());
  }
  StageHooks hooks;
  if (!alone() && first) {
    hooks.before_forward = [this](int stage) {
      return weights_gathered_[static_cast<size_t>(stage)].HoldUp(stream_.get());
    };
  }
  if (staged_gradients_ != nullptr) {
    hooks.before_backward = [this](int stage) {
      return staged_gradients_->Begin(stage, stream_.get());
    };
    hooks.after_backward = [this, first](int stage) {
      return staged_gradients_->Sum(stage, /*accumulate=*/!first, stream_.get());
    };
  } else if (!alone() && last) {
    hooks.after_backward = [this](int stage) { return SumBuckets(stage); };
  }
  return transformer_->ForwardBackward(PassOf(first), hooks, stream_.get());
}

absl::Status DeviceRank::SumBuckets(int stage) {
  const auto ready = [stage](const ShardBucket& bucket) { return bucket.stage == stage; };
  if (std::ranges::none_of(options_.shards->buckets(), ready)) return absl::OkStatus();
  RETURN_IF_ERROR(gradients_ready_.Record(stream_.get()));
  RETURN_IF_ERROR(gradients_ready_.HoldUp(exchange_.get()));
  return InABatch(ready, [&](int64_t begin, std::span<const int64_t> bounds) {
    return options_.group->ReduceScatterSum(arrays_.gradients + begin, bounds, GroupType::kFloat,
                                            exchange_.get());
  });
}

template <typename Which, typename Call>
absl::Status DeviceRank::InABatch(const Which& which, const Call& call) {
  RETURN_IF_ERROR(options_.group->BeginBatch());
  for (const ShardBucket& bucket : options_.shards->buckets()) {
    if (!which(bucket)) continue;
    std::vector<int64_t> bounds = bucket.bounds;
    for (int64_t& bound : bounds) bound -= bucket.begin();
    RETURN_IF_ERROR(call(bucket.begin(), bounds));
  }
  return options_.group->EndBatch();
}

absl::Status DeviceRank::GatherWeights(const std::function<bool(const ShardBucket&)>& which) {
  RETURN_IF_ERROR(gradients_ready_.Record(stream_.get()));
  RETURN_IF_ERROR(gradients_ready_.HoldUp(exchange_.get()));
  // In the order in which the forward pass needs them: what is ready last comes first.
  for (int stage = options_.shards->stages() - 1; stage >= 0; --stage) {
    RETURN_IF_ERROR(
        InABatch([&](const ShardBucket& bucket) { return bucket.stage == stage && which(bucket); },
                 [&](int64_t begin, std::span<const int64_t> bounds) {
                   return options_.group->AllGather(arrays_.weights + begin, bounds,
                                                    GroupType::kBf16, exchange_.get());
                 }));
    RETURN_IF_ERROR(weights_gathered_[static_cast<size_t>(stage)].Record(exchange_.get()));
  }
  return absl::OkStatus();
}

absl::Status DeviceRank::Finish(int64_t step, int64_t update) {
  RETURN_IF_ERROR(WaitForExchange());
  if (has_optimizer()) {
    RETURN_IF_ERROR(optimizer_->ComputeNorm(stream_.get()));
    RETURN_IF_ERROR(snapshots_done_.HoldUp(stream_.get()));
    RETURN_IF_ERROR(optimizer_->Update(step, update, stream_.get()));
    if (!alone()) {
      RETURN_IF_ERROR(GatherWeights([](const ShardBucket&) { return true; }));
    }
    RETURN_IF_ERROR(CopyAsync(&host_result_[0].norm, optimizer_->norm(), 1, stream_.get(),
                              "copying the gradient's norm"));
  }
  return CopyAsync(&host_result_[0].loss, loss_, 1, stream_.get(), "copying the loss");
}

absl::StatusOr<DeviceRank::Result> DeviceRank::Wait() {
  RETURN_IF_ERROR(stream_.Wait("a training step"));
  if (!alone()) RETURN_IF_ERROR(options_.group->status());
  return host_result_[0];
}

absl::Status DeviceRank::FillPieces(const std::vector<StateRange>& ranges, float* own,
                                    std::span<const float> from) {
  constexpr char kWhat[] = "copying state to the GPU";
  RETURN_IF_ERROR(UseDevice(device()));
  for (const StateRange& range : ranges) {
    RETURN_IF_ERROR(
        CopyAsync(own + range.offset, from.data() + range.begin, range.size, stream_.get(), kWhat));
  }
  return stream_.Wait(kWhat);
}

absl::Status DeviceRank::CopyPieces(const std::vector<StateRange>& ranges, const float* own,
                                    std::span<float> to) {
  constexpr char kWhat[] = "copying state from the GPU";
  RETURN_IF_ERROR(UseDevice(device()));
  for (const StateRange& range : ranges) {
    RETURN_IF_ERROR(
        CopyAsync(to.data() + range.begin, own + range.offset, range.size, stream_.get(), kWhat));
  }
  return stream_.Wait(kWhat);
}

absl::Status DeviceRank::SetMaster(std::span<const float> arena) {
  RETURN_IF_ERROR(snapshots_done_.HoldUp(stream_.get()));
  return FillPieces(ranges_, arrays_.master, arena);
}

absl::Status DeviceRank::SetMoments(std::span<const float> first, std::span<const float> second) {
  RETURN_IF_ERROR(FillPieces(ranges_, optimizer_->first_moments(), first));
  return FillPieces(optimizer_->second_moment_ranges(), optimizer_->second_moments(), second);
}

absl::Status DeviceRank::CopyMaster(std::span<float> arena) {
  return CopyPieces(ranges_, arrays_.master, arena);
}

absl::Status DeviceRank::CopyMoments(std::span<float> first, std::span<float> second) {
  RETURN_IF_ERROR(CopyPieces(ranges_, optimizer_->first_moments(), first));
  return CopyPieces(optimizer_->second_moment_ranges(), optimizer_->second_moments(), second);
}

absl::Status DeviceRank::UseParameters(std::span<const float> parameters) {
  RETURN_IF_ERROR(UseDevice(device()));
  RETURN_IF_ERROR(WaitForExchange());
  return evaluator_.UseParameters(parameters);
}

void DeviceThread::Post(Task task) {
  queue_.Run([this, task = std::move(task)] {
    if (!status_.ok()) return;
    status_ = task();
    if (!status_.ok()) failed_(status_);
  });
}

absl::Status DeviceThread::Wait() {
  absl::Status first;
  absl::Notification done;
  queue_.Run([&] {
    first = std::exchange(status_, absl::OkStatus());
    done.Notify();
  });
  done.WaitForNotification();
  return first;
}

}  // namespace causeway::worker::cuda
