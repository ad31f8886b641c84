#include "worker/backend/cuda/cuda_backend.h"

#include "absl/strings/str_format.h"
#include "worker/sync/site_backend.h"

namespace causeway::worker::cuda {
namespace {

int RanksOf(const CudaBackend::Options& options) {
  return options.ranks > 0 ? options.ranks : static_cast<int>(options.devices.size());
}

}  // namespace

CudaBackend::CudaBackend(const v1::RunConfig& config, const FragmentPlan& plan,
                         const Options& options)
    : config_(config),
      plan_(plan),
      options_(options),
      shards_(plan, RanksOf(options), options.least_bucket),
      has_optimizer_(config.sync().contribution() != v1::SyncConfig::GRADIENT) {}

CudaBackend::~CudaBackend() {
  // A GPU that waits for others would wait for ever.
  if (!broken_.ok()) {
    for (const auto& group : groups_) group->Abort(broken_);
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->Post([this, i] {
      ranks_[i].reset();
      return absl::OkStatus();
    });
  }
  threads_.clear();
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const v1::RunConfig& config,
                                                                 const FragmentPlan& plan,
                                                                 const Options& options) {
  RETURN_IF_ERROR(CheckShape(config.model()));
  RETURN_IF_ERROR(CheckShares(config.train(), RanksOf(options)));
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(config, plan, options));
  RETURN_IF_ERROR(backend->Build());
  return backend;
}

absl::Status CudaBackend::Build() {
  const size_t devices = options_.devices.size();
  if (shards_.ranks() > 1) {
    ASSIGN_OR_RETURN(groups_, options_.make_groups(options_.devices));
  }
  ranks_.resize(devices);
  absl::Status status;
  for (size_t i = 0; i < devices; ++i) {
    threads_.push_back(std::make_unique<DeviceThread>([this, i](const absl::Status& failed) {
      // Before, nobody waits for another one, and what does not fit is tried with less.
      if (built_ && !groups_.empty()) groups_[i]->Abort(failed);
    }));
    status.Update(threads_.back()->started());
  }
  if (status.ok()) status = BuildLevels();
  if (!status.ok()) {
    for (const auto& group : groups_) group->Abort(status);
  }
  built_ = true;
  return status;
}

absl::Status CudaBackend::BuildLevels() {
  std::vector<Recompute> levels = {Recompute::kNone, Recompute::kNorms, Recompute::kBlocks};
  if (options_.recompute.has_value()) levels = {*options_.recompute};
  absl::Status status;
  for (const Recompute level : levels) {
    std::atomic<bool> has_workspace = false;
    MakeAttention make;
    if (options_.make_attention != nullptr) {
      make = [&](const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory) {
        auto made = options_.make_attention(device, shape, memory);
        if (!made.ok() || (*made)->workspace_bytes() > 0) has_workspace = true;
        return made;
      };
    }
    status = BuildRanks(level, make);
    if (!absl::IsResourceExhausted(status)) return status;
    if (!has_workspace || options_.make_sparing_attention == nullptr) continue;
    status = BuildRanks(level, options_.make_sparing_attention);
    if (!absl::IsResourceExhausted(status)) return status;
  }
  return status;
}

int64_t CudaBackend::LaterBytes(size_t device) const {
  // Memory of libraries and graphs.
  const auto others =
      static_cast<int64_t>(std::min(options_.devices[device].memory / 64, size_t{1} << 30));
  return others + DeviceReplicaBytes(plan_, shards_, config_.sync(), RankOf(device),
                                     options_.published_on_device);
}

