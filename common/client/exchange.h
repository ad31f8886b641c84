// Synchronization's view of the other side: gRPC in production (grpc_exchange.h), the coordinator
// in the same process in tests.
//
// Calls block their thread. All may be made by several threads at once. Errors that will pass
// (UNAVAILABLE, a broken connection) are retried inside until Cancel; what comes back is final.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/params/draws.h"

namespace causeway {

struct Contribution {
  int fragment = 0;
  int64_t round = 0;
  int64_t tokens = 0;  // Trained since the fragment's last send.
  Draws draws;         // Which they were.
  int64_t send_step = 0;
  // The step at which the round's answer is to be merged: of several, the earliest goes first.
  int64_t due_step = 0;
  // A former process of this worker may have sent some of it.
  bool maybe_sent = false;
  std::span<const uint8_t> object;  // Encoded.
  // LeafChecksums(object), where they are known: otherwise it is read for them before it is sent.
  std::vector<uint64_t> leaves;
  // Keeps the object, which must not change any more. The network may hold on to it for some time
  // after Push has returned.
  std::shared_ptr<const void> owner;
};

struct PulledObject {
  int64_t round = 0;  // The answer's round, or the state's version.
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  uint64_t published_hash = 0;  // Hash of the fragment once this object is applied.
  ByteBuffer bytes;             // Verified against the object's hash.
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Returns when the contribution is acknowledged. ABORTED: the round closed without it.
  // ALREADY_EXISTS: the round has another object of this worker.
  virtual absl::Status Push(const Contribution& contribution) = 0;
  // Waits until the round is published; it is to be merged at `due_step`. NOT_FOUND: the answer is
  // no longer kept.
  virtual absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round,
                                                  int64_t due_step) = 0;
  // Push and then PullAnswer, or both at once, which saves a round trip. `pushed` is called once,
  // with what Push said, as soon as it has; what that was an error of, other than ABORTED and
  // ALREADY_EXISTS, is returned.
  virtual absl::StatusOr<PulledObject> PushAndPull(
      const Contribution& contribution, const std::function<void(const absl::Status&)>& pushed) {
    const absl::Status status = Push(contribution);
    pushed(status);
    if (!GetsAnswer(status)) return status;
    return PullAnswer(contribution.fragment, contribution.round, contribution.due_step);
  }
  // The fragment's published fp32 values.
  virtual absl::StatusOr<PulledObject> PullState(int fragment) = 0;
  // Tells the coordinator what the published copy looks like after a merge.
  virtual void ReportApplied(int fragment, int64_t round, uint64_t published_hash) = 0;
  // All waiting and later calls return CANCELLED.
  virtual void Cancel() = 0;

  // Payload bytes of fragments so far.
  virtual int64_t bytes_up() const = 0;
  virtual int64_t bytes_down() const = 0;

 protected:
  // Whether a worker whose Push ended so goes on to the round's answer.
  static bool GetsAnswer(const absl::Status& pushed) {
    return pushed.ok() || absl::IsAborted(pushed) || absl::IsAlreadyExists(pushed);
  }
};

}  // namespace causeway
