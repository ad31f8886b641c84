// Which of the events that a coordinator lists a reader has not seen yet, across its restarts.
#ifndef CAUSEWAY_SERVER_CTL_EVENT_CURSOR_H_
#define CAUSEWAY_SERVER_CTL_EVENT_CURSOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "causeway/v1/admin.pb.h"

namespace causeway::server {

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_EVENT_CURSOR_H_
