// The receiving end of Exchange.Pull without its streams: puts one object together from the
// messages of as many streams as it takes, and believes none of them.
//
//   PullReceiver receiver(request, expected_bytes);
//   do {
//     receiver.BeginGroup(random);   // one stream or more asks for receiver.Request()
//     ... receiver.Receive(message) for all that they bring ...
//   } while (!receiver.EndGroup(how they ended).ok());
//   receiver.TakeObject();
//
// Streams of one group share the object: each of its chunks comes over one of them, and lands where
// it belongs. What is missing when all have ended is asked for by the next group.
#ifndef CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_
#define CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "common/rpc/chunk_message.h"
#include "common/rpc/chunk_set.h"
#include "worker/sync/exchange.h"

namespace causeway::worker {

// Receive may be called by any thread, by several at once; the rest by one, while no Receive is
// under way (Request may be called at any time).
class PullReceiver {
 public:
  struct Received {
    bool header = false;     // Otherwise a chunk.
    bool again = false;      // It was held already.
    int64_t data_bytes = 0;  // As they crossed the link.
  };

  // `request` names the object, which has `expected_bytes`, 1 or more.
  PullReceiver(v1::PullRequest request, int64_t expected_bytes)
      : request_(std::move(request)), expected_bytes_(expected_bytes) {}

  // Begins a group of streams.
  void BeginGroup(uint64_t stripe_group);
  // What a stream of the group is to ask for: all that is not held by now. Every stream of a group
  // asks for the same round, whatever the others have brought already.
  v1::PullRequest Request() const;
  // One message of a stream; `has_header` is that stream's, false at first. After an error
  // (DATA_LOSS, or UNAVAILABLE if the object is another one by now) the stream is to be given up.
  absl::StatusOr<Received> Receive(const MessageBytes& message, bool& has_header);
  // Ends the group, all of whose streams have ended; `status` is the error that says most of why,
  // or OK. OK once the object is whole and hashes to what was announced. What is worth keeping for
  // the next group is kept.
  absl::Status EndGroup(const absl::Status& status);

  const v1::PullRequest& request() const { return request_; }
  // Bytes of the object so far.
  int64_t received_bytes() const;
  bool complete() const { return received_bytes() == expected_bytes_; }
  // After EndGroup said OK.
  PulledObject TakeObject();

 private:
  absl::Status ReceiveHeader(const v1::PullHeader& header);
  absl::StatusOr<Received> ReceiveChunk(const MessageBytes& message, const ChunkFields& fields);
  void StartAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::PullRequest request_;
  const int64_t expected_bytes_;

  mutable absl::Mutex mutex_;
  uint64_t stripe_group_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;      // The one that the group asks for.
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;     // header_ and the rest are of this object.
  bool moved_on_ ABSL_GUARDED_BY(mutex_) = false;  // A stream had another object.
  v1::PullHeader header_ ABSL_GUARDED_BY(mutex_);
  ChunkSet held_ ABSL_GUARDED_BY(mutex_);
  ChunkSet claimed_ ABSL_GUARDED_BY(mutex_);  // Held, or being copied.
  // Elements of chunks that are claimed and not held belong to the thread that copies them.
  ByteBuffer object_;
  std::vector<uint64_t> leaves_;  // Checksums of the chunks that are held.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_
