#include "common/transfer/lane_peer.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

// Packed chunks that one lane may have in memory before it reads on.
constexpr int kMaxUnpacking = 2;
// Messages that wait for a peer that does not read.
constexpr size_t kMaxToSay = 4096;

}  // namespace

struct LanePeer::Writing {
  OutgoingMessage message;
  std::shared_ptr<ChunkSource> source;  // Source of the chunk `piece`; null: a control message.
  ChunkSender::Piece piece;
};

LanePeer::LanePeer(Options options) : options_(std::move(options)), sender_(options_.sender) {}

LanePeer::~LanePeer() = default;

LanePeer::LanePtr LanePeer::Open(int number, std::shared_ptr<LaneStream> stream) {
  auto lane = std::make_shared<Lane>();
  std::vector<LanePtr> former;
  lane->number = number;
  lane->stream = std::move(stream);
  if (options_.greeting.has_value()) {
    v1::Greeting& greeting = *lane->to_say.emplace_back().mutable_greeting();
    greeting = *options_.greeting;
    greeting.set_lane(number);
  }
  {
    absl::MutexLock lock(&mutex_);
    std::ranges::copy_if(lanes_, std::back_inserter(former),
                         [number](const LanePtr& other) { return other->number == number; });
    lane->key = next_key_++;
    lanes_.push_back(lane);
    sender_.Open(lane->key, options_.clock->Monotonic());
  }
  // Its connection is gone, which has not been noticed here yet.
  for (const LanePtr& other : former) {
    const absl::Status again = absl::UnavailableError("the lane was opened again");
    other->stream->End(again);
    Close(other, again);
  }
  return lane;
}

void LanePeer::Close(const LanePtr& lane, const absl::Status& why) {
  int64_t left = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!lane->open) return;
    lane->open = false;
    lane->to_say.clear();
    std::erase(lanes_, lane);
    left = sender_.Close(lane->key);
  }
  OnClosed(lane->number, why, lane->spoke, left);
  PumpAll();
}

std::vector<LanePeer::LanePtr> LanePeer::AllLanes() const {
  absl::MutexLock lock(&mutex_);
  return lanes_;
}

void LanePeer::EndAll(const absl::Status& why) {
  for (const LanePtr& lane : AllLanes()) lane->stream->End(why);
}

bool LanePeer::sends() const {
  absl::MutexLock lock(&mutex_);
  return !lanes_.empty() && !outgoing_.empty();
}

bool LanePeer::Receive(const LanePtr& lane, const MessageBytes& message) {
  v1::LaneControl control;
  ChunkFields fields;
  const absl::StatusOr<MessageKind> kind = ParseMessage(message, control, fields);
  absl::Status status = kind.status();
  if (status.ok()) {
    switch (*kind) {
      case MessageKind::kChunk:
        return TakeChunk(lane, message, fields);
      case MessageKind::kHeader:
        status = TakeControl(lane, control);
        break;
      case MessageKind::kNeither:
        status = absl::InvalidArgumentError("a message of the lane is empty or of an unknown kind");
    }
  }
  if (!status.ok()) lane->stream->End(status);
  return status.ok();
}

absl::Status LanePeer::TakeControl(const LanePtr& lane, v1::LaneControl& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (!lane->open) return absl::CancelledError("the lane is over");
    lane->spoke = true;
  }
  switch (message.message_case()) {
    case v1::LaneControl::kAcknowledgement: {
      std::vector<uint64_t> delivered;
      {
        absl::MutexLock lock(&mutex_);
        ASSIGN_OR_RETURN(const std::vector<uint64_t> transfers,
                         sender_.Acknowledge(lane->key, message.acknowledgement().chunks(),
                                             options_.clock->Monotonic()));
        for (const uint64_t transfer : transfers) {
          if (sender_.delivered(transfer)) delivered.push_back(transfer);
        }
      }
      for (const uint64_t transfer : delivered) OnDelivered(transfer);
      return absl::OkStatus();
    }
    case v1::LaneControl::kDamage: {
      int times = 0;
      {
        absl::MutexLock lock(&mutex_);
        times = sender_.Damaged(lane->key, message.damage().transfer(), message.damage().chunk());
      }
      if (times >= kMaxDamaged) OnDamaged(message.damage().transfer());
      PumpAll();
      return absl::OkStatus();
    }
    default:
      return OnControl(lane, message);
  }
}

