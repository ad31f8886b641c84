#include "common/telemetry/event_log.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace causeway {
namespace {

class DroppingEventLog final : public EventLog {
 public:
  void Record(absl::string_view, const std::string&, const nlohmann::json&) override {}
};

}  // namespace

void LogEvent(absl::string_view event, const std::string& message) {
  Log().log(spdlog::level::from_str(LevelOf(event)), "{}", Printable(message));
}

EventLog* NullEventLog() {
  static DroppingEventLog log;
  return &log;
}

absl::StatusOr<std::unique_ptr<JsonLinesFile>> JsonLinesFile::Continue(FileSystem& file_system,
                                                                       const std::string& path,
                                                                       uint64_t rotate_at) {
  bool cut_off = false;
  uint64_t bytes = 0;
  if (file_system.Exists(path)) {
    ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> old, file_system.Map(path));
    bytes = old->bytes().size();
    cut_off = !old->bytes().empty() && old->bytes().back() != '\n';
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.OpenForAppend(path));
  const uint8_t newline = '\n';
  if (cut_off) RETURN_IF_ERROR(file->Append(std::span(&newline, 1)));
  return std::unique_ptr<JsonLinesFile>(
      new JsonLinesFile(file_system, path, std::move(file), bytes, rotate_at));
}

absl::Status JsonLinesFile::Rotate() {
  file_.reset();
  RETURN_IF_ERROR(file_system_.Rename(path_, path_ + ".1"));
  ASSIGN_OR_RETURN(file_, file_system_.Create(path_));
  bytes_ = 0;
  return absl::OkStatus();
}

absl::Status JsonLinesFile::Append(const nlohmann::json& object) {
  // Bytes that are no UTF-8 (a generated sample, a foreign path) become U+FFFD.
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  absl::MutexLock lock(&mutex_);
  if (file_ == nullptr) {  // The disk may be well again.
    ASSIGN_OR_RETURN(file_, file_system_.OpenForAppend(path_));
  } else if (rotate_at_ > 0 && bytes_ + line.size() > rotate_at_ && bytes_ > 0) {
    RETURN_IF_ERROR(Rotate());
  }
  bytes_ += line.size();
  return file_->Append(std::span(reinterpret_cast<const uint8_t*>(line.data()), line.size()));
}

absl::Status EventFile::Open(FileSystem& file_system, const std::string& path, uint64_t rotate_at) {
  ASSIGN_OR_RETURN(std::unique_ptr<JsonLinesFile> file,
                   JsonLinesFile::Continue(file_system, path, rotate_at));
  absl::MutexLock lock(&mutex_);
  file_ = std::move(file);
  return absl::OkStatus();
}

void EventFile::Record(absl::string_view event, const std::string& message,
                       const nlohmann::json& fields) {
  JsonLinesFile* file = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ++counts_[std::string(event)];
    file = file_.get();
  }
  LogEvent(event, message);
  if (file == nullptr) return;
  nlohmann::json line = fields.is_object() ? fields : nlohmann::json::object();
  line["time"] = absl::FormatTime(absl::RFC3339_full, clock_->Now(), absl::UTCTimeZone());
  line["event"] = std::string(event);
  line["message"] = message;
  line["level"] = LevelOf(event);
  const absl::Status status = file->Append(line);
  if (!status.ok()) Log().error("event not recorded: {}", std::string(status.message()));
}

}  // namespace causeway
