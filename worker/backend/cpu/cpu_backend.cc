#include "worker/backend/cpu/cpu_backend.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/sync/host_part.h"

namespace causeway::worker {

CpuBackend::CpuBackend(const v1::RunConfig& config, const FragmentPlan& plan, ThreadPool* pool)
    : config_(config),
      plan_(plan),
      pool_(pool),
      model_(config.model(), plan, config.train().micro_batch_sequences(), pool),
      evaluation_(&model_),
      parameters_(static_cast<size_t>(plan.arena_size())),
      gradients_(static_cast<size_t>(plan.arena_size())) {
  if (config.sync().contribution() != v1::SyncConfig::GRADIENT) {
    optimizer_ = std::make_unique<InnerOptimizer<float>>(plan, config.train(), pool);
  }
  const size_t tokens = static_cast<size_t>(config.train().micro_batch_sequences()) *
                        static_cast<size_t>(config.model().sequence_length());
  inputs_.resize(tokens);
  targets_.resize(tokens);
  if (config.train().document_masking()) document_starts_.resize(tokens);
}

absl::StatusOr<StepReport> CpuBackend::Step(int64_t step, const MicroBatchReader& read) {
  const v1::TrainConfig& train = config_.train();
  const int micro_batches = train.batch_sequences() / train.micro_batch_sequences();
  StepReport report;
  for (int i = 0; i < micro_batches; ++i) {
    RETURN_IF_ERROR(read(i, {inputs_, targets_, document_starts_}));
    const TokenLoss loss = model_.ForwardBackward(parameters_, inputs_, targets_,
                                                  1.0F / static_cast<float>(micro_batches), i > 0,
                                                  gradients_, document_starts_);
    report.loss += loss.cross_entropy / micro_batches;
    report.tokens += loss.tokens;
  }
  report.draws = train.batch_sequences();
  if (optimizer_ != nullptr) {
    const KernelTimer timer(model_.kernel_seconds(), KernelKind::kOptimizer);
    ASSIGN_OR_RETURN(report.update, optimizer_->Step(step, parameters_, gradients_));
  }
  return report;
}

absl::Status CpuBackend::SetParameters(std::span<const float> parameters) {
  std::ranges::copy(parameters, parameters_.begin());
  return absl::OkStatus();
}

absl::Status CpuBackend::CopyParameters(std::span<float> parameters) {
  std::ranges::copy(parameters_, parameters.begin());
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> CpuBackend::SaveOptimizer() {
  OptimizerState state;
  if (optimizer_ == nullptr) return state;
  const std::span<const float> first = optimizer_->first_moments();
  const std::span<const float> second = optimizer_->second_moments();
  state.updates = optimizer_->updates();
  state.first_moments.assign(first.begin(), first.end());
  state.second_moments.assign(second.begin(), second.end());
  return state;
}

absl::Status CpuBackend::RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                          std::span<const float> second_moments) {
  const size_t expected = optimizer_ == nullptr ? 0 : parameters_.size();
  for (const size_t size : {first_moments.size(), second_moments.size()}) {
    if (size == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the optimizer's moments must have ", expected, " values, not ", size));
  }
  if (optimizer_ == nullptr) return absl::OkStatus();
  std::ranges::copy(first_moments, optimizer_->first_moments().begin());
  std::ranges::copy(second_moments, optimizer_->second_moments().begin());
  optimizer_->set_updates(updates);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Replica>> CpuBackend::MakeReplica() {
  return MakeHostReplica(plan_, config_.sync(), parameters_, gradients_);
}

std::string CpuBackend::Describe() const {
  return absl::StrCat("cpu, ", pool_->threads(), " threads");
}

absl::Status CpuEvaluationModel::UseParameters(std::span<const float> parameters) {
  parameters_ = parameters;
  return absl::OkStatus();
}

absl::StatusOr<double> CpuEvaluationModel::Loss(std::span<const int32_t> inputs,
                                                std::span<const int32_t> targets,
                                                std::span<const int32_t> document_starts) {
  return transformer_.Loss(parameters_, inputs, targets, document_starts);
}

}  // namespace causeway::worker
