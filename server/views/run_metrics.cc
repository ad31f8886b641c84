#include "server/views/run_metrics.h"

#include <set>

namespace causeway::server {
namespace {

constexpr absl::Duration kLostShown = absl::Hours(1);
// The label of the workers' traffic, which goes from site to site.
constexpr char kLink[] = "inter-site";
// Nobody may have scraped for long, and ids come and go.
constexpr size_t kMaxHeartbeats = 4096;

void AddRun(MetricPage& page, const v1::RunStatus& status, bool healthy) {
  const v1::RunConfig& config = status.config();
  page.Gauge("causeway_run_info", "1; which run this is.", 1,
             {{"run", status.run_id()}, {"mode", std::string(RunMode(config.sync()))}});
  page.Gauge("causeway_run_healthy", "0 once the run has failed.", healthy ? 1 : 0);
  page.Gauge("causeway_run_started", "1 once training has begun.", status.started() ? 1 : 0);
  page.Gauge("causeway_run_paused", "1 while it is paused.", status.paused() ? 1 : 0);
  page.Gauge("causeway_run_finished", "1 once every worker has left at the end.",
             status.finished() ? 1 : 0);
  page.Gauge("causeway_run_step", "The largest of a worker.", status.run_step());
  page.Gauge("causeway_run_budget_steps", "train.steps", config.train().steps());
  page.Counter("causeway_run_tokens_total", "Of all workers together.", status.tokens());
  if (config.train().tokens() > 0) {
    page.Gauge("causeway_run_budget_tokens", "train.tokens, if set.", config.train().tokens());
  }
  double loss = 0;
  double rate = 0;
  int active = 0;
  std::map<v1::WorkerStatus::State, int> states = {{v1::WorkerStatus::JOINING, 0},
                                                   {v1::WorkerStatus::ACTIVE, 0},
                                                   {v1::WorkerStatus::LOST, 0},
                                                   {v1::WorkerStatus::LEFT, 0}};
  for (const v1::WorkerStatus& worker : status.workers()) {
    ++states[worker.state()];
    if (worker.state() != v1::WorkerStatus::ACTIVE || worker.tokens() == 0) continue;
    loss += worker.train_loss();
    rate += worker.tokens_per_second();
    ++active;
  }
  if (active > 0) {
    page.Gauge("causeway_run_train_loss", "Mean of the active workers' last, nats per token.",
               loss / active);
  }
  page.Gauge("causeway_run_tokens_per_second", "Of all active workers.", rate);
  const std::string workers = "causeway_workers";
  const std::string help = "joining, active, lost, left.";
  constexpr std::pair<v1::WorkerStatus::State, const char*> kStates[] = {
      {v1::WorkerStatus::JOINING, "joining"},
      {v1::WorkerStatus::ACTIVE, "active"},
      {v1::WorkerStatus::LOST, "lost"},
      {v1::WorkerStatus::LEFT, "left"}};
  for (const auto& [state, name] : kStates) {
    page.Gauge(workers, help, states[state], {{"state", name}});
  }
  double published = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    published += static_cast<double>(fragment.published_version());
  }
  page.Gauge("causeway_fragments", "Of the parameters.", status.fragments_size());
  page.Counter("causeway_rounds_published_total", "Of all fragments.", published);
}

void AddProgress(MetricPage& page, const v1::WorkerStatus& worker) {
  const MetricLabels labels = {{"worker", worker.worker_id()}};
  page.Gauge("causeway_worker_info", "1; what the worker runs on.", 1,
             {{"worker", worker.worker_id()},
              {"device", LabelText(worker.device())},
              {"version", LabelText(worker.software_version())}});
  page.Gauge("causeway_worker_step", "Steps of the schedule done.", worker.step(), labels);
  page.Counter("causeway_worker_tokens_total", "Trained in this run.", worker.tokens(), labels);
  page.Gauge("causeway_worker_tokens_per_second", "Over the last seconds.",
             worker.tokens_per_second(), labels);
  page.Gauge("causeway_worker_train_loss", "Mean of the last step, nats per token.",
             worker.train_loss(), labels);
  page.Gauge("causeway_worker_compute_utilization_ratio", "Compute / (compute + blocked).",
             worker.compute_utilization(), labels);
  page.Gauge("causeway_worker_pace_ratio", "Steps of the schedule that an inner step counts for.",
             worker.pace(), labels);
  page.Gauge("causeway_worker_late_answers", "Answers missing overlap_steps after their sends.",
             worker.late_answers(), labels);
  if (worker.has_steps_before_wait()) {
    page.Gauge("causeway_worker_steps_before_wait", "Steps before it waits, should no answer come.",
               worker.steps_before_wait(), labels);
  }
}

void AddLink(MetricPage& page, const v1::WorkerStatus& worker) {
  const MetricLabels labels = {{"worker", worker.worker_id()}, {"link", kLink}};
  const auto with = [&](const char* name, const char* value) {
    MetricLabels more = labels;
    more.emplace(name, value);
    return more;
  };
  const std::string bytes = "causeway_worker_payload_bytes_total";
  const std::string bytes_help = "Payload that crossed the link.";
  page.Counter(bytes, bytes_help, worker.bytes_up(), with("direction", "up"));
  page.Counter(bytes, bytes_help, worker.bytes_down(), with("direction", "down"));
  const v1::LinkReport& link = worker.link();
  const std::string goodput = "causeway_worker_goodput_bytes_per_second";
  const std::string goodput_help = "Of objects while one was under way, smoothed; 0: not known.";
  page.Gauge(goodput, goodput_help, link.goodput_up_bytes_per_second(), with("direction", "up"));
  page.Gauge(goodput, goodput_help, link.goodput_down_bytes_per_second(),
             with("direction", "down"));
  page.Gauge("causeway_worker_rtt_seconds", "The smallest that TCP measured lately; 0: not known.",
             link.rtt_seconds(), labels);
  page.Gauge("causeway_worker_connections", "That transfers use.", link.connections(), labels);
  page.Counter("causeway_worker_resent_chunks_total", "Chunks sent or received more than once.",
               link.resent_chunks(), labels);
  page.Counter("causeway_worker_resumes_total", "Transfers that went on after a cut.",
               link.resumes(), labels);
  const std::string segments = "causeway_worker_retransmitted_segments_total";
  const std::string segments_help = "By TCP: up at the worker, down at the coordinator.";
  page.Counter(segments, segments_help, link.retransmitted_segments(), with("direction", "up"));
  page.Counter(segments, segments_help, worker.coordinator_link().retransmitted_segments(),
               with("direction", "down"));
  page.Counter("causeway_worker_send_blocked_seconds_total",
               "Time that an object was ready and no connection took it.",
               link.send_blocked_seconds(), labels);
}

}  // namespace

