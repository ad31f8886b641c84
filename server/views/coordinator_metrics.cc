#include "server/views/coordinator_metrics.h"

#include <array>
#include <set>

#include "common/identity/certificate.h"
#include "common/transfer/wire.h"
#include "server/views/status_text.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kStoreAge = absl::Seconds(30);
constexpr absl::Duration kLostShown = absl::Hours(1);
// The label of the workers' traffic, which goes from site to site.
constexpr char kLink[] = "inter-site";

// Size of all files below `folder`. Files that disappear meanwhile count as empty.
uint64_t FolderBytes(FileSystem& file_system, const std::string& folder) {
  uint64_t bytes = 0;
  const absl::StatusOr<std::vector<std::string>> names = file_system.List(folder);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(folder, name);
    bytes += file_system.IsFolder(path) ? FolderBytes(file_system, path)
                                        : file_system.FileSize(path).value_or(0);
  }
  return bytes;
}

}  // namespace

void CoordinatorMetrics::AddRun(MetricPage& page, const v1::RunStatus& status, bool healthy) {
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
  std::array<int, v1::WorkerStatus::State_ARRAYSIZE> states = {};
  for (const v1::WorkerStatus& worker : status.workers()) {
    ++states[static_cast<size_t>(worker.state())];
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
  if (const std::optional<double> held_out = HeldOutLoss()) {
    page.Gauge("causeway_run_eval_loss", "Of the published parameters, held out, nats per token.",
               *held_out);
  }
  for (size_t state = v1::WorkerStatus::JOINING; state < states.size(); ++state) {
    page.Gauge("causeway_workers", "joining, active, lost, left.", states[state],
               {{"state", WorkerStateName(static_cast<v1::WorkerStatus::State>(state))}});
  }
  double published = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    published += static_cast<double>(fragment.published_version());
  }
  page.Gauge("causeway_fragments", "Of the parameters.", status.fragments_size());
  page.Counter("causeway_rounds_published_total", "Of all fragments.", published);
  AddWorkers(page, status);
}

namespace {

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

std::optional<double> CoordinatorMetrics::HeldOutLoss() const {
  const std::map<std::string, WorkerHeard> heard = options_.history->Workers();
  const v1::Evaluation* newest = nullptr;
  for (const auto& [worker, last] : heard) {
    if (!last.heartbeat.has_evaluation()) continue;
    const v1::Evaluation& evaluation = last.heartbeat.evaluation();
    if (newest == nullptr || evaluation.step() > newest->step()) newest = &evaluation;
  }
  if (newest != nullptr) return newest->loss();
  const std::optional<EvaluationPoint> before = options_.history->LastEvaluation();
  if (before.has_value()) return before->loss;
  return std::nullopt;
}

void CoordinatorMetrics::AddWorkers(MetricPage& page, const v1::RunStatus& status) {
  const absl::Duration now = options_.clock->Monotonic();
  const auto max_workers = static_cast<size_t>(status.config().membership().max_workers());
  const std::string up = "causeway_worker_up";
  const std::string up_help = "1 for a member, 0 for one whose lease has ended, for an hour.";
  const std::map<std::string, WorkerHeard> heard = options_.history->Workers();
  std::set<std::string> lost;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() == v1::WorkerStatus::LOST) lost.insert(worker.worker_id());
    if (!IsLive(worker)) continue;
    page.Gauge(up, up_help, 1, {{"worker", worker.worker_id()}});
    AddProgress(page, worker);
    AddLink(page, worker);
    const auto last = heard.find(worker.worker_id());
    if (last == heard.end()) continue;
    const MetricLabels labels = {{"worker", worker.worker_id()}};
    page.Counter("causeway_worker_compute_seconds_total", "In training steps, since it was ready.",
                 last->second.heartbeat.compute_seconds(), labels);
    page.Counter("causeway_worker_blocked_seconds_total",
                 "Waiting for synchronization, since it was ready.",
                 last->second.heartbeat.blocked_seconds(), labels);
    page.Gauge("causeway_worker_heartbeat_age_seconds",
               "Since the worker's last heartbeat or join.",
               absl::ToDoubleSeconds(now - last->second.word_at), labels);
  }
  absl::MutexLock lock(&mutex_);
  std::erase_if(lost_since_, [&](const auto& entry) { return !lost.contains(entry.first); });
  size_t shown = 0;
  for (const std::string& worker : lost) {
    const absl::Duration since = lost_since_.emplace(worker, now).first->second;
    if (now - since > kLostShown || shown == max_workers) continue;
    ++shown;
    page.Gauge(up, up_help, 0, {{"worker", worker}});
  }
}

void CoordinatorMetrics::AddStore(MetricPage& page) {
  const absl::Duration now = options_.clock->Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    if (now - store_measured_ >= kStoreAge) {
      store_bytes_ = static_cast<double>(FolderBytes(*options_.file_system, options_.run_dir));
      store_measured_ = now;
    }
    page.Gauge("causeway_store_bytes", "All files in the run's folder.", store_bytes_);
  }
  const absl::StatusOr<uint64_t> free = options_.file_system->FreeBytes(options_.run_dir);
  if (!free.ok()) return;
  page.Gauge("causeway_store_free_bytes", "Free on the disk of the run's folder.", *free);
}

void CoordinatorMetrics::AddStandbys(MetricPage& page) const {
  page.Gauge("causeway_standby_missing", "1 while everybody waits for a standby.",
             options_.standbys->missing() ? 1 : 0);
  std::map<std::string, Standbys::Copy> copies;  // A name may follow by two streams for a moment.
  for (const Standbys::Copy& copy : options_.standbys->Following()) copies[copy.name] = copy;
  const int64_t commits = options_.commits();
  for (const auto& [name, copy] : copies) {
    const int64_t behind = std::max<int64_t>(0, commits - copy.commits);
    page.Gauge("causeway_standby_behind_commits", "Commits that its copy has not acknowledged.",
               behind, {{"standby", name}});
    if (!options_.replicated) continue;
    page.Gauge("causeway_standby_in_sync", "1 if its copy has all that workers were told.",
               copy.in_sync ? 1 : 0, {{"standby", name}});
  }
}

void CoordinatorMetrics::AddTo(MetricPage& page, const v1::RunStatus& status, bool healthy) {
  page.Gauge("causeway_build_info", "1; the release.", 1, {{"version", kSoftwareVersion}});
  AddRun(page, status, healthy);
  options_.history->AddRoundsTo(page, status);
  std::map<std::string, int64_t> counts = options_.events->counts();
  page.Counter("causeway_contributions_total",
               "Deltas: merged, late (their round had closed) or quarantined.",
               counts["contribution_late"], {{"outcome", "late"}});
  // From 0 on, so that the first one is an increase, too.
  for (const EventName& event : CoordinatorEvents()) {
    page.Counter("causeway_events_total", "Events by name.", counts[event.name],
                 {{"event", event.name}});
  }
  AddStore(page);
  AddStandbys(page);
  AddCertificateFigures(page, options_.certificates, EndOfCertificate);
  AddProcessFigures(page);
}

}  // namespace causeway::server
