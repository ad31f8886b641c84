// `causeway-worker preflight`: everything that can keep a site from joining a run, or from training
// well in it, looked at one after the other before it joins. Joins nothing and leaves nothing.
//
// The checks themselves are in reach.h and checks.h: they
// judge facts, so that tests can make the facts up. Here the facts are gathered. A check that fails
// does not stop those that do without it; the others are reported as skipped, with the reason.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_PREFLIGHT_H_
#define CAUSEWAY_WORKER_PREFLIGHT_PREFLIGHT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/rpc/security.h"
#include "worker/preflight/check_result.h"

namespace causeway::worker {

struct PreflightOptions {
  std::string coordinator;  // HOST:PORT, of the right form.
  SecurityOptions security;
  std::string worker_id;  // May be empty, as may the next two: less is checked then.
  std::string data;
  std::string output;
  bool own_data = false;
  int threads = 0;                                  // 0: one per core.
  int connections = 4;                              // 1 .. 16.
  absl::Duration probe_time = absl::Seconds(3);     // Per direction; zero: rates are not measured.
  absl::Duration step_time = absl::ZeroDuration();  // Zero: it is guessed.
  std::string congestion_control;                   // ChooseCongestionControl's.
};

struct PreflightOutput {
  // Each result as soon as it is there.
  std::function<void(const CheckResult&)> result;
  // Told what goes on, a few times a second where it takes long; empty: it is over.
  std::function<void(const std::string&)> progress;
};

// Takes half a minute at most, mostly for the rates, unless the resolver is slow.
std::vector<CheckResult> RunPreflight(const PreflightOptions& options, FileSystem& file_system,
                                      const Clock& clock, const PreflightOutput& output);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_PREFLIGHT_H_
