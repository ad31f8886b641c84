// `causeway-worker preflight`: everything that can keep a site from joining a run, or from training
// well in it, looked at one after the other before it joins. Joins nothing and leaves nothing.
//
// The checks themselves are in reach.h and checks.h: they judge facts, so that tests can make the
// facts up. Here the facts are gathered. A check that fails does not stop those that do without it;
// the others are reported as skipped, with the reason.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/rpc/security.h"
#include "nlohmann/json.hpp"

namespace causeway::worker {

enum class CheckStatus {
  kOk,
  kWarning,  // It works, but not as well as it could, or not for long.
  kFailed,   // The site cannot train like this.
  kSkipped,  // Not asked for, or something that it needs has failed.
};

struct Measured {
  template <typename Number>
  Measured(std::string called, Number number, std::string of = "1")
      : name(std::move(called)), value(static_cast<double>(number)), unit(std::move(of)) {}
  Measured(std::string called, absl::Duration time)
      : Measured(std::move(called), absl::ToDoubleSeconds(time), "s") {}
  std::string name;  // "round_trip_min"
  double value = 0;
  std::string unit;  // "s", "bytes", "bytes/s", "1"
};

struct CheckResult {
  std::string name;  // "round trip"
  CheckStatus status = CheckStatus::kOk;
  std::string finding;
  std::string remedy;  // Says what to do, for warnings and failures.
  std::vector<Measured> values = {};
};

CheckResult Passed(absl::string_view name, absl::string_view finding,
                   std::vector<Measured> values = {});
CheckResult Warned(absl::string_view name, absl::string_view finding, absl::string_view remedy,
                   std::vector<Measured> values = {});
CheckResult Failed(absl::string_view name, absl::string_view finding, absl::string_view remedy,
                   std::vector<Measured> values = {});
// Passed without a remedy, else Warned.
CheckResult PassedUnless(absl::string_view name, absl::string_view finding,
                         absl::string_view remedy, std::vector<Measured> values = {});
CheckResult Skipped(absl::string_view name, absl::string_view reason);

// "ok    round trip     101 ms ..." and, below it, "-> what to do". No newline at the end.
std::string FormatCheck(const CheckResult& result);

// "This site can join: 14 checks passed, 2 with a warning." Says what keeps it from joining.
std::string FormatVerdict(std::span<const CheckResult> results);

// {"passed": true, "checks": [{"name", "status", "finding", "remedy", "values": {NAME: {"value",
// "unit"}}}]}; status is "ok", "warning", "failed" or "skipped".
nlohmann::json ToJson(std::span<const CheckResult> results);

bool AnyFailed(std::span<const CheckResult> results);

// For findings: "812 Mbit/s", "1.4 GB", "101 ms".
std::string FormatRate(double bytes_per_second);
std::string FormatBytes(double bytes);
std::string FormatTime(absl::Duration time);

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
  absl::Duration step_time = absl::ZeroDuration();  // Zero: it is guessed, of processors.
  bool trains_on_gpus = false;                      // As `train` does here without --device.
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