absl::Status CudaBackend::BuildRanks(Recompute recompute, const MakeAttention& make_attention) {
  recompute_ = recompute;
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->Post([this, i, recompute, &make_attention] {
      ranks_[i].reset();
      DeviceMemory reserve;  // Given back when the rank stands.
      if (!options_.recompute.has_value()) {
        RETURN_IF_ERROR(UseDevice(options_.devices[i].index));
        RETURN_IF_ERROR(reserve.Allocate<std::byte>("a reserve", LaterBytes(i), "").status());
      }
      auto rank = DeviceRank::Create({.config = &config_,
                                      .plan = &plan_,
                                      .shards = &shards_,
                                      .group = groups_.empty() ? nullptr : groups_[i].get(),
                                      .device = options_.devices[i],
                                      .rank = RankOf(i),
                                      .recompute = recompute,
                                      .graphs = options_.graphs,
                                      .shard_gradients = options_.shard_gradients,
                                      .make_gemm = options_.make_gemm,
                                      .make_attention = make_attention,
                                      .muon_rank_values = options_.muon_rank_values,
                                      .probe = options_.probe});
      if (absl::IsResourceExhausted(rank.status()) && reserve.bytes() > 0) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "%s, and %.2f GB are set aside for synchronization (--published=host lowers it)",
            rank.status().message(), static_cast<double>(reserve.bytes()) / 1e9));
      }
      RETURN_IF_ERROR(rank.status());
      ranks_[i] = *std::move(rank);
      return absl::OkStatus();
    });
  }
  return FirstError();
}

absl::Status CudaBackend::FirstError() {
  absl::Status first;
  for (size_t i = 0; i < threads_.size(); ++i) {
    const absl::Status status = threads_[i]->Wait();
    // Others were aborted because of the one that failed by itself.
    if (status.ok() || (!first.ok() && absl::IsAborted(status))) continue;
    if (first.ok() || absl::IsAborted(first)) {
      first = Annotate(status, absl::StrCat("GPU ", options_.devices[i].index));
    }
  }
  return first;
}

absl::Status CudaBackend::WaitForAll() {
  const absl::Status first = FirstError();
  if (broken_.ok()) broken_ = first;
  return first;
}

absl::Status CudaBackend::OnAll(const std::function<absl::Status(DeviceRank&)>& task) {
  RETURN_IF_ERROR(broken_);
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->Post([this, i, &task] { return task(*ranks_[i]); });
  }
  return WaitForAll();
}

absl::Status CudaBackend::OnFirst(const std::function<absl::Status(DeviceRank&)>& task) {
  RETURN_IF_ERROR(broken_);
  threads_.front()->Post([this, &task] { return task(*ranks_.front()); });
  return WaitForAll();
}

absl::StatusOr<StepReport> CudaBackend::Step(int64_t step, const MicroBatchReader& read) {
  RETURN_IF_ERROR(broken_);
  const auto devices = static_cast<int64_t>(ranks_.size());
  const int rounds = ranks_.front()->slots();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    threads_[i]->Post([this, i, all = weights_stale_, fragments = merged_fragments_] {
      return ranks_[i]->Begin(all, fragments);
    });
  }
  absl::Status read_status;
  for (int round = 0; round < rounds && read_status.ok(); ++round) {
    // All devices or none: in the last round they wait for each other.
    for (int64_t i = 0; i < devices && read_status.ok(); ++i) {
      read_status = read(int64_t{round} * shards_.ranks() + options_.first_rank + i,
                         ranks_[static_cast<size_t>(i)]->HostTokens(round));
    }
    if (!read_status.ok()) break;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      threads_[i]->Post([this, i, round] { return ranks_[i]->MicroStep(round); });
    }
  }
  std::vector<DeviceRank::Result> results(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    threads_[i]->Post([&, i] {
      if (read_status.ok()) RETURN_IF_ERROR(ranks_[i]->Finish(step, updates_ + 1));
      ASSIGN_OR_RETURN(results[i], ranks_[i]->Wait());
      return absl::OkStatus();
    });
  }
  RETURN_IF_ERROR(WaitForAll());
  weights_stale_ = false;
  merged_fragments_.clear();
  RETURN_IF_ERROR(read_status);

  StepReport report;
  for (const DeviceRank::Result& result : results) {
    report.loss += result.loss.cross_entropy;
    report.tokens += result.loss.targets;
  }
  report.draws = config_.train().batch_sequences();
  if (!has_optimizer_) return report;
  const GradientNorm& norm = results.front().norm;
  if (norm.finite == 0) {
    return absl::OutOfRangeError(
        absl::StrCat("the gradient of step ", step, " is not finite (its norm is ", norm.norm,
                     "); lower train.learning_rate, or go back to a checkpoint"));
  }
  ++updates_;
  report.update = {.gradient_norm = norm.norm,
                   .learning_rate = ranks_.front()->LearningRate(step),
                   .clipped = norm.factor != 1.0F};
  return report;
}