void RunMetrics::OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) {
  absl::MutexLock lock(&mutex_);
  if (heartbeats_.size() >= kMaxHeartbeats && !heartbeats_.contains(worker_id)) {
    heartbeats_.clear();  // The live ones are back within a third of the lease.
  }
  heartbeats_[worker_id] = {heartbeat, clock_->Monotonic()};
}

void RunMetrics::AddWorkers(MetricPage& page, const v1::RunStatus& status) {
  const absl::Duration now = clock_->Monotonic();
  const auto max_workers = static_cast<size_t>(status.config().membership().max_workers());
  const std::string up = "causeway_worker_up";
  const std::string up_help = "1 for a member, 0 for one whose lease has ended, for an hour.";
  std::set<std::string> live;
  std::set<std::string> lost;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() == v1::WorkerStatus::LOST) lost.insert(worker.worker_id());
    if (!IsLive(worker)) continue;
    live.insert(worker.worker_id());
    page.Gauge(up, up_help, 1, {{"worker", worker.worker_id()}});
    AddProgress(page, worker);
    AddLink(page, worker);
    const auto seen = heartbeats_.find(worker.worker_id());
    if (seen == heartbeats_.end()) continue;
    const MetricLabels labels = {{"worker", worker.worker_id()}};
    page.Counter("causeway_worker_compute_seconds_total", "In training steps, since it was ready.",
                 seen->second.heartbeat.compute_seconds(), labels);
    page.Counter("causeway_worker_blocked_seconds_total",
                 "Waiting for synchronization, since it was ready.",
                 seen->second.heartbeat.blocked_seconds(), labels);
    page.Gauge("causeway_worker_heartbeat_age_seconds", "Since the worker's last heartbeat.",
               absl::ToDoubleSeconds(now - seen->second.at), labels);
  }
  std::erase_if(heartbeats_, [&](const auto& entry) { return !live.contains(entry.first); });
  std::erase_if(lost_since_, [&](const auto& entry) { return !lost.contains(entry.first); });
  size_t shown = 0;
  for (const std::string& worker : lost) {
    const absl::Duration since = lost_since_.emplace(worker, now).first->second;
    if (now - since > kLostShown || shown == max_workers) continue;
    ++shown;
    page.Gauge(up, up_help, 0, {{"worker", worker}});
  }
}

