#include "tests/unit/common/rpc/plain_lane.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

// Appends the chunk's bytes to `object`: OUT_OF_RANGE if it does not start where that ends.
absl::Status AppendChunk(const v1::Chunk& chunk, std::vector<uint8_t>& object) {
  if (chunk.offset() != static_cast<int64_t>(object.size())) {
    return absl::OutOfRangeError(
        absl::StrCat("a chunk starts at byte ", chunk.offset(), ", expected ", object.size()));
  }
  const absl::string_view data = chunk.data();
  if (Checksum64(data) != chunk.checksum()) {
    return absl::DataLossError(absl::StrCat("the checksum of the chunk at ", chunk.offset()));
  }
  if (chunk.unpacked_bytes() == 0) {
    object.insert(object.end(), data.begin(), data.end());
    return absl::OkStatus();
  }
  const size_t before = object.size();
  object.resize(before + static_cast<size_t>(chunk.unpacked_bytes()));
  return EntropyUnpack(data, std::span(object).subspan(before));
}

}  // namespace

void FillChunk(int64_t offset, std::span<const uint8_t> bytes, bool entropy, v1::Chunk& chunk) {
  chunk.set_offset(offset);
  chunk.clear_unpacked_bytes();
  if (entropy && EntropyPack(bytes, *chunk.mutable_data())) {
    chunk.set_unpacked_bytes(static_cast<int32_t>(bytes.size()));
  } else {
    chunk.set_data(bytes.data(), bytes.size());
  }
  chunk.set_checksum(Checksum64(absl::string_view(chunk.data())));
}

v1::Greeting PlainLane::MakeGreeting(const std::string& run_id, const std::string& worker_id) {
  static std::atomic<uint64_t> processes{1};
  v1::Greeting greeting;
  greeting.set_wire_version(kWireVersion);
  greeting.set_run_id(run_id);
  greeting.set_worker_id(worker_id);
  greeting.set_process(processes.fetch_add(1));
  return greeting;
}

PlainLane::PlainLane(v1::Exchange::StubInterface& stub, const std::string& run_id,
                     const std::string& worker_id, absl::Time deadline)
    : PlainLane(stub, nullptr, deadline) {
  v1::LaneMessage message;
  *message.mutable_control()->mutable_greeting() = MakeGreeting(run_id, worker_id);
  Write(message);
}

PlainLane::PlainLane(v1::Exchange::StubInterface& stub, const v1::Greeting* greeting,
                     absl::Time deadline) {
  if (deadline != absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline));
  stream_ = stub.Carry(&context_);
  if (greeting == nullptr) return;
  v1::LaneMessage message;
  *message.mutable_control()->mutable_greeting() = *greeting;
  Write(message);
}

PlainLane::~PlainLane() {
  Cancel();
  Finish().IgnoreError();
}

bool PlainLane::Write(const v1::LaneMessage& message) { return stream_->Write(message); }

bool PlainLane::Offer(uint64_t transfer, const v1::PushHeader& header) {
  v1::LaneMessage message;
  v1::Offer& offer = *message.mutable_control()->mutable_offer();
  offer.set_transfer(transfer);
  *offer.mutable_header() = header;
  return Write(message);
}

bool PlainLane::Want(const v1::Want& want) {
  v1::LaneMessage message;
  *message.mutable_control()->mutable_want() = want;
  return Write(message);
}

bool PlainLane::Chunk(uint64_t transfer, int64_t offset, std::span<const uint8_t> bytes,
                      bool entropy) {
  v1::LaneMessage message;
  FillChunk(offset, bytes, entropy, *message.mutable_chunk());
  message.mutable_chunk()->set_transfer(transfer);
  return Write(message);
}

bool PlainLane::Chunks(uint64_t transfer, std::span<const uint8_t> object) {
  bool open = true;
  for (size_t offset = 0; open && offset < object.size(); offset += kChunkBytes) {
    open = Chunk(transfer, static_cast<int64_t>(offset),
                 object.subspan(offset, std::min(kChunkBytes, object.size() - offset)));
  }
  return open;
}

bool PlainLane::Read(v1::LaneMessage& message) {
  while (stream_->Read(&message)) {
    if (!message.control().has_acknowledgement()) return true;
  }
  return false;
}

absl::Status PlainLane::AwaitOutcome(uint64_t transfer) {
  v1::LaneMessage message;
  while (Read(message)) {
    const v1::Outcome& outcome = message.control().outcome();
    if (!message.control().has_outcome() || outcome.transfer() != transfer) continue;
    return {static_cast<absl::StatusCode>(outcome.code()), outcome.message()};
  }
  const absl::Status end = Finish();
  return end.ok() ? absl::UnavailableError("the lane ended before the outcome") : end;
}

absl::Status PlainLane::Push(const v1::PushHeader& header, std::span<const uint8_t> object) {
  const uint64_t transfer = ++transfers_;
  if (Offer(transfer, header)) Chunks(transfer, object);
  return AwaitOutcome(transfer);
}

absl::Status PlainLane::Pull(v1::Want want, std::vector<uint8_t>* object) {
  const uint64_t transfer = ++transfers_;
  want.set_transfer(transfer);
  Want(want);
  int64_t total = -1;
  v1::LaneMessage message;
  int64_t chunks = 0;
  while (total != static_cast<int64_t>(object->size()) && Read(message)) {
    if (message.control().has_outcome()) {
      const v1::Outcome& outcome = message.control().outcome();
      return {static_cast<absl::StatusCode>(outcome.code()), outcome.message()};
    }
    if (message.control().has_announcement()) {
      total = message.control().announcement().header().total_bytes();
    }
    if (!message.has_chunk()) continue;
    RETURN_IF_ERROR(AppendChunk(message.chunk(), *object));
    v1::LaneMessage handled;
    handled.mutable_control()->mutable_acknowledgement()->set_chunks(++chunks);
    Write(handled);
  }
  if (total == static_cast<int64_t>(object->size())) return absl::OkStatus();
  const absl::Status end = Finish();
  return end.ok() ? absl::UnavailableError("the lane ended before the object") : end;
}

absl::Status PlainLane::Finish() {
  if (finished_) return end_;
  finished_ = true;
  v1::LaneMessage message;
  while (stream_->Read(&message)) {
  }
  end_ = FromGrpcStatus(stream_->Finish());
  return end_;
}

}  // namespace causeway
