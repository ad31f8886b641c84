// A run's totals, for summary.json.
#ifndef CAUSEWAY_SERVER_CORE_RUN_SUMMARY_H_
#define CAUSEWAY_SERVER_CORE_RUN_SUMMARY_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "nlohmann/json.hpp"
#include "server/store/store.h"

namespace causeway::server {

struct RunSummary {
  std::string run_id;
  v1::RunConfig config;
  int64_t parameters = 0;
  int64_t steps = 0;   // The largest step that a worker reported.
  int64_t rounds = 0;  // Published, over all fragments.
  int64_t hash_checks = 0;
  int64_t hash_mismatches = 0;
  double started_unix_s = 0;  // Training; 0 if it never began.
  double ended_unix_s = 0;
  std::map<std::string, v1::Member> workers;
};

// "data-parallel" for GRADIENT contributions; "diloco" for one fragment without overlap; else
// "streaming".
absl::string_view RunMode(const v1::SyncConfig& sync);

// {"run_id", "mode", "parameters", "fragments", "steps", "tokens", "rounds", "hash_checks",
//  "hash_mismatches", "started_unix_s", "ended_unix_s", "bytes_up", "bytes_down",
//  "state_bytes_down", "workers": {id: {"device", "steps", "tokens", "train_loss",
//  "compute_seconds", "blocked_seconds", "bytes_up", "bytes_down", "state_bytes_down"}}}
nlohmann::json SummaryToJson(const RunSummary& summary, int fragments);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_RUN_SUMMARY_H_
