// How much CoordinatorServer has to do.
#ifndef CAUSEWAY_SERVER_SERVICE_SERVER_LOAD_H_
#define CAUSEWAY_SERVER_SERVICE_SERVER_LOAD_H_

#include <cstddef>
#include <cstdint>

namespace causeway::server {

struct ServerLoad {
  int64_t push_bytes = 0;  // Deltas that are being received.
  int64_t push_bytes_limit = 0;
  int64_t pull_bytes = 0;  // Packed chunks on their way down.
  int64_t pull_bytes_limit = 0;
  size_t pushes = 0;
  size_t lanes = 0;  // Open ones.
  int64_t pushes_evicted = 0;
  size_t merges_queued = 0;  // Tasks that wait for a thread.
  size_t copies_queued = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_SERVER_LOAD_H_
