// Messages that wait for a session's stream: bounded, so a worker that does not read costs no more.
#ifndef CAUSEWAY_SERVER_SERVICE_SESSION_OUTBOX_H_
#define CAUSEWAY_SERVER_SERVICE_SESSION_OUTBOX_H_

#include <cstddef>
#include <list>

#include "causeway/v1/session.pb.h"

namespace causeway::server {

// Oldest first. Of messages that replace what was said before (Roster, LeaseRenewed) only the last
// one waits. Not thread-safe.
class SessionOutbox {
 public:
  // `max_bytes`: what the waiting messages may take in memory.
  explicit SessionOutbox(size_t max_bytes) : max_bytes_(max_bytes) {}

  // False if that is too much: the message was not added.
  bool Add(const v1::CoordinatorMessage& message);
  // Before all others, whatever its size.
  void AddFirst(v1::CoordinatorMessage message);

  bool empty() const { return waiting_.empty(); }
  size_t bytes() const { return bytes_; }
  // Takes the first message away: it stays valid until the next call of Take. Not if empty().
  const v1::CoordinatorMessage& Take();
  // Drops whatever waits.
  void Clear();

 private:
  struct Waiting {
    v1::CoordinatorMessage message;
    size_t bytes = 0;
  };

  const size_t max_bytes_;
  std::list<Waiting> waiting_;
  size_t bytes_ = 0;  // Total of waiting_.
  v1::CoordinatorMessage taken_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_SESSION_OUTBOX_H_
