// The receiving end of Exchange.Pull without its streams: puts one object together from the
// messages of as many streams as it takes, and believes none of them.
#ifndef CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_
#define CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"
#include "worker/sync/exchange.h"

namespace causeway::worker {

// Not thread-safe.
class PullReceiver {
 public:
  // `request` names the object, which has `expected_bytes`.
  PullReceiver(v1::PullRequest request, int64_t expected_bytes)
      : request_(std::move(request)), expected_bytes_(expected_bytes) {}

  // Begins a stream: what to ask for, so that it goes on where the last one ended.
  v1::PullRequest BeginStream();
  // One message of the stream. After an error (DATA_LOSS, or UNAVAILABLE if the object is another
  // one by now) the stream is to be given up.
  absl::Status Receive(const v1::PullResponse& response);
  // Ends the stream, which itself ended with `status`, `problem` being what Receive said. OK once
  // the object is whole and hashes to what was announced. What is worth keeping for the next
  // stream is kept.
  absl::Status EndStream(const absl::Status& problem, const absl::Status& status);

  const v1::PullRequest& request() const { return request_; }
  // Bytes of the object so far.
  int64_t received_bytes() const { return static_cast<int64_t>(object_.size()); }
  // After EndStream said OK.
  PulledObject TakeObject();

 private:
  absl::Status ReceiveHeader(const v1::PullHeader& header);
  absl::Status ReceiveChunk(const v1::Chunk& chunk);

  const v1::PullRequest request_;
  const int64_t expected_bytes_;
  v1::PullHeader header_;
  std::vector<uint8_t> object_;
  // Of the present stream.
  bool resumes_ = false;
  bool has_header_ = false;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_PULL_RECEIVER_H_