bool LanePeer::TakeChunk(const LanePtr& lane, const MessageBytes& message,
                         const ChunkFields& fields) {
  int64_t sequence = 0;
  std::shared_ptr<ChunkAssembly> object;
  {
    absl::MutexLock lock(&mutex_);
    if (!lane->open) return false;
    lane->spoke = true;
    sequence = lane->arrived++;
    const auto found = incoming_.find(fields.transfer);
    if (found != incoming_.end()) object = found->second;
    // It is over: the peer has been told, or will be.
    if (object == nullptr) Handled(*lane, sequence);
  }
  if (object == nullptr) {
    Pump(lane);
    return true;
  }
  const absl::StatusOr<int64_t> chunk = CheckChunk(fields, object->object_bytes());
  if (!chunk.ok()) {
    lane->stream->End(chunk.status());
    return false;
  }
  if (fields.unpacked_bytes == 0 && Place(lane, message, fields, sequence, *chunk, object)) {
    return true;
  }
  bool reads_on = false;
  {
    absl::MutexLock lock(&mutex_);
    reads_on = ++lane->unpacking < kMaxUnpacking;
    lane->paused = !reads_on;
  }
  PlaceLater(lane, message, fields, sequence, *chunk, object);
  return reads_on;
}

void LanePeer::PlaceLater(const LanePtr& lane, const MessageBytes& message,
                          const ChunkFields& fields, int64_t sequence, int64_t chunk,
                          const std::shared_ptr<ChunkAssembly>& object) {
  options_.run_long([self = shared_from_this(), lane, message, fields, sequence, chunk, object] {
    if (!self->Place(lane, message, fields, sequence, chunk, object)) {
      return self->PlaceLater(lane, message, fields, sequence, chunk, object);
    }
    bool resumes = false;
    {
      absl::MutexLock lock(&self->mutex_);
      --lane->unpacking;
      resumes = std::exchange(lane->paused, false);
    }
    if (resumes) lane->stream->ReadOn();
  });
}

bool LanePeer::Place(const LanePtr& lane, const MessageBytes& message, const ChunkFields& fields,
                     int64_t sequence, int64_t chunk,
                     const std::shared_ptr<ChunkAssembly>& object) {
  const std::optional<std::span<uint8_t>> place = object->PlaceOf(chunk);
  if (!place.has_value()) return false;
  const bool again = place->empty();
  bool damaged = false;
  bool whole = false;
  if (!again) {
    const absl::StatusOr<uint64_t> checksum = ReadChunk(message, fields, *place);
    damaged = !checksum.ok();
    whole = object->Placed(chunk, checksum);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (damaged) {
      v1::Damage& damage = *lane->to_say.emplace_back().mutable_damage();
      damage.set_transfer(fields.transfer);
      damage.set_chunk(chunk);
    }
    Handled(*lane, sequence);
  }
  OnChunk(fields.transfer, /*sent=*/false, static_cast<int64_t>(fields.data_bytes),
          again || damaged);
  if (whole) OnWhole(fields.transfer, object);
  Pump(lane);
  return true;
}

void LanePeer::Handled(Lane& lane, int64_t sequence) {
  lane.ahead.insert(sequence);
  while (!lane.ahead.empty() && *lane.ahead.begin() == lane.handled) {
    lane.ahead.erase(lane.ahead.begin());
    ++lane.handled;
  }
}

bool LanePeer::NextMessage(Lane& lane, Writing& next) {
  if (!lane.open || lane.writing) return false;
  if (!lane.to_say.empty()) {
    next.message.control = std::move(lane.to_say.front());
    lane.to_say.pop_front();
  } else if (lane.acknowledged < lane.handled) {
    lane.acknowledged = lane.handled;
    next.message.control.mutable_acknowledgement()->set_chunks(lane.handled);
  } else {
    const std::optional<ChunkSender::Piece> piece =
        sender_.Take(lane.key, options_.clock->Monotonic());
    if (!piece.has_value()) return false;
    const Outgoing& object = outgoing_.at(piece->transfer);
    if (piece->chunk == ChunkSender::kIntroduction) {
      next.message.control = object.introduction;
    } else {
      next.source = object.source;
      next.piece = *piece;
    }
  }
  lane.writing = true;
  return true;
}

std::optional<bool> LanePeer::BlockedNow() {
  const bool blocked = sender_.waiting() && std::ranges::none_of(lanes_, [](const LanePtr& lane) {
                         return lane->writing;
                       });
  if (std::exchange(blocked_, blocked) == blocked) return std::nullopt;
  return blocked;
}

