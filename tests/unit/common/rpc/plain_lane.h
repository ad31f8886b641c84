// A lane as somebody would speak it who has the protocol alone: generated classes, one thread, no
// resume. For tests of a coordinator.
#pragma once

#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.grpc.pb.h"

namespace causeway {

// Makes `chunk` the bytes at `offset` of an object, 1 .. kChunkBytes of them; packed
// (EntropyPack) if `entropy` is true and that makes them smaller.
void FillChunk(int64_t offset, std::span<const uint8_t> bytes, bool entropy, v1::Chunk& chunk);

class PlainLane {
 public:
  // Opens a lane of a process of its own, and greets. The stub outlives the lane.
  PlainLane(v1::Exchange::StubInterface& stub, const std::string& run_id,
            const std::string& worker_id, absl::Time deadline = absl::InfiniteFuture());
  // With another greeting, or none.
  PlainLane(v1::Exchange::StubInterface& stub, const v1::Greeting* greeting,
            absl::Time deadline = absl::InfiniteFuture());
  ~PlainLane();
  PlainLane(const PlainLane&) = delete;
  PlainLane& operator=(const PlainLane&) = delete;

  static v1::Greeting MakeGreeting(const std::string& run_id, const std::string& worker_id);

  // False: the lane has ended.
  bool Write(const v1::LaneMessage& message);
  bool Offer(uint64_t transfer, const v1::PushHeader& header);
  bool Want(const v1::Want& want);
  bool Chunk(uint64_t transfer, int64_t offset, std::span<const uint8_t> bytes,
             bool entropy = false);
  // Takes all of an object.
  bool Chunks(uint64_t transfer, std::span<const uint8_t> object);
  // The next message that is no acknowledgement. False: the lane has ended.
  bool Read(v1::LaneMessage& message);

  // Offers the object, sends all of it, and waits for its outcome.
  absl::Status Push(const v1::PushHeader& header, std::span<const uint8_t> object);
  absl::Status AwaitOutcome(uint64_t transfer);
  // Waits for the object, and takes its chunks in order.
  absl::Status Pull(v1::Want want, std::vector<uint8_t>* object);

  void Cancel() { context_.TryCancel(); }
  // Reads to the lane's end, and says what it was.
  absl::Status Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriterInterface<v1::LaneMessage, v1::LaneMessage>> stream_;
  uint64_t transfers_ = 0;
  bool finished_ = false;
  absl::Status end_;
};

}  // namespace causeway
