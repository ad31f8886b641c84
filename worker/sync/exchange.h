// What synchronization needs of the other side: gRPC in production (grpc_exchange.h), the
// coordinator in the same process in tests.
//
// Calls block their thread. All may be made by several threads at once. Errors that will pass
// (UNAVAILABLE, a broken connection) are retried inside until Cancel; what comes back is final.
#ifndef CAUSEWAY_WORKER_SYNC_EXCHANGE_H_
#define CAUSEWAY_WORKER_SYNC_EXCHANGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"

namespace causeway::worker {

struct Contribution {
  int fragment = 0;
  int64_t round = 0;
  int64_t tokens = 0;  // Trained since the fragment's last send.
  int64_t send_step = 0;
  std::span<const uint8_t> object;  // Encoded; the caller keeps it until Push returns.
};

struct PulledObject {
  int64_t round = 0;  // Of a state: its version.
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  uint64_t published_hash = 0;  // Of the fragment after this object is applied.
  std::vector<uint8_t> bytes;   // Verified against the object's hash.
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Returns when the contribution is acknowledged. ABORTED: the round closed without it.
  // ALREADY_EXISTS: the round has another object of this worker.
  virtual absl::Status Push(const Contribution& contribution) = 0;
  // Waits until the round is published. NOT_FOUND: the answer is no longer kept.
  virtual absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round) = 0;
  // The fragment's published fp32 values.
  virtual absl::StatusOr<PulledObject> PullState(int fragment) = 0;
  // Tells the coordinator what the published copy looks like after a merge.
  virtual void ReportApplied(int fragment, int64_t round, uint64_t published_hash) = 0;
  // All waiting and later calls return CANCELLED.
  virtual void Cancel() = 0;

  // Payload bytes of fragments so far.
  virtual int64_t bytes_up() const = 0;
  virtual int64_t bytes_down() const = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_EXCHANGE_H_
