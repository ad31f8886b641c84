#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/checksum.h"
#include "nlohmann/json.hpp"
#include "server/store/store.h"

namespace causeway::server {

nlohmann::json AccountToJson(const MemberRecord& record) {
  const WorkerAccount& account = record.account;
  const v1::Heartbeat& heartbeat = account.heartbeat;
  nlohmann::json json = {{"device", account.device},
                         {"software_version", account.software_version},
                         {"step", heartbeat.step()},
                         {"tokens", heartbeat.tokens()},
                         {"train_loss", heartbeat.train_loss()},
                         {"compute_seconds", heartbeat.compute_seconds()},
                         {"blocked_seconds", heartbeat.blocked_seconds()},
                         {"checkpoint_step", heartbeat.checkpoint_step()},
                         {"bytes_up", account.bytes_up},
                         {"bytes_down", account.bytes_down},
                         {"state_bytes_down", account.state_bytes_down},
                         {"had_slots", record.member.had_slots}};
  if (record.member.sites > 0) json["sites"] = record.member.sites;
  if (account.draining.has_value()) json["draining"] = HashToHex(*account.draining);
  if (!record.rejected.empty()) json["rejected"] = record.rejected;
  return json;
}

void AccountFromJson(const nlohmann::json& json, MemberRecord& record) {
  if (!json.is_object()) return;
  const auto field = [&](const char* key) { return json.value(key, nlohmann::json()); };
  const auto text = [&](const char* key) {
    const nlohmann::json value = field(key);
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const auto integer = [&](const char* key) {
    const nlohmann::json value = field(key);
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  };
  const auto number = [&](const char* key) {
    const nlohmann::json value = field(key);
    return value.is_number() ? value.get<double>() : 0.0;
  };
  WorkerAccount& account = record.account;
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
  constexpr int64_t kMostSites = 1 << 20;
  record.member.sites = static_cast<int>(std::clamp<int64_t>(integer("sites"), 0, kMostSites));
  uint64_t nonce = 0;
  if (absl::SimpleHexAtoi(text("draining"), &nonce)) account.draining = nonce;
  // Whatever is no array counts as an empty one.
  const auto elements = [](const nlohmann::json& value) {
    return value.is_array() ? value : nlohmann::json::array();
  };
  for (const nlohmann::json& slot : elements(field("had_slots"))) {
    if (slot.is_number_integer() && std::in_range<int>(slot.get<int64_t>())) {
      record.member.had_slots.insert(slot.get<int>());
    }
  }
  for (const nlohmann::json& rounds : elements(field("rejected"))) {
    std::set<int64_t>& rejected = record.rejected.emplace_back();
    for (const nlohmann::json& round : elements(rounds)) {
      if (round.is_number_integer()) rejected.insert(round.get<int64_t>());
    }
  }
}

}  // namespace causeway::server