void LanePeer::Pump(const LanePtr& lane) {
  Writing next;
  bool writes = false;
  std::optional<bool> blocked;
  {
    absl::MutexLock lock(&mutex_);
    writes = NextMessage(*lane, next);
    blocked = BlockedNow();
  }
  if (blocked.has_value()) OnBlocked(*blocked);
  if (!writes) return;
  if (next.source == nullptr) return lane->stream->Write(std::move(next.message));
  const auto send = [this, lane](const Writing& what) {
    OutgoingMessage message;
    message.chunk = what.source->Chunk(what.piece.chunk);
    message.chunk->fields.transfer = what.piece.transfer;
    const auto bytes = static_cast<int64_t>(message.chunk->data.size());
    if (bytes < what.piece.bytes) {
      absl::MutexLock lock(&mutex_);
      sender_.Refund(what.piece.bytes - bytes);
    }
    OnChunk(what.piece.transfer, /*sent=*/true, bytes, what.piece.again);
    lane->stream->Write(std::move(message));
  };
  if (!next.source->packs()) return send(next);
  options_.run_long([self = shared_from_this(), send,
                     what = std::make_shared<Writing>(std::move(next))] { send(*what); });
}

void LanePeer::PumpAll() {
  for (const LanePtr& lane : AllLanes()) Pump(lane);
}

void LanePeer::Written(const LanePtr& lane) {
  {
    absl::MutexLock lock(&mutex_);
    lane->writing = false;
  }
  Pump(lane);
}

void LanePeer::EndStalled(absl::Duration limit) {
  std::vector<LanePtr> stalled;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = options_.clock->Monotonic();
    for (const LanePtr& lane : lanes_) {
      if (sender_.Stalled(lane->key, now, limit)) stalled.push_back(lane);
    }
  }
  for (const LanePtr& lane : stalled) {
    lane->stream->End(absl::DeadlineExceededError(absl::StrCat(
        "nothing moved for too long: what the lane was given was not acknowledged for ",
        absl::FormatDuration(limit))));
  }
}

void LanePeer::Send(uint64_t transfer, std::shared_ptr<ChunkSource> source, int64_t due_step,
                    ChunkSet held, bool ask_first, v1::LaneControl introduction) {
  {
    absl::MutexLock lock(&mutex_);
    outgoing_[transfer] = {.source = std::move(source), .introduction = std::move(introduction)};
    sender_.Add(transfer, due_step, std::move(held), ask_first);
  }
  PumpAll();
}

void LanePeer::StopSending(uint64_t transfer) {
  // Outlives the lock: it may be the last reference to the object.
  Outgoing last;
  absl::MutexLock lock(&mutex_);
  sender_.Remove(transfer);
  const auto found = outgoing_.find(transfer);
  if (found == outgoing_.end()) return;
  last = std::move(found->second);
  outgoing_.erase(found);
}

absl::StatusOr<int64_t> LanePeer::Hold(uint64_t transfer, absl::string_view bits, uint64_t holder) {
  absl::StatusOr<int64_t> held;
  bool delivered = false;
  {
    absl::MutexLock lock(&mutex_);
    held = sender_.Hold(transfer, bits, holder);
    delivered = sender_.delivered(transfer);
  }
  if (delivered) OnDelivered(transfer);
  PumpAll();
  return held;
}

void LanePeer::Expect(uint64_t transfer, std::shared_ptr<ChunkAssembly> object) {
  absl::MutexLock lock(&mutex_);
  incoming_[transfer] = std::move(object);
}

void LanePeer::StopExpecting(uint64_t transfer) {
  std::shared_ptr<ChunkAssembly> last;
  absl::MutexLock lock(&mutex_);
  const auto found = incoming_.find(transfer);
  if (found == incoming_.end()) return;
  last = std::move(found->second);
  incoming_.erase(found);
}

bool LanePeer::Say(v1::LaneControl message, LanePtr lane) {
  bool too_many = false;
  {
    absl::MutexLock lock(&mutex_);
    if (lane == nullptr) {
      const auto burden = [](const LanePtr& one) {
        return std::pair(one->to_say.size(), one->writing);
      };
      const auto found = std::ranges::min_element(lanes_, {}, burden);
      if (found == lanes_.end()) return false;
      lane = *found;
    }
    if (!lane->open) return false;
    too_many = lane->to_say.size() >= kMaxToSay;
    if (!too_many) lane->to_say.push_back(std::move(message));
  }
  if (too_many) {
    lane->stream->End(
        absl::ResourceExhaustedError("more is asked over the lane than answers are read from it"));
    return false;
  }
  Pump(lane);
  return true;
}

void LanePeer::SayHolding(uint64_t transfer, const ChunkSet& held, uint64_t holder, LanePtr lane) {
  v1::LaneControl message;
  v1::Holding& holding = *message.mutable_holding();
  holding.set_transfer(transfer);
  holding.set_held_chunks(held.ToWire());
  holding.set_holder(holder);
  Say(std::move(message), std::move(lane));
}

void LanePeer::SayToAll(const v1::LaneControl& message) {
  for (const LanePtr& lane : AllLanes()) Say(message, lane);
}

absl::Duration LanePeer::UntilRate() const {
  absl::MutexLock lock(&mutex_);
  return sender_.Wait(options_.clock->Monotonic());
}

}  // namespace causeway
