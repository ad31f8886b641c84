// A worker's answer to GET /metrics.
#ifndef CAUSEWAY_WORKER_TELEMETRY_WORKER_METRICS_H_
#define CAUSEWAY_WORKER_TELEMETRY_WORKER_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "causeway/v1/session.pb.h"
#include "common/metrics/metric_page.h"

namespace causeway::worker {

// As of the last inner step.
struct WorkerFigures {
  std::string run_id;
  std::string worker_id;
  int64_t budget_steps = 0;
  int data_slot = 0;
  v1::Heartbeat heartbeat;
  double utilization = 0;  // Compute by wall time, evaluations excepted.
  double evaluation_seconds = 0;
  int64_t rounds_merged = 0;
  int64_t rounds_late = 0;
  // The inner optimizer's; empty where the coordinator has the optimizer.
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
  std::optional<double> eval_loss;  // Set on the worker that evaluates.
};

void AddWorkerFigures(MetricPage& page, const WorkerFigures& figures);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TELEMETRY_WORKER_METRICS_H_
