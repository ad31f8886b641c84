// How many events of one kind a worker may cause in the run's record, which keeps the last so many
// of all: nobody flushes out what others did.
#ifndef CAUSEWAY_SERVER_ROUND_EVENT_BUDGET_H_
#define CAUSEWAY_SERVER_ROUND_EVENT_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace causeway::server {

// Limits one kind of event of one worker: so many at once, and so many over time.
inline constexpr double kEventsAtOnce = 20;
inline constexpr double kEventsPerSecond = 0.2;

// Not thread-safe. Times are monotonic and passed in.
class EventBudget {
 public:
  // The event may be recorded: how many of its kind and worker were left out since the last one.
  // Nothing: it is left out, and counted. Beyond kMostAccounts kinds and workers, those who come
  // new share one budget for each kind.
  std::optional<int64_t> Take(absl::string_view event, const std::string& worker_id,
                              absl::Duration now);

 private:
  static constexpr size_t kMostAccounts = 4096;
  struct Account {
    double left = kEventsAtOnce;
    absl::Duration refilled;
    int64_t left_out = 0;
  };
  std::map<std::pair<std::string, std::string>, Account> accounts_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ROUND_EVENT_BUDGET_H_
