#include "tests/bench/training_delta.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/data/dataset.h"
#include "worker/train/trainer.h"

namespace causeway::bench {
namespace {

// One line that is written over on a terminal; elsewhere every tenth.
void ShowProgress(const TrainingDeltaOptions& options, int step, int steps, double loss) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!terminal && step % std::max(1, steps / 10) != 0) return;
  std::fprintf(stderr, "%straining, %s: step %d of %d, loss %.3f%s", terminal ? "\r" : "",
               v1::TrainConfig::Optimizer_Name(options.optimizer).c_str(), step, steps, loss,
               terminal && step < steps ? "" : "\n");
}

}  // namespace

absl::StatusOr<TrainingDelta> TrainForDelta(const TrainingDeltaOptions& options) {
  v1::RunConfig config;
  config.mutable_model()->set_preset(options.model);
  config.mutable_train()->set_optimizer(options.optimizer);
  config.mutable_train()->set_steps(10 * (options.steps_before + options.interval));
  config.mutable_train()->set_warmup_steps(options.steps_before / 2);
  config.mutable_sync()->set_steps_between_syncs(options.interval);
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  ASSIGN_OR_RETURN(const worker::Dataset dataset,
                   worker::Dataset::Open(*FileSystem::Real(), options.data));
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<worker::Trainer> trainer,
      worker::Trainer::Create(config, dataset, 0,
                              std::make_unique<worker::CpuBackend>(config, plan, &pool)));
  TrainingDelta delta;
  delta.local.resize(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, config.train().seed(), delta.local);
  RETURN_IF_ERROR(trainer->backend().SetParameters(delta.local));
  const int steps = options.steps_before + options.interval;
  for (int step = 1; step <= steps; ++step) {
    if (step == options.steps_before + 1) {
      delta.published.resize(delta.local.size());
      RETURN_IF_ERROR(trainer->backend().CopyParameters(delta.published));
    }
    ASSIGN_OR_RETURN(const worker::StepReport report,
                     trainer->Step(step, (step - 1) * config.train().batch_sequences()));
    delta.loss = report.loss;
    ShowProgress(options, step, steps, report.loss);
  }
  RETURN_IF_ERROR(trainer->backend().CopyParameters(delta.local));
  return delta;
}

}  // namespace causeway::bench
