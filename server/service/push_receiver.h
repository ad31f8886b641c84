// The receiving end of one Exchange.Push without its stream: takes message after message, believes
// none of them, and puts chunks where PushTable says that they belong.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/exchange.pb.h"
#include "common/transfer/chunk_message.h"
#include "server/service/push_table.h"

namespace causeway::server {

// One call at a time.
class PushReceiver {
 public:
  // Whether whoever sends may push for the worker that the header names.
  using Admit = std::function<absl::Status(const v1::PushHeader& header)>;

  // The table outlives the receiver. `stream` has been opened there.
  PushReceiver(PushTable& table, PushStream* stream, Admit admit)
      : table_(table), stream_(stream), admit_(std::move(admit)) {}

  enum class Next {
    kRead,    // On to the next message.
    kUnpack,  // The message's chunk is packed: call Unpack, on a thread that may take its time.
    kDone,    // The object was accepted before: nothing more need be read.
  };
  // One message. An error (exchange.proto lists them) is what the stream ends with; chunks that
  // came before stay where they are.
  absl::StatusOr<Next> Receive(const MessageBytes& message);
  // Of the message that Receive was given last.
  absl::Status Unpack(const MessageBytes& message) { return Place(message); }
  // The sender is at its end: waits for what other streams bring. INVALID_ARGUMENT if there has
  // not even been a header.
  absl::Status HalfClose();

  const v1::PushHeader& header() const { return header_; }
  // Of an object that was accepted before: whether it is merged.
  bool quarantined() const { return table_.IsQuarantined(header_); }

 private:
  absl::StatusOr<Next> ReceiveHeader();
  absl::StatusOr<Next> ReceiveChunk(const MessageBytes& message);
  absl::Status Place(const MessageBytes& message);

  PushTable& table_;
  PushStream* const stream_;
  const Admit admit_;
  v1::PushHeader header_;
  bool has_header_ = false;
  std::shared_ptr<PushAssembly> assembly_;
  ChunkFields chunk_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_RECEIVER_H_
