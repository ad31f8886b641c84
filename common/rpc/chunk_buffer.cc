#include "common/rpc/chunk_buffer.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <array>

namespace causeway {
namespace {

void Release(void* owner) {
  const std::unique_ptr<std::shared_ptr<const void>> last(
      static_cast<std::shared_ptr<const void>*>(owner));
}

grpc::Slice Copied(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

MessageBytes TakeMessage(grpc::ByteBuffer& buffer) {
  const auto slices = std::make_shared<std::vector<grpc::Slice>>();
  MessageBytes message;
  if (buffer.Dump(slices.get()).ok()) {
    for (const grpc::Slice& slice : *slices)
      message.pieces.emplace_back(slice.begin(), slice.size());
  }
  message.owner = slices;
  buffer.Clear();
  return message;
}

grpc::ByteBuffer ChunkToBuffer(ChunkFields chunk, std::span<const uint8_t> data,
                               std::shared_ptr<const void> owner) {
  chunk.data_bytes = data.size();
  const ChunkFrame frame = FrameChunk(chunk);
  auto kept = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  // gRPC takes the memory as void*, and only reads it.
  auto* const bytes = const_cast<uint8_t*>(data.data());
  const std::array<grpc::Slice, 3> slices = {
      Copied(frame.head), grpc::Slice(bytes, data.size(), &Release, kept.release()),
      Copied(frame.tail)};
  return {slices.data(), frame.tail.empty() ? size_t{2} : size_t{3}};
}

grpc::ByteBuffer LaneMessageToBuffer(OutgoingMessage message) {
  if (message.chunk.has_value()) {
    OutgoingChunk& chunk = *message.chunk;
    return ChunkToBuffer(chunk.fields, chunk.data, std::move(chunk.owner));
  }
  v1::LaneMessage control;
  control.mutable_control()->Swap(&message.control);
  return MessageToBuffer(control);
}

grpc::ByteBuffer MessageToBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice = Copied(message.SerializeAsString());
  return {&slice, 1};
}

absl::Status BufferToMessage(const grpc::ByteBuffer& buffer,
                             google::protobuf::MessageLite& message) {
  message.Clear();
  if (!buffer.Valid()) return absl::OkStatus();
  // The reader changes nothing of the buffer; its interface is older than const was thought of.
  grpc::ProtoBufferReader pieces(const_cast<grpc::ByteBuffer*>(&buffer));
  if (message.ParseFromZeroCopyStream(&pieces)) return absl::OkStatus();
  return absl::InvalidArgumentError("the message is malformed");
}

}  // namespace causeway
