#include "worker/telemetry/worker_metrics.h"

namespace causeway::worker {
namespace {

constexpr char kLink[] = "inter-site";

void AddTraining(MetricPage& page, const WorkerFigures& figures) {
  const v1::Heartbeat& heartbeat = figures.heartbeat;
  page.Gauge("causeway_training_info", "1; which worker of which run this is.", 1,
             {{"run", figures.run_id}, {"worker", figures.worker_id}});
  page.Gauge("causeway_training_step", "Steps of the schedule done.",
             static_cast<double>(heartbeat.step()));
  page.Gauge("causeway_training_budget_steps", "train.steps",
             static_cast<double>(figures.budget_steps));
  page.Counter("causeway_training_tokens_total", "Trained in this run.",
               static_cast<double>(heartbeat.tokens()));
  page.Gauge("causeway_training_tokens_per_second", "Over the last seconds.",
             heartbeat.tokens_per_second());
  page.Gauge("causeway_training_loss", "Mean of the last step, nats per token.",
             heartbeat.train_loss());
  if (figures.eval_loss.has_value()) {
    page.Gauge("causeway_training_eval_loss",
               "Of the published parameters, at the worker that evaluates.", *figures.eval_loss);
  }
  if (figures.learning_rate.has_value()) {
    page.Gauge("causeway_training_learning_rate",
               "Of the last inner step; absent with gradients as contributions.",
               *figures.learning_rate);
  }
  if (figures.gradient_norm.has_value()) {
    page.Gauge("causeway_training_gradient_norm", "Of the last inner step, before clipping.",
               *figures.gradient_norm);
  }
  page.Gauge("causeway_training_compute_utilization_ratio",
             "Compute by all time since the first step, evaluations excepted.",
             figures.utilization);
  page.Counter("causeway_training_compute_seconds_total", "In training steps.",
               heartbeat.compute_seconds());
  page.Counter("causeway_training_blocked_seconds_total", "Waiting for synchronization.",
               heartbeat.blocked_seconds());
  page.Counter("causeway_training_evaluation_seconds_total", "In evaluations.",
               figures.evaluation_seconds);
  page.Gauge("causeway_training_inner_step_seconds", "Smoothed.", heartbeat.inner_step_seconds());
  page.Gauge("causeway_training_pace_ratio", "Steps of the schedule that an inner step counts for.",
             static_cast<double>(heartbeat.pace_milli()) / 1000);
  page.Gauge("causeway_training_checkpoint_step", "That it would resume from; -1: none.",
             static_cast<double>(heartbeat.checkpoint_step()));
  page.Gauge("causeway_training_late_answers", "Answers missing overlap_steps after their sends.",
             heartbeat.late_answers());
  if (heartbeat.has_steps_before_wait()) {
    page.Gauge("causeway_training_steps_before_wait",
               "Steps before it waits, should no answer come.",
               static_cast<double>(heartbeat.steps_before_wait()));
  }
  page.Gauge("causeway_training_data_slot", "The part that is drawn.", figures.data_slot);
  page.Counter("causeway_sync_rounds_merged_total", "By this process.",
               static_cast<double>(figures.rounds_merged));
  page.Counter("causeway_sync_rounds_late_total", "Closed before this process's delta came.",
               static_cast<double>(figures.rounds_late));
}

void AddLink(MetricPage& page, const v1::Heartbeat& heartbeat) {
  const MetricLabels labels = {{"link", kLink}};
  const MetricLabels up = {{"link", kLink}, {"direction", "up"}};
  const MetricLabels down = {{"link", kLink}, {"direction", "down"}};
  const v1::LinkReport& link = heartbeat.link();
  const std::string bytes = "causeway_link_payload_bytes_total";
  const std::string bytes_help = "Payload, of this process.";
  page.Counter(bytes, bytes_help, static_cast<double>(heartbeat.bytes_up()), up);
  page.Counter(bytes, bytes_help, static_cast<double>(heartbeat.bytes_down()), down);
  const std::string goodput = "causeway_link_goodput_bytes_per_second";
  const std::string goodput_help = "Of objects while one was under way, smoothed; 0: not known.";
  page.Gauge(goodput, goodput_help, link.goodput_up_bytes_per_second(), up);
  page.Gauge(goodput, goodput_help, link.goodput_down_bytes_per_second(), down);
  page.Gauge("causeway_link_rtt_seconds", "The smallest that TCP measured lately; 0: not known.",
             link.rtt_seconds(), labels);
  page.Gauge("causeway_link_connections", "That transfers use.", link.connections(), labels);
  page.Counter("causeway_link_resent_chunks_total", "Chunks sent or received more than once.",
               static_cast<double>(link.resent_chunks()), labels);
  page.Counter("causeway_link_resumes_total", "Transfers that went on after a cut.",
               static_cast<double>(link.resumes()), labels);
  page.Counter("causeway_link_retransmitted_segments_total", "By TCP.",
               static_cast<double>(link.retransmitted_segments()), labels);
  page.Counter("causeway_link_send_blocked_seconds_total",
               "Time that an object was ready and no connection took it.",
               link.send_blocked_seconds(), labels);
}

}  // namespace

void AddWorkerFigures(MetricPage& page, const WorkerFigures& figures) {
  AddTraining(page, figures);
  AddLink(page, figures.heartbeat);
}

}  // namespace causeway::worker