void RunMetrics::AddTo(MetricPage& page, const v1::RunStatus& status, bool healthy) {
  AddRun(page, status, healthy);
  absl::MutexLock lock(&mutex_);
  const v1::Evaluation* newest = nullptr;
  for (const auto& [worker, seen] : heartbeats_) {
    if (!seen.heartbeat.has_evaluation()) continue;
    const v1::Evaluation& evaluation = seen.heartbeat.evaluation();
    if (newest == nullptr || evaluation.step() > newest->step()) newest = &evaluation;
  }
  if (newest != nullptr) {
    page.Gauge("causeway_run_eval_loss", "Of the published parameters, held out, nats per token.",
               newest->loss());
  }
  AddWorkers(page, status);
}

namespace {

prometheus::Histogram MakeHistogram() {
  return prometheus::Histogram({0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000});
}

}  // namespace

RoundMetrics::RoundMetrics(const Clock* clock, RunHistory* history)
    : clock_(clock),
      history_(history),
      phases_{{MakeHistogram(), MakeHistogram(), MakeHistogram(), MakeHistogram()}} {}

void RoundMetrics::Observe(Phase phase, double from_unix_s, double to_unix_s) {
  if (from_unix_s > 0 && to_unix_s > 0) {
    phases_[phase].Observe(std::max(0.0, to_unix_s - from_unix_s));
  }
}

void RoundMetrics::OnContributed(const v1::PushHeader& header, bool quarantined) {
  if (quarantined) ++quarantined_;
  const PushTimes push =
      history_->Round(header.fragment(), header.round()).workers[header.worker_id()];
  Observe(kTransfer, push.sent_unix_s, push.arrived_unix_s);
}

void RoundMetrics::OnPublished(const v1::Round& round, const std::vector<std::string>& missing) {
  if (!round.contributors().empty()) {
    Observe(kCollect, round.first_unix_s(), round.closed_unix_s());
    Observe(kMerge, round.closed_unix_s(), round.published_unix_s());
  }
  if (!missing.empty() || round.contributors().empty()) ++incomplete_;
  merged_ += round.contributors_size();
}

void RoundMetrics::OnApplied(const std::string& worker_id, int fragment, int64_t round) {
  RoundTimes times = history_->Round(fragment, round);
  Observe(kApply, times.record.published_unix_s(), times.workers[worker_id].applied_unix_s);
}

void RoundMetrics::AddTo(MetricPage& page, const v1::RunStatus& status) {
  constexpr const char* kNames[kPhases] = {"transfer", "collect", "merge", "apply"};
  for (size_t phase = 0; phase < kPhases; ++phase) {
    page.Histogram("causeway_round_phase_seconds", "Of rounds.", phases_[phase].Collect().histogram,
                   {{"phase", kNames[phase]}});
  }
  const double now = absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch());
  double oldest = 0;
  int open = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    if (fragment.contributed_size() == 0) continue;
    ++open;
    const int64_t round = fragment.published_version() + 1;
    for (const auto& [id, push] : history_->Round(fragment.fragment(), round).workers) {
      if (push.arrived_unix_s > 0) oldest = std::max(oldest, now - push.arrived_unix_s);
    }
  }
  page.Gauge("causeway_rounds_open", "With contributions.", open);
  page.Gauge("causeway_round_oldest_open_seconds", "Since its first contribution; 0: none is.",
             oldest);
  page.Counter("causeway_rounds_incomplete_total", "Closed without a worker that was expected.",
               incomplete_.load());
  const std::string contributions = "causeway_contributions_total";
  const std::string help = "Deltas: merged, late (their round had closed) or quarantined.";
  page.Counter(contributions, help, merged_.load(), {{"outcome", "merged"}});
  page.Counter(contributions, help, quarantined_.load(), {{"outcome", "quarantined"}});
}

}  // namespace causeway::server
