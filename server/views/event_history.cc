#include "server/views/event_history.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/files/json.h"

namespace causeway::server {

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
  return nlohmann::json::parse(JsonText(text)).get<std::string>();
}

// The fields as an object; of too many bytes the largest ones are left out, and named.
std::string FieldsText(const nlohmann::json& fields) {
  std::string text = JsonText(fields);
  if (text.size() <= kMaxFieldsBytes || !fields.is_object()) return text;
  std::vector<std::pair<size_t, std::string>> by_size;
  for (const auto& [key, value] : fields.items()) by_size.emplace_back(JsonText(value).size(), key);
  std::ranges::sort(by_size);
  nlohmann::json kept = fields;
  kept[kLeftOut] = nlohmann::json::array();
  while (text.size() > kMaxFieldsBytes && !by_size.empty()) {
    const std::string& key = by_size.back().second;
    kept.erase(key);
    kept[kLeftOut].push_back(key);
    by_size.pop_back();
    text = JsonText(kept);
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
    const std::string time = Text(*json, "time");
    const std::string event = Text(*json, "event");
    if (event.empty() || time.empty()) continue;
    nlohmann::json fields = *json;
    for (const char* const common : {"time", "event", "level", "message"}) fields.erase(common);
    Keep(time, event, Text(*json, "message"), fields);
  }
  return absl::OkStatus();
}

void EventHistory::Record(absl::string_view event, const std::string& message,
                          const nlohmann::json& fields) {
  Keep(absl::FormatTime(absl::RFC3339_full, clock_->Now(), absl::UTCTimeZone()), event, message,
       fields);
  next_->Record(event, message, fields);
}

void EventHistory::Keep(std::string time, absl::string_view name, std::string message,
                        const nlohmann::json& fields) {
  if (message.size() > kMaxTextBytes) {
    message.resize(kMaxTextBytes - kCut.size());
    message.append(kCut.data(), kCut.size());
  }
  v1::RunEvent event;
  event.set_time(std::move(time));
  event.set_event(std::string(name));
  event.set_level(LevelOf(name));
  event.set_message(Utf8(message));
  event.set_fields_json(FieldsText(fields));
  absl::MutexLock lock(&mutex_);
  event.set_number(++last_number_);
  events_.push_back(std::move(event));
  if (events_.size() > capacity_) events_.pop_front();
}

v1::ListEventsResponse EventHistory::List(int64_t after) const {
  v1::ListEventsResponse response;
  response.set_process_unix_ms(absl::ToUnixMillis(started_));
  absl::MutexLock lock(&mutex_);
  const auto begin = std::ranges::upper_bound(events_, after, {}, &v1::RunEvent::number);
  response.mutable_events()->Add(begin, events_.end());
  return response;
}

}  // namespace causeway::server
