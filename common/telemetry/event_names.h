// Every event that the programs record: docs/monitoring.md says when, and with which fields. A
// script makes that page of this table and of the calls of EventLog::Record.
#ifndef CAUSEWAY_COMMON_TELEMETRY_EVENT_NAMES_H_
#define CAUSEWAY_COMMON_TELEMETRY_EVENT_NAMES_H_

#include <span>

#include "absl/strings/string_view.h"

namespace causeway {

// How much an event matters to whoever runs the program.
enum class EventLevel {
  kInfo,   // As it should be.
  kWarn,   // The run goes on, but something is out of order.
  kError,  // Something has ended that should not have.
};

struct EventName {
  const char* name;
  EventLevel level;
};

std::span<const EventName> CoordinatorEvents();
std::span<const EventName> WorkerEvents();

// kInfo for a name that is in neither list.
EventLevel LevelOf(absl::string_view event);
// "info", "warn" or "error".
const char* LevelName(EventLevel level);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TELEMETRY_EVENT_NAMES_H_
