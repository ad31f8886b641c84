// The system's figures of this process, under the names that Prometheus's libraries share.
#ifndef CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_
#define CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metric_page.h"

namespace causeway {

// process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds. What /proc does not
// tell is left out.
void AddProcessFigures(MetricPage& page);

// causeway_certificate_readable and, if it is, causeway_certificate_end_timestamp_seconds: of the
// certificate that this process shows its peers, read now, so that a renewed one counts at once.
void AddCertificateFigures(MetricPage& page, const absl::StatusOr<absl::Time>& end);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_
