#include "server/round/event_budget.h"

#include <algorithm>

namespace causeway::server {

std::optional<int64_t> EventBudget::Take(absl::string_view event, const std::string& worker_id,
                                         absl::Duration now) {
  std::pair<std::string, std::string> key(event, worker_id);
  if (accounts_.size() >= kMostAccounts && !accounts_.contains(key)) key.second.clear();
  const auto [found, is_new] = accounts_.try_emplace(std::move(key));
  Account& account = found->second;
  if (is_new) account.refilled = now;
  account.left =
      std::min(kEventsAtOnce,
               account.left + kEventsPerSecond * absl::ToDoubleSeconds(now - account.refilled));
  account.refilled = now;
  if (account.left < 1) {
    ++account.left_out;
    return std::nullopt;
  }
  --account.left;
  return std::exchange(account.left_out, 0);
}

}  // namespace causeway::server
