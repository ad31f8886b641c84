#include "server/ctl/event_cursor.h"

#include <algorithm>

#include "absl/time/time.h"

namespace causeway::server {
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
