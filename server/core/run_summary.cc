#include "server/core/run_summary.h"

#include "common/params/link_report.h"

namespace causeway::server {

absl::string_view RunMode(const v1::SyncConfig& sync) {
  if (sync.contribution() == v1::SyncConfig::GRADIENT) return "data-parallel";
  if (sync.fragments() == 1 && sync.overlap_steps() == 0) return "diloco";
  return "streaming";
}

nlohmann::json SummaryToJson(const RunSummary& summary, int fragments) {
  int64_t tokens = 0;
  v1::Member total;
  nlohmann::json workers = nlohmann::json::object();
  for (const auto& [id, account] : summary.workers) {
    const v1::Heartbeat& heartbeat = account.heartbeat();
    tokens += heartbeat.tokens();
    total.set_bytes_up(total.bytes_up() + account.bytes_up());
    total.set_bytes_down(total.bytes_down() + account.bytes_down());
    total.set_state_bytes_down(total.state_bytes_down() + account.state_bytes_down());
    workers[id] = {{"device", account.device()},
                   {"steps", heartbeat.step()},
                   {"tokens", heartbeat.tokens()},
                   {"train_loss", heartbeat.train_loss()},
                   {"compute_seconds", heartbeat.compute_seconds()},
                   {"blocked_seconds", heartbeat.blocked_seconds()},
                   {"bytes_up", account.bytes_up()},
                   {"bytes_down", account.bytes_down()},
                   {"state_bytes_down", account.state_bytes_down()},
                   {"link", LinkReportToJson(heartbeat.link())}};
  }
  return {{"run_id", summary.run_id},
          {"mode", std::string(RunMode(summary.config.sync()))},
          {"parameters", summary.parameters},
          {"fragments", fragments},
          {"steps", summary.steps},
          {"tokens", tokens},
          {"rounds", summary.rounds},
          {"hash_checks", summary.hash_checks},
          {"hash_mismatches", summary.hash_mismatches},
          {"started_unix_s", summary.started_unix_s},
          {"ended_unix_s", summary.ended_unix_s},
          {"bytes_up", total.bytes_up()},
          {"bytes_down", total.bytes_down()},
          {"state_bytes_down", total.state_bytes_down()},
          {"workers", workers}};
}

}  // namespace causeway::server
