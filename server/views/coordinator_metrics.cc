#include "server/views/coordinator_metrics.h"

#include "common/identity/certificate.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kStoreAge = absl::Seconds(30);

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

CoordinatorMetrics::CoordinatorMetrics(Options options)
    : options_(std::move(options)),
      run_(options_.clock),
      rounds_(options_.clock, options_.history) {}

double CoordinatorMetrics::StoreBytes() {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  if (now - store_measured_ >= kStoreAge) {
    store_bytes_ = static_cast<double>(FolderBytes(*options_.file_system, options_.run_dir));
    store_measured_ = now;
  }
  return store_bytes_;
}

void CoordinatorMetrics::AddStore(MetricPage& page) {
  page.Gauge("causeway_store_bytes", "All files in the run's folder.", StoreBytes());
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

void CoordinatorMetrics::AddLoad(MetricPage& page, const ServerLoad& load) const {
  const std::string held = "causeway_transfer_memory_bytes";
  const std::string held_help = "Memory of transfers: deltas up, packed chunks of answers down.";
  const std::string limit = "causeway_transfer_memory_limit_bytes";
  const std::string limit_help = "Memory that they may hold (--memory_mb).";
  const std::string queue = "causeway_queue_length";
  const std::string queue_help = "Tasks that wait for a thread: merge, copy.";
  page.Gauge(held, held_help, load.push_bytes, {{"direction", "up"}});
  page.Gauge(held, held_help, load.pull_bytes, {{"direction", "down"}});
  page.Gauge(limit, limit_help, load.push_bytes_limit, {{"direction", "up"}});
  page.Gauge(limit, limit_help, load.pull_bytes_limit, {{"direction", "down"}});
  page.Gauge(queue, queue_help, load.merges_queued, {{"queue", "merge"}});
  page.Gauge(queue, queue_help, load.copies_queued, {{"queue", "copy"}});
  page.Gauge("causeway_pushes", "Deltas that are being received.", load.pushes);
  page.Gauge("causeway_lanes", "Streams of deltas and answers.", load.lanes);
  page.Counter("causeway_pushes_evicted_total",
               "Deltas nobody was sending, dropped for want of memory.", load.pushes_evicted);
}

std::string CoordinatorMetrics::Text(const v1::RunStatus& status, bool healthy,
                                     const ServerLoad& load) {
  MetricPage page;
  page.Gauge("causeway_build_info", "1; the release.", 1, {{"version", kSoftwareVersion}});
  run_.AddTo(page, status, healthy);
  rounds_.AddTo(page, status);
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
  AddLoad(page, load);
  AddStandbys(page);
  AddCertificateFigures(page, options_.certificates, EndOfCertificate);
  AddProcessFigures(page);
  return page.Text();
}

}  // namespace causeway::server
