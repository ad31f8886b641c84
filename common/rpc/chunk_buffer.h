// Messages of bulk transfers in gRPC's own buffers: see chunk_message.h.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/lane_peer.h"

namespace causeway {

// A message as a raw method receives it, where it lies. Leaves `buffer` empty.
MessageBytes TakeMessage(grpc::ByteBuffer& buffer);

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