absl::Status CudaBackend::SetParameters(std::span<const float> parameters) {
  weights_stale_ = true;
  return OnAll([&](DeviceRank& rank) { return rank.SetMaster(parameters); });
}

absl::Status CudaBackend::CopyParameters(std::span<float> parameters) {
  std::ranges::fill(parameters, 0.0F);
  return OnAll([&](DeviceRank& rank) { return rank.CopyMaster(parameters); });
}

absl::StatusOr<OptimizerState> CudaBackend::SaveOptimizer() {
  OptimizerState state;
  if (!has_optimizer_) return state;
  state.updates = updates_;
  state.first_moments.resize(static_cast<size_t>(plan_.arena_size()));
  state.second_moments.resize(state.first_moments.size());
  RETURN_IF_ERROR(OnAll([&](DeviceRank& rank) {
    return rank.CopyMoments(state.first_moments, state.second_moments);
  }));
  return state;
}

absl::Status CudaBackend::RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                           std::span<const float> second_moments) {
  const size_t expected = has_optimizer_ ? static_cast<size_t>(plan_.arena_size()) : 0;
  for (const size_t size : {first_moments.size(), second_moments.size()}) {
    if (size == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the optimizer's moments must have ", expected, " values, not ", size));
  }
  if (!has_optimizer_) return absl::OkStatus();
  updates_ = updates;
  return OnAll([&](DeviceRank& rank) { return rank.SetMoments(first_moments, second_moments); });
}

std::vector<DeviceShard> CudaBackend::Shards() const {
  std::vector<DeviceShard> shards;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const DeviceArrays& arrays = ranks_[i]->arrays();
    shards.push_back({.device = ranks_[i]->device(),
                      .rank = RankOf(i),
                      .master = arrays.master,
                      .gradients = has_optimizer_ ? nullptr : arrays.gradients,
                      .gradients_are_own = arrays.gradients_are_own,
                      .weights = arrays.weights,
                      .training = ranks_[i]->training_stream(),
                      .snapshots_done = ranks_[i]->snapshots_done()});
  }
  return shards;
}

absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> CudaBackend::MakeParts() {
  std::vector<std::unique_ptr<ReplicaPart>> parts;
  const std::vector<DeviceShard> shards = Shards();
  for (const DeviceShard& shard : shards) {
    DevicePartOptions options{.published_on_device = options_.published_on_device,
                              .weights_changed = nullptr};
    if (&shard == &shards.back()) {
      options.weights_changed = [this](int fragment) { merged_fragments_.push_back(fragment); };
    }
    ASSIGN_OR_RETURN(std::unique_ptr<ReplicaPart> part,
                     DevicePart::Create(plan_, shards_, config_.sync(), shard, std::move(options)));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string CudaBackend::Describe() const {
  const std::string by = attention() == kOwnAttention ? "" : attention();
  return absl::StrCat("cuda, ", DescribeDevices(options_.devices),
                      by.empty() ? "" : ", attention by ", by);
}

absl::Status CudaBackend::UseParameters(std::span<const float> parameters) {
  weights_stale_ = true;
  return OnFirst([&](DeviceRank& rank) { return rank.UseParameters(parameters); });
}

absl::StatusOr<double> CudaBackend::Loss(std::span<const int32_t> inputs,
                                         std::span<const int32_t> targets,
                                         std::span<const int32_t> document_starts) {
  double loss = 0;
  RETURN_IF_ERROR(OnFirst([&](DeviceRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(loss, rank.evaluator().Loss(inputs, targets, document_starts));
    return absl::OkStatus();
  }));
  return loss;
}

size_t CudaBackend::memory_bytes() const {
  size_t most = 0;
  for (const auto& rank : ranks_) most = std::max(most, rank->memory_bytes());
  return most;
}

}  // namespace causeway::worker::cuda
