#include "server/core/run_summary.h"

#include "common/params/link_report.h"

namespace causeway::server {

absl::string_view RunMode(const v1::SyncConfig& sync) {
  if (sync.contribution() == v1::SyncConfig::GRADIENT) return "data-parallel";
  if (sync.fragments() == 1 && sync.overlap_steps() == 0) return "diloco";
  return "streaming";
}

nlohmann::json AccountToJson(const WorkerAccount& account) {
  const v1::Heartbeat& heartbeat = account.heartbeat;
  return {{"device", account.device},
          {"software_version", account.software_version},
          {"step", heartbeat.step()},
          {"tokens", heartbeat.tokens()},
          {"train_loss", heartbeat.train_loss()},
          {"compute_seconds", heartbeat.compute_seconds()},
          {"blocked_seconds", heartbeat.blocked_seconds()},
          {"checkpoint_step", heartbeat.checkpoint_step()},
          {"bytes_up", account.bytes_up},
          {"bytes_down", account.bytes_down},
          {"state_bytes_down", account.state_bytes_down}};
}

WorkerAccount AccountFromJson(const nlohmann::json& json) {
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto integer = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  WorkerAccount account;
  if (!json.is_object()) return account;
  account.device = text("device");
  account.software_version = text("software_version");
  account.heartbeat.set_step(integer("step"));
  account.heartbeat.set_tokens(integer("tokens"));
  account.heartbeat.set_train_loss(number("train_loss"));
  account.heartbeat.set_compute_seconds(number("compute_seconds"));
  account.heartbeat.set_blocked_seconds(number("blocked_seconds"));
  account.heartbeat.set_checkpoint_step(integer("checkpoint_step"));
  account.bytes_up = integer("bytes_up");
  account.bytes_down = integer("bytes_down");
  account.state_bytes_down = integer("state_bytes_down");
  return account;
}

nlohmann::json SummaryToJson(const RunSummary& summary, int fragments) {
  int64_t tokens = 0;
  WorkerAccount total;
  nlohmann::json workers = nlohmann::json::object();
  for (const auto& [id, account] : summary.workers) {
    const v1::Heartbeat& heartbeat = account.heartbeat;
    tokens += heartbeat.tokens();
    total.bytes_up += account.bytes_up;
    total.bytes_down += account.bytes_down;
    total.state_bytes_down += account.state_bytes_down;
    workers[id] = {{"device", account.device},
                   {"steps", heartbeat.step()},
                   {"tokens", heartbeat.tokens()},
                   {"train_loss", heartbeat.train_loss()},
                   {"compute_seconds", heartbeat.compute_seconds()},
                   {"blocked_seconds", heartbeat.blocked_seconds()},
                   {"bytes_up", account.bytes_up},
                   {"bytes_down", account.bytes_down},
                   {"state_bytes_down", account.state_bytes_down},
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
          {"bytes_up", total.bytes_up},
          {"bytes_down", total.bytes_down},
          {"state_bytes_down", total.state_bytes_down},
          {"workers", workers}};
}

}  // namespace causeway::server
