#include "server/ctl/events_command.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "server/ctl/event_cursor.h"
#include "server/ctl/event_text.h"

ABSL_FLAG(bool, follow, false, "goes on with what happens, until Ctrl-C");
ABSL_FLAG(std::string, level, "info", "info|warn|error: those and graver ones");
ABSL_FLAG(int, last, 0, "so many of the past; 0: all that the coordinator keeps");

namespace causeway::server {
namespace {

// Asks until one process has answered from its beginning.
absl::StatusOr<EventCursor::News> Next(RunAdmin& run, EventCursor& cursor) {
  for (;;) {
    ASSIGN_OR_RETURN(const v1::ListEventsResponse response, run.ListEvents(cursor.after()));
    std::optional<EventCursor::News> news = cursor.Take(response);
    if (news.has_value()) return *std::move(news);
  }
}

}  // namespace

absl::Status CheckEventsFlags() {
  if (absl::GetFlag(FLAGS_last) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--last must be 0 or more; it is ", absl::GetFlag(FLAGS_last)));
  }
  return absl::OkStatus();
}

absl::Status EventsCommand(RunAdmin& run, const EventsOptions& options) {
  const int least = LevelRank(absl::GetFlag(FLAGS_level));
  const auto last = static_cast<size_t>(absl::GetFlag(FLAGS_last));
  const absl::TimeZone zone = absl::LocalTimeZone();
  EventCursor cursor;
  bool first = true;
  bool run_is_over = false;
  absl::Time last_answer = absl::Now();
  for (;;) {
    absl::StatusOr<EventCursor::News> news = Next(run, cursor);
    if (news.ok()) {
      last_answer = absl::Now();
      for (const v1::RunEvent& event : news->events) {
        if (event.event() == "run_finished") run_is_over = true;
        if (event.event() == "worker_joined") run_is_over = false;
      }
      std::erase_if(news->events,
                    [&](const v1::RunEvent& event) { return LevelRank(event.level()) < least; });
      if (first && last > 0 && news->events.size() > last) {
        news->events.erase(news->events.begin(), news->events.end() - static_cast<int64_t>(last));
      }
      if (!first && news->missed > 0 && !options.json) {
        options.print(absl::StrCat("(", news->missed, " events came too fast to be kept)\n"));
      }
      for (const v1::RunEvent& event : news->events) {
        options.print(options.json ? EventJson(event) : EventText(event, zone));
      }
    } else if (first || !IsRetryable(news.status())) {
      return news.status();
    } else if (run_is_over) {
      return absl::OkStatus();
    } else if (absl::Now() - last_answer > options.patience) {
      return news.status();
    }
    first = false;
    if (!absl::GetFlag(FLAGS_follow) || options.stop()) return absl::OkStatus();
    absl::SleepFor(options.interval);  // A signal ends it early.
    if (options.stop()) return absl::OkStatus();
  }
}

}  // namespace causeway::server
