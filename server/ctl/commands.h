// The commands of causewayctl that have sources of their own: events, export, invite.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "server/ctl/run_admin.h"

namespace causeway::server {

// Refuses what the flags ask for: INVALID_ARGUMENT.
absl::Status CheckEventsFlags();

// Prints those that the flags ask for; with --follow until `stop` says so, or until the coordinator
// is gone: OK after the run's end, else its error. The flags have been checked.
absl::Status EventsCommand(RunAdmin& run, const std::function<bool()>& stop,
                           const std::function<void(const std::string&)>& print);

// An event of a run for people and for programs.

// 0 for "info", 1 for "warn", 2 for "error"; -1 for anything else.
int LevelRank(absl::string_view level);

// A line: the time in `zone`, the level and the sentence, harmless to a terminal.
std::string EventText(const v1::RunEvent& event, absl::TimeZone zone);
// A line as events.jsonl has it; without the event's own fields where those were not kept.
std::string EventJson(const v1::RunEvent& event);

// Which of the events that a coordinator lists a reader has not seen yet, across its restarts.
//
// Not thread-safe.
class EventCursor {
 public:
  struct News {
    int64_t missed = 0;  // That many came before them, and are kept no more.
    std::vector<v1::RunEvent> events;
  };

  // The number to ask for next (ListEventsRequest.after).
  int64_t after() const { return after_; }

  // Takes the answer to a request with after(). Empty: another process has answered, with other
  // numbers; ask again.
  std::optional<News> Take(const v1::ListEventsResponse& response);

 private:
  int64_t process_unix_ms_ = 0;  // 0: nobody has answered yet.
  int64_t after_ = 0;
  std::optional<v1::RunEvent> last_;
};

// `causewayctl export`: a run's published parameters as a folder of Hugging Face's, while it
// trains.

// Refuses what the flags ask for before anything is fetched. INVALID_ARGUMENT and
// FAILED_PRECONDITION (the folder holds a model).
absl::Status CheckExportFlags();

// Fetches and writes, and returns what is to be printed. The flags have been checked.
absl::StatusOr<std::string> ExportCommand(RunAdmin& run, bool json);

// One line for each name, by the flags of invite; with `json` an object for each. `hint` receives
// what to do with them, for a person. INVALID_ARGUMENT if the coordinator knows no address that
// others could reach and none is given.
absl::StatusOr<std::string> InviteCommand(RunAdmin& run, const std::vector<std::string>& names,
                                          bool json, std::string& hint);
// A line for each invitation, or an array.
absl::StatusOr<std::string> InvitationsCommand(RunAdmin& run, bool json);

}  // namespace causeway::server
