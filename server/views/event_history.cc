#include "server/views/event_history.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/files/json.h"

namespace causeway::server {

std::string DumpReplacing(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
namespace {

constexpr size_t kMaxTextBytes = 1024;  // Limit on a message, which may quote a worker.
constexpr absl::string_view kCut = "...";
constexpr size_t kMaxFieldsBytes = 2048;
constexpr char kLeftOut[] = "left_out";
constexpr size_t kRestoredBytes = 1 << 17;  // Size of the file's end that is read again.
constexpr JsonLimits kLineLimits = {.bytes = kRestoredBytes, .depth = 8, .values = 1 << 16};

std::string Text(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A message of a protocol takes nothing else in its texts.
std::string Utf8(const std::string& text) {
  return nlohmann::json::parse(DumpReplacing(text)).get<std::string>();
}

// The fields as an object; of too many bytes the largest ones are left out, and named.
std::string FieldsText(const nlohmann::json& fields) {
  std::string text = DumpReplacing(fields);
  if (text.size() <= kMaxFieldsBytes || !fields.is_object()) return text;
  std::vector<std::pair<size_t, std::string>> by_size;
  for (const auto& [key, value] : fields.items())
    by_size.emplace_back(DumpReplacing(value).size(), key);
  std::ranges::sort(by_size);
  nlohmann::json kept = fields;
  kept[kLeftOut] = nlohmann::json::array();
  while (text.size() > kMaxFieldsBytes && !by_size.empty()) {
    const std::string& key = by_size.back().second;
    kept.erase(key);
    kept[kLeftOut].push_back(key);
    by_size.pop_back();
    text = DumpReplacing(kept);
  }
  return text;
}

}  // namespace

EventHistory::EventHistory(EventLog* next, Clock* clock, size_t capacity)
    : next_(next), clock_(clock), capacity_(capacity), started_(clock->Now()) {}

absl::Status EventHistory::Restore(FileSystem& file_system, const std::string& path) {
  if (!file_system.Exists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, file_system.Map(path));
  const std::span<const uint8_t> bytes = file->bytes();
  const std::span<const uint8_t> tail = bytes.last(std::min(bytes.size(), kRestoredBytes));
  absl::string_view text(reinterpret_cast<const char*>(tail.data()), tail.size());
  if (tail.size() < bytes.size()) text.remove_prefix(std::min(text.size(), text.find('\n')));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const absl::StatusOr<nlohmann::json> json = ParseLimitedJson(line, kLineLimits);
    if (!json.ok() || !json->is_object()) continue;
    PastEvent event;
    event.time = Text(*json, "time");
    event.event = Text(*json, "event");
    event.message = Text(*json, "message");
    if (event.event.empty() || event.time.empty()) continue;
    nlohmann::json fields = *json;
    for (const char* const common : {"time", "event", "level", "message"}) fields.erase(common);
    event.fields = FieldsText(fields);
    Keep(std::move(event));
  }
  return absl::OkStatus();
}

void EventHistory::Record(absl::string_view event, const std::string& message,
                          const nlohmann::json& fields) {
  Keep({.time = absl::FormatTime(absl::RFC3339_full, clock_->Now(), absl::UTCTimeZone()),
        .event = std::string(event),
        .message = message,
        .fields = FieldsText(fields)});
  next_->Record(event, message, fields);
}

void EventHistory::Keep(PastEvent event) {
  if (event.message.size() > kMaxTextBytes) {
    event.message.resize(kMaxTextBytes - kCut.size());
    event.message.append(kCut.data(), kCut.size());
  }
  absl::MutexLock lock(&mutex_);
  event.number = ++last_number_;
  events_.push_back(std::move(event));
  if (events_.size() > capacity_) events_.pop_front();
}

std::vector<PastEvent> EventHistory::After(int64_t number) const {
  absl::MutexLock lock(&mutex_);
  const auto begin = std::ranges::upper_bound(events_, number, {}, &PastEvent::number);
  return {begin, events_.end()};
}

v1::ListEventsResponse EventHistory::List(int64_t after) const {
  v1::ListEventsResponse response;
  response.set_process_unix_ms(absl::ToUnixMillis(started_));
  for (const PastEvent& past : After(after)) {
    v1::RunEvent& event = *response.add_events();
    event.set_number(past.number);
    event.set_time(past.time);
    event.set_event(past.event);
    event.set_level(LevelName(LevelOf(past.event)));
    event.set_message(Utf8(past.message));
    event.set_fields_json(past.fields);
  }
  return response;
}

}  // namespace causeway::server
