// The receiving end of one Exchange.Push without its stream: takes message after message, believes
// none of them, and ends with a whole object for the coordinator.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"
#include "server/core/coordinator.h"
#include "server/service/work_queue.h"

namespace causeway::server {

// Not thread-safe.
class PushReceiver {
 public:
  // Both outlive the receiver, which holds as much of `memory` as the object that it was promised.
  PushReceiver(Coordinator& coordinator, ByteBudget& memory)
      : coordinator_(coordinator), memory_(memory) {}
  ~PushReceiver() { memory_.Return(taken_bytes_); }
  PushReceiver(const PushReceiver&) = delete;
  PushReceiver& operator=(const PushReceiver&) = delete;

  // One message. An error (exchange.proto lists them) is what the push ends with.
  absl::Status Receive(const v1::PushRequest& request);
  // What a push ends with whose stream ends before it is complete.
  absl::Status CutShort() const;

  // Nothing more need be read: the object is whole or, if `duplicate`, was accepted before.
  bool complete() const { return complete_; }
  bool duplicate() const { return duplicate_; }
  const v1::PushHeader& header() const { return header_; }
  std::vector<uint8_t> TakeObject() { return std::move(object_); }

 private:
  absl::Status ReceiveHeader(const v1::PushHeader& header);
  absl::Status ReceiveChunk(const v1::Chunk& chunk);

  Coordinator& coordinator_;
  ByteBudget& memory_;
  v1::PushHeader header_;
  bool has_header_ = false;
  bool complete_ = false;
  bool duplicate_ = false;
  int64_t taken_bytes_ = 0;
  std::vector<uint8_t> object_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_
