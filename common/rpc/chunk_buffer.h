// Messages of bulk transfers in gRPC's own buffers: see chunk_message.h.
#ifndef CAUSEWAY_COMMON_RPC_CHUNK_BUFFER_H_
#define CAUSEWAY_COMMON_RPC_CHUNK_BUFFER_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/lane_peer.h"

namespace causeway {

// A message as a raw method receives it; the buffer outlives the object.
class BufferMessage final : public MessageBytes {
 public:
  explicit BufferMessage(const grpc::ByteBuffer& buffer) : buffer_(buffer) {}
  std::unique_ptr<google::protobuf::io::ZeroCopyInputStream> Open() const override;
  size_t size() const override { return buffer_.Valid() ? buffer_.Length() : 0; }

 private:
  const grpc::ByteBuffer& buffer_;
};

// One that keeps the buffer itself.
class OwnedBufferMessage final : public MessageBytes {
 public:
  // Leaves `buffer` empty.
  explicit OwnedBufferMessage(grpc::ByteBuffer& buffer) { buffer_.Swap(&buffer); }
  std::unique_ptr<google::protobuf::io::ZeroCopyInputStream> Open() const override {
    return BufferMessage(buffer_).Open();
  }
  size_t size() const override { return BufferMessage(buffer_).size(); }

 private:
  grpc::ByteBuffer buffer_;
};

// A LaneMessage that holds a chunk. It borrows `data`, 1 .. kChunkBytes of them,
// which must not change before `owner` is released, on any thread, when the message has left.
// chunk.data_bytes is taken from `data`.
grpc::ByteBuffer ChunkToBuffer(ChunkFields chunk, std::span<const uint8_t> data,
                               std::shared_ptr<const void> owner);

// A message of a lane, a chunk or a control message.
grpc::ByteBuffer LaneMessageToBuffer(OutgoingMessage message);

// Any message, serialized; and back. INVALID_ARGUMENT if it is malformed.
grpc::ByteBuffer MessageToBuffer(const google::protobuf::MessageLite& message);
absl::Status BufferToMessage(const grpc::ByteBuffer& buffer,
                             google::protobuf::MessageLite& message);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_CHUNK_BUFFER_H_
