#include "worker/train/trainer.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/params/draws.h"
#include "worker/train/evaluate.h"

namespace causeway::worker {
namespace {

absl::StatusOr<WindowSampler> MakeSampler(const v1::RunConfig& config, const Dataset& dataset,
                                          int data_slot) {
  const bool own = data_slot == kOwnData;
  return WindowSampler::Create(dataset, {.sequence_length = config.model().sequence_length(),
                                         .vocabulary_size = config.model().vocabulary_size(),
                                         .seed = config.train().seed(),
                                         .slot = own ? 0 : data_slot,
                                         .slots = own ? 1 : config.membership().max_workers(),
                                         .document_masking = config.train().document_masking()});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const v1::RunConfig& config,
                                                         const FragmentPlan& plan,
                                                         const Dataset& dataset, int data_slot,
                                                         ThreadPool* pool) {
  ASSIGN_OR_RETURN(WindowSampler sampler, MakeSampler(config, dataset, data_slot));
  std::optional<HeldOutWindows> held_out;
  if (dataset.held_out() != nullptr && dataset.held_out()->tokens() > 0) {
    ASSIGN_OR_RETURN(held_out, HeldOutWindows::Create(dataset, config.model().sequence_length(),
                                                      config.model().vocabulary_size(),
                                                      config.train().evaluation_sequences(),
                                                      config.train().document_masking()));
  }
  return std::unique_ptr<Trainer>(
      new Trainer(config, plan, std::move(sampler), std::move(held_out), pool));
}

Trainer::Trainer(const v1::RunConfig& config, const FragmentPlan& plan, WindowSampler sampler,
                 std::optional<HeldOutWindows> held_out, ThreadPool* pool)
    : config_(config),
      sampler_(std::move(sampler)),
      held_out_(std::move(held_out)),
      model_(config.model(), plan, config.train().micro_batch_sequences(), pool),
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

absl::Status Trainer::UseDataSlot(const Dataset& dataset, int data_slot) {
  ASSIGN_OR_RETURN(sampler_, MakeSampler(config_, dataset, data_slot));
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Trainer::Step(int64_t step, int64_t first_draw) {
  const v1::TrainConfig& train = config_.train();
  const int micro_batches = train.batch_sequences() / train.micro_batch_sequences();
  StepReport report;
  for (int i = 0; i < micro_batches; ++i) {
    const int64_t draw = first_draw + int64_t{i} * train.micro_batch_sequences();
    RETURN_IF_ERROR(sampler_.Read(draw, inputs_, targets_, document_starts_));
    const TokenLoss loss = model_.ForwardBackward(parameters_, inputs_, targets_,
                                                  1.0F / static_cast<float>(micro_batches), i > 0,
                                                  gradients_, document_starts_);
    report.loss += loss.cross_entropy / micro_batches;
    report.tokens += loss.tokens;
  }
  report.draws = train.batch_sequences();
  if (optimizer_ != nullptr) {
    ASSIGN_OR_RETURN(report.update, optimizer_->Step(step, parameters_, gradients_));
  }
  return report;
}

absl::StatusOr<std::optional<double>> Trainer::Evaluate(std::span<const float> parameters) {
  if (!held_out_.has_value()) return std::nullopt;
  return EvaluateLoss(model_, parameters, *held_out_);
}

absl::StatusOr<ChoiceAccuracy> Trainer::EvaluateTask(
    std::span<const float> parameters, std::span<const ChoiceExample> examples,
    const std::function<bool(int64_t, int64_t)>& progress) {
  return EvaluateChoices(model_, parameters, examples, progress);
}

}  // namespace causeway::worker
