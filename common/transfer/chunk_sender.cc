#include "common/transfer/chunk_sender.h"

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

size_t Chunks(std::span<const uint8_t> bytes) {
  return static_cast<size_t>(ChunkSet(static_cast<int64_t>(bytes.size())).chunks());
}

}  // namespace

ChunkSource::ChunkSource(Options options)
    : options_(std::move(options)),
      checksums_(Chunks(options_.bytes)),
      packed_(options_.pack && options_.cache != nullptr ? Chunks(options_.bytes) : 0) {
  if (options_.leaves.size() != checksums_.size()) return;
  for (size_t i = 0; i < checksums_.size(); ++i) {
    checksums_[i].store(options_.leaves[i], std::memory_order_relaxed);
  }
}

ChunkSource::~ChunkSource() {
  absl::MutexLock lock(&mutex_);
  if (options_.cache != nullptr) options_.cache->Return(cached_bytes_);
}

std::span<const uint8_t> ChunkSource::Plain(int64_t chunk) const {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return options_.bytes.subspan(offset, std::min(kChunkBytes, options_.bytes.size() - offset));
}

std::shared_ptr<const ChunkSource::Packed> ChunkSource::Pack(int64_t chunk) {
  const auto index = static_cast<size_t>(chunk);
  {
    absl::MutexLock lock(&mutex_);
    if (!packed_.empty() && packed_[index] != nullptr) return packed_[index];
  }
  // Two lanes may pack the same chunk at once, which is rare and harmless.
  auto packed = std::make_shared<Packed>();
  if (EntropyPack(Plain(chunk), packed->bytes)) {
    packed->bytes.shrink_to_fit();
    packed->checksum = Checksum64(absl::string_view(packed->bytes));
  } else {
    packed->bytes = std::string();
  }
  const auto bytes = static_cast<int64_t>(packed->bytes.size());
  absl::MutexLock lock(&mutex_);
  if (!packed_.empty() && packed_[index] == nullptr && options_.cache->Take(bytes)) {
    cached_bytes_ += bytes;
    packed_[index] = packed;
  }
  return packed;
}

OutgoingChunk ChunkSource::Chunk(int64_t chunk) {
  OutgoingChunk result;
  result.fields.offset = ChunkSet::Offset(chunk);
  const std::span<const uint8_t> plain = Plain(chunk);
  if (options_.pack) {
    std::shared_ptr<const Packed> packed = Pack(chunk);
    if (!packed->bytes.empty()) {
      result.fields.checksum = packed->checksum;
      result.fields.unpacked_bytes = static_cast<int32_t>(plain.size());
      result.fields.data_bytes = packed->bytes.size();
      result.data = {reinterpret_cast<const uint8_t*>(packed->bytes.data()), packed->bytes.size()};
      result.owner = std::move(packed);
      return result;
    }
  }
  std::atomic<uint64_t>& checksum = checksums_[static_cast<size_t>(chunk)];
  result.fields.checksum = checksum.load(std::memory_order_relaxed);
  if (result.fields.checksum == 0) {
    result.fields.checksum = Checksum64(plain);
    checksum.store(result.fields.checksum, std::memory_order_relaxed);
  }
  result.fields.data_bytes = plain.size();
  result.data = plain;
  result.owner = options_.owner;
  return result;
}

namespace {

// A lane of which nothing comes while each of the others brings so many is not slow.
constexpr int64_t kChunksOfOthers = 4;

}  // namespace

ChunkSender::Object* ChunkSender::Find(uint64_t transfer) {
  const auto found = std::ranges::find(objects_, transfer, &Object::transfer);
  return found == objects_.end() ? nullptr : &*found;
}

void ChunkSender::LetWait(Object& object, int64_t chunk) {
  if (object.acknowledged.Holds(chunk) || !object.taken.Remove(chunk)) return;
  object.first = std::min(object.first, chunk);
}

void ChunkSender::Add(uint64_t transfer, int64_t due_step, ChunkSet held, bool ask_first) {
  Object object;
  object.transfer = transfer;
  object.due_step = due_step;
  object.sent = ChunkSet(held.object_bytes());
  object.taken = held;
  object.acknowledged = std::move(held);
  object.asks_first = ask_first;
  const auto key = [](const Object& one) { return std::pair(one.due_step, one.transfer); };
  const auto place = std::ranges::upper_bound(objects_, key(object), {}, key);
  objects_.insert(place, std::move(object));
}

void ChunkSender::Remove(uint64_t transfer) {
  std::erase_if(objects_, [transfer](const Object& one) { return one.transfer == transfer; });
}

absl::StatusOr<int64_t> ChunkSender::Hold(uint64_t transfer, absl::string_view bits,
                                          uint64_t holder) {
  Object* const object = Find(transfer);
  if (object == nullptr) return 0;
  ASSIGN_OR_RETURN(const ChunkSet held, ChunkSet::FromWire(object->taken.object_bytes(), bits));
  object->asks_first = false;
  const bool same_holder = std::exchange(object->holder, holder) == holder;
  for (int64_t chunk = 0; chunk < held.chunks(); ++chunk) {
    if (held.Holds(chunk)) {
      object->acknowledged.Add(chunk);
      object->taken.Add(chunk);
    } else if (!same_holder && object->acknowledged.Remove(chunk)) {
      LetWait(*object, chunk);
    }
  }
  return held.held_chunks();
}

