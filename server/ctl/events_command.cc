#include "server/ctl/commands.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/files/json.h"
#include "common/rpc/status.h"

ABSL_FLAG(bool, follow, false, "goes on with what happens, until Ctrl-C");
ABSL_FLAG(std::string, level, "info", "info|warn|error: those and graver ones");
ABSL_FLAG(int, last, 0, "so many of the past; 0: all that the coordinator keeps");
// Of other commands, too.
ABSL_FLAG(bool, json, false, "JSON for programs; watch: one line per look, events: one per event");
ABSL_FLAG(absl::Duration, interval, absl::Seconds(2), "between two looks");
ABSL_FLAG(absl::Duration, patience, absl::Minutes(10),
          "ends when a coordinator that has answered is away for so long");

namespace causeway::server {
namespace {

// Asks until one process has answered from its beginning.
absl::StatusOr<EventCursor::News> Next(RunAdmin& run, EventCursor& cursor) {
  for (;;) {
    v1::ListEventsRequest request;
    request.set_after(cursor.after());
    ASSIGN_OR_RETURN(const v1::ListEventsResponse response,
                     run.Call(&v1::Admin::Stub::ListEvents, request));
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

absl::Status EventsCommand(RunAdmin& run, const std::function<bool()>& stop,
                           const std::function<void(const std::string&)>& print) {
  const bool json = absl::GetFlag(FLAGS_json);
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
      if (!first && news->missed > 0 && !json) {
        print(absl::StrCat("(", news->missed, " events came too fast to be kept)\n"));
      }
      for (const v1::RunEvent& event : news->events) {
        print(json ? EventJson(event) : EventText(event, zone));
      }
    } else if (first || !IsRetryable(news.status())) {
      return news.status();
    } else if (run_is_over) {
      return absl::OkStatus();
    } else if (absl::Now() - last_answer > absl::GetFlag(FLAGS_patience)) {
      return news.status();
    }
    first = false;
    if (!absl::GetFlag(FLAGS_follow) || stop()) return absl::OkStatus();
    absl::SleepFor(absl::GetFlag(FLAGS_interval));  // A signal ends it early.
    if (stop()) return absl::OkStatus();
  }
}

int LevelRank(absl::string_view level) {
  constexpr const char* kLevels[] = {"info", "warn", "error"};
  const auto* const found = std::ranges::find(kLevels, level);
  return found == std::end(kLevels) ? -1 : static_cast<int>(found - std::begin(kLevels));
}

std::string EventText(const v1::RunEvent& event, absl::TimeZone zone) {
  absl::Time time;
  const bool known = absl::ParseTime(absl::RFC3339_full, event.time(), &time, nullptr);
  return absl::StrFormat(
      "%s  %-5s  %s\n",
      known ? absl::FormatTime("%Y-%m-%d %H:%M:%S", time, zone) : Printable(event.time()),
      Printable(event.level()), Printable(event.message()));
}

std::string EventJson(const v1::RunEvent& event) {
  nlohmann::json line = nlohmann::json::parse(event.fields_json(), nullptr, false);
  if (!line.is_object()) line = nlohmann::json::object();
  line["time"] = event.time();
  line["event"] = event.event();
  line["level"] = event.level();
  line["message"] = event.message();
  return absl::StrCat(JsonText(line), "\n");
}

namespace {

// A process stamps an event in its memory and in the file one after the other.
constexpr absl::Duration kBetweenStamps = absl::Seconds(1);

absl::Time TimeOf(const v1::RunEvent& event) {
  absl::Time time = absl::InfinitePast();
  absl::ParseTime(absl::RFC3339_full, event.time(), &time, nullptr);
  return time;
}

bool IsSame(const v1::RunEvent& a, const v1::RunEvent& b) {
  return a.event() == b.event() && a.message() == b.message() &&
         absl::AbsDuration(TimeOf(a) - TimeOf(b)) < kBetweenStamps;
}

}  // namespace

std::optional<EventCursor::News> EventCursor::Take(const v1::ListEventsResponse& response) {
  const bool other_process = response.process_unix_ms() != process_unix_ms_;
  if (other_process && after_ > 0) {
    after_ = 0;
    return std::nullopt;
  }
  News news;
  auto first = response.events().begin();
  if (other_process && last_.has_value()) {
    // It begins with what its predecessor recorded, by the file: go on after the last one seen, or
    // where the times do if that one is kept no more.
    const auto seen =
        std::find_if(response.events().rbegin(), response.events().rend(),
                     [&](const v1::RunEvent& event) { return IsSame(event, *last_); });
    first = seen != response.events().rend()
                ? seen.base()
                : std::ranges::find_if(response.events(), [&](const v1::RunEvent& event) {
                    return TimeOf(event) > TimeOf(*last_);
                  });
  } else if (!other_process && !response.events().empty()) {
    news.missed = response.events(0).number() - after_ - 1;
  }
  process_unix_ms_ = response.process_unix_ms();
  news.events.assign(first, response.events().end());
  if (!response.events().empty()) {
    last_ = *response.events().rbegin();
    after_ = last_->number();
  }
  return news;
}

}  // namespace causeway::server
