#include "worker/train/trainer.h"

#include <algorithm>

#include "common/params/draws.h"

namespace causeway::worker {

absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows, int64_t* all_targets) {
  RETURN_IF_ERROR(model.UseParameters(parameters));
  const int64_t length = model.sequence_length();
  double sum = 0;
  double weights = 0;  // Windows; with document masking those with fewer targets count less.
  for (int64_t first = 0; first < windows.size();) {
    const int64_t count = std::min<int64_t>(windows.size() - first, model.micro_batch_sequences());
    std::vector<int32_t> inputs(static_cast<size_t>(count * length));
    std::vector<int32_t> targets(inputs.size());
    std::vector<int32_t> document_starts(windows.document_masking() ? inputs.size() : 0);
    RETURN_IF_ERROR(windows.Read(first, inputs, targets, document_starts));
    const auto predicted = std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
    const double weight = static_cast<double>(predicted) / static_cast<double>(length);
    if (predicted > 0) {
      ASSIGN_OR_RETURN(const double loss, model.Loss(inputs, targets, document_starts));
      sum += loss * weight;
    }
    weights += weight;
    if (all_targets != nullptr) *all_targets += predicted;
    first += count;
  }
  return weights > 0 ? sum / weights : 0;
}

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
                                                         const Dataset& dataset, int data_slot,
                                                         std::unique_ptr<TrainingBackend> backend) {
  ASSIGN_OR_RETURN(WindowSampler sampler, MakeSampler(config, dataset, data_slot));
  std::optional<HeldOutWindows> held_out;
  if (dataset.held_out() != nullptr && dataset.held_out()->tokens() > 0) {
    ASSIGN_OR_RETURN(held_out, HeldOutWindows::Create(dataset, config.model().sequence_length(),
                                                      config.model().vocabulary_size(),
                                                      config.train().evaluation_sequences(),
                                                      config.train().document_masking()));
  }
  return std::unique_ptr<Trainer>(
      new Trainer(config, std::move(sampler), std::move(held_out), std::move(backend)));
}

Trainer::Trainer(const v1::RunConfig& config, WindowSampler sampler,
                 std::optional<HeldOutWindows> held_out, std::unique_ptr<TrainingBackend> backend)
    : config_(config),
      sampler_(std::move(sampler)),
      held_out_(std::move(held_out)),
      backend_(std::move(backend)) {}

absl::Status Trainer::UseDataSlot(const Dataset& dataset, int data_slot) {
  ASSIGN_OR_RETURN(sampler_, MakeSampler(config_, dataset, data_slot));
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Trainer::Step(int64_t step, int64_t first_draw) {
  return backend_->Step(step, [&](int64_t micro_batch, const MicroBatch& out) {
    const int64_t draw = first_draw + micro_batch * config_.train().micro_batch_sequences();
    return sampler_.Read(draw, out.inputs, out.targets, out.document_starts);
  });
}

absl::StatusOr<std::optional<double>> Trainer::Evaluate(std::span<const float> parameters) {
  if (!held_out_.has_value()) return std::nullopt;
  return EvaluateLoss(*backend_, parameters, *held_out_);
}

}  // namespace causeway::worker
