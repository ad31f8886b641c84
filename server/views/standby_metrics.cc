#include "common/identity/certificate.h"
#include "common/telemetry/metric_page.h"
#include "common/transfer/wire.h"
#include "server/views/coordinator_metrics.h"

namespace causeway::server {

std::string StandbyMetricsText(const StandbyNotes& notes, FileSystem& file_system,
                               const std::string& run_dir, const CertificateFiles& certificates) {
  const StandbyNotes::View view = notes.Get();
  MetricPage page;
  page.Gauge("causeway_build_info", "1; the release.", 1, {{"version", kSoftwareVersion}});
  page.Gauge("causeway_copy_following", "1 while a coordinator sends what it commits.",
             view.following ? 1 : 0);
  page.Gauge("causeway_copy_commits", "Commits that this copy has.", view.commits);
  page.Gauge("causeway_copy_behind_commits",
             "Commits that the coordinator had beyond those, when it was last heard.",
             view.behind());
  page.Gauge("causeway_copy_ready", "1 if this copy could take over, as /readyz says.",
             notes.Ready().ok() ? 1 : 0);
  if (view.in_sync.has_value()) {
    page.Gauge("causeway_copy_in_sync", "With --etcd: 1 if this copy is in the in-sync set.",
               *view.in_sync ? 1 : 0);
  }
  const absl::StatusOr<uint64_t> free = file_system.FreeBytes(run_dir);
  if (free.ok()) {
    page.Gauge("causeway_store_free_bytes", "Free on the disk of the run's folder.", *free);
  }
  AddCertificateFigures(page, certificates, EndOfCertificate);
  AddProcessFigures(page);
  return page.Text();
}

}  // namespace causeway::server
