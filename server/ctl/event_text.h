// An event of a run for people and for programs.
#ifndef CAUSEWAY_SERVER_CTL_EVENT_TEXT_H_
#define CAUSEWAY_SERVER_CTL_EVENT_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"

namespace causeway::server {

// 0 for "info", 1 for "warn", 2 for "error"; -1 for anything else.
int LevelRank(absl::string_view level);

// A line: the time in `zone`, the level and the sentence, harmless to a terminal.
std::string EventText(const v1::RunEvent& event, absl::TimeZone zone);
// A line as events.jsonl has it; without the event's own fields where those were not kept.
std::string EventJson(const v1::RunEvent& event);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_EVENT_TEXT_H_