bool ChunkSender::delivered(uint64_t transfer) const {
  const auto found = std::ranges::find(objects_, transfer, &Object::transfer);
  return found != objects_.end() && found->acknowledged.complete();
}

bool ChunkSender::waiting() const {
  return std::ranges::any_of(
      objects_, [](const Object& object) { return !object.asks_first && Waits(object); });
}

void ChunkSender::Open(LaneKey lane, absl::Duration now) { Moved(lanes_[lane], now); }

void ChunkSender::Moved(Lane& lane, absl::Duration now) {
  lane.moved = now;
  lane.all_then = all_acknowledged_;
  moved_ = now;
}

int64_t ChunkSender::Close(LaneKey lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return 0;
  int64_t left = 0;
  for (const Given& given : found->second.given) {
    Object* const object = given.counts ? Find(given.transfer) : nullptr;
    if (object == nullptr || object->acknowledged.Holds(given.chunk)) continue;
    LetWait(*object, given.chunk);
    // It may be held: the answer to the introduction says so.
    object->asks_first |= options_.repeats_introductions;
    ++left;
  }
  lanes_.erase(found);
  for (Object& object : objects_) {
    object.introduced.erase(lane);
    object.introduce |= options_.repeats_introductions;
  }
  return left;
}

std::optional<ChunkSender::Piece> ChunkSender::Take(LaneKey key, absl::Duration now) {
  const auto found = lanes_.find(key);
  if (found == lanes_.end()) return std::nullopt;
  Lane& lane = found->second;
  for (Object& object : objects_) {
    const bool waits = !object.asks_first && Waits(object);
    if (object.introduce || (waits && !object.introduced.contains(key))) {
      object.introduce = false;
      object.introduced.insert(key);
      return Piece{.transfer = object.transfer};
    }
    if (!waits) continue;
    if (rate_.Wait(now) > absl::ZeroDuration()) return std::nullopt;
    const int64_t chunk = object.taken.FirstMissing(object.first);
    object.first = chunk;
    object.taken.Add(chunk);
    if (lane.given.empty()) Moved(lane, now);
    lane.given.push_back({.transfer = object.transfer, .chunk = chunk});
    const int64_t bytes = object.taken.Size(chunk);
    rate_.Spend(bytes);
    return Piece{.transfer = object.transfer,
                 .chunk = chunk,
                 .bytes = bytes,
                 .again = !object.sent.Add(chunk)};
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<uint64_t>> ChunkSender::Acknowledge(LaneKey key, int64_t chunks,
                                                               absl::Duration now) {
  const auto found = lanes_.find(key);
  if (found == lanes_.end()) return std::vector<uint64_t>();
  Lane& lane = found->second;
  const int64_t given = lane.acknowledged + std::ssize(lane.given);
  if (chunks < lane.acknowledged || chunks > given) {
    return absl::InvalidArgumentError(absl::StrCat("a lane acknowledges ", chunks,
                                                   " chunks; expected ", lane.acknowledged, " .. ",
                                                   given, ", as many as it was given"));
  }
  std::vector<uint64_t> transfers;
  for (; lane.acknowledged < chunks; ++lane.acknowledged) {
    const Given done = lane.given.front();
    lane.given.pop_front();
    ++all_acknowledged_;
    Moved(lane, now);
    Object* const object = done.counts ? Find(done.transfer) : nullptr;
    if (object == nullptr || !object->acknowledged.Add(done.chunk)) continue;
    object->taken.Add(done.chunk);
    object->damaged = 0;
    transfers.push_back(done.transfer);
  }
  return transfers;
}

int ChunkSender::Damaged(LaneKey key, uint64_t transfer, int64_t chunk) {
  const auto found = lanes_.find(key);
  if (found == lanes_.end()) return 0;
  const auto given = std::ranges::find_if(found->second.given, [&](const Given& one) {
    return one.counts && one.transfer == transfer && one.chunk == chunk;
  });
  // A chunk that was not sent cannot have come damaged.
  if (given == found->second.given.end()) return 0;
  given->counts = false;
  Object* const object = Find(transfer);
  if (object == nullptr) return 0;
  LetWait(*object, chunk);
  return ++object->damaged;
}

bool ChunkSender::Stalled(LaneKey key, absl::Duration now, absl::Duration limit) const {
  const auto found = lanes_.find(key);
  if (found == lanes_.end() || found->second.given.empty()) return false;
  const Lane& lane = found->second;
  if (now - lane.moved <= limit) return false;
  const auto lanes = static_cast<int64_t>(lanes_.size());
  return all_acknowledged_ - lane.all_then >= kChunksOfOthers * lanes || now - moved_ > limit;
}

}  // namespace causeway
