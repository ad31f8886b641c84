// What happened, for people and for programs: each event is one log line, a sentence, and one line
// of JSON in a file: {"time": "...", "event": "worker_joined", "message": "...", ...fields}.
// Event names are stable; docs/operating.md lists them.
#ifndef CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_
#define CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"

namespace causeway {

// Thread-safe.
class EventLog {
 public:
  virtual ~EventLog() = default;
  // `fields` is an object; its keys stand beside time, event and message.
  virtual void Record(absl::string_view event, const std::string& message,
                      const nlohmann::json& fields) = 0;
};

// Drops everything.
EventLog* NullEventLog();

// Lines of JSON appended to a file (an events file, a metrics file). A line is written as a whole
// and flushed to the system at once; it is not synced. Thread-safe.
class JsonLinesFile {
 public:
  static absl::StatusOr<std::unique_ptr<JsonLinesFile>> Create(FileSystem& file_system,
                                                               const std::string& path);
  // Goes on after the lines that the file holds; a last one that was cut off is ended first.
  static absl::StatusOr<std::unique_ptr<JsonLinesFile>> Continue(FileSystem& file_system,
                                                                 const std::string& path);
  absl::Status Append(const nlohmann::json& object);

 private:
  explicit JsonLinesFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  absl::Mutex mutex_;
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);
};

// Logs each event (log.h) and appends it to `path`, after what former processes wrote there. The
// clock outlives the result.
absl::StatusOr<std::unique_ptr<EventLog>> OpenEventLog(FileSystem& file_system,
                                                       const std::string& path, Clock* clock);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_
