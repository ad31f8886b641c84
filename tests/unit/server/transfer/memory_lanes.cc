#include "tests/unit/server/transfer/memory_lanes.h"

#include <array>
#include <deque>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/unit/common/transfer/owned_message.h"

namespace causeway::server {
namespace {

std::string Serialize(const OutgoingMessage& message) {
  v1::LaneMessage wire;
  if (!message.chunk.has_value()) {
    *wire.mutable_control() = message.control;
  } else {
    const OutgoingChunk& from = *message.chunk;
    v1::Chunk& chunk = *wire.mutable_chunk();
    chunk.set_transfer(from.fields.transfer);
    chunk.set_offset(from.fields.offset);
    chunk.set_checksum(from.fields.checksum);
    chunk.set_unpacked_bytes(from.fields.unpacked_bytes);
    chunk.set_data(from.data.data(), from.data.size());
  }
  return wire.SerializeAsString();
}

}  // namespace

LaneClient::Offered OfferedOf(const std::shared_ptr<std::vector<uint8_t>>& object, int fragment,
                              int64_t round, bool pack) {
  LaneClient::Offered offered;
  offered.header.set_fragment(fragment);
  offered.header.set_round(round);
  offered.header.set_incarnation(1);
  offered.header.set_total_bytes(std::ssize(*object));
  offered.header.set_object_hash(TreeHash(*object));
  offered.source = std::make_shared<ChunkSource>(
      ChunkSource::Options{.bytes = *object, .leaves = {}, .owner = object, .pack = pack});
  return offered;
}

// One lane: end 0 is the client's, end 1 the coordinator's.
struct MemoryLanes::Wire {
  struct End {
    std::shared_ptr<LanePeer> peer;
    LanePeer::LanePtr lane;
    std::deque<std::string> arriving;
    bool reads = true;
    bool writes = false;
  };
  explicit Wire(int lane) : number(lane) {}

  const int number;
  absl::Mutex mutex;
  bool broken ABSL_GUARDED_BY(mutex) = false;
  bool frozen ABSL_GUARDED_BY(mutex) = false;
  std::array<End, 2> ends ABSL_GUARDED_BY(mutex);
};

class MemoryLanes::Stream final : public WorkerLaneStream {
 public:
  Stream(MemoryLanes& lanes, std::weak_ptr<Wire> wire, size_t end)
      : lanes_(lanes), wire_(std::move(wire)), end_(end) {}

  void Write(OutgoingMessage message) override {
    const WirePtr wire = wire_.lock();
    if (wire == nullptr) return;
    std::string bytes = Serialize(message);
    {
      absl::MutexLock lock(&wire->mutex);
      if (wire->broken || wire->ends[end_].lane == nullptr) return;
      EXPECT_FALSE(wire->ends[end_].writes) << "one write at a time";
      wire->ends[end_].writes = true;
      wire->ends[1 - end_].arriving.push_back(std::move(bytes));
    }
    lanes_.run_([wire, end = end_] { Wrote(*wire, end); });
    lanes_.Look(wire, 1 - end_);
  }
  void ReadOn() override {
    const WirePtr wire = wire_.lock();
    if (wire == nullptr) return;
    {
      absl::MutexLock lock(&wire->mutex);
      wire->ends[end_].reads = true;
    }
    lanes_.Look(wire, end_);
  }
  void End(const absl::Status& status) override {
    if (const WirePtr wire = wire_.lock(); wire != nullptr) lanes_.Cut(*wire, status);
  }
  absl::Status Admit(bool) override { return absl::OkStatus(); }
  bool greeted() override { return true; }

 private:
  MemoryLanes& lanes_;
  const std::weak_ptr<Wire> wire_;
  const size_t end_;
};

std::vector<MemoryLanes::WirePtr> MemoryLanes::Wires() const {
  absl::MutexLock lock(&mutex_);
  return wires_;
}

void MemoryLanes::Dial(int number, const std::shared_ptr<LanePeer>& client) {
  const auto wire = std::make_shared<Wire>(number);
  {
    absl::MutexLock lock(&mutex_);
    wires_.push_back(wire);
  }
  const LanePeer::LanePtr lane = client->Open(number, std::make_shared<Stream>(*this, wire, 0));
  {
    absl::MutexLock lock(&wire->mutex);
    wire->ends[0].peer = client;
    wire->ends[0].lane = lane;
  }
  client->Written(lane);
}

void MemoryLanes::Wrote(Wire& wire, size_t end) {
  std::shared_ptr<LanePeer> peer;
  LanePeer::LanePtr lane;
  {
    absl::MutexLock lock(&wire.mutex);
    Wire::End& writer = wire.ends[end];
    if (wire.broken || wire.frozen || writer.lane == nullptr) return;
    writer.writes = false;
    peer = writer.peer;
    lane = writer.lane;
  }
  peer->Written(lane);
}

void MemoryLanes::Cut(Wire& wire, const absl::Status& why) {
  std::array<Wire::End, 2> last;
  {
    absl::MutexLock lock(&wire.mutex);
    if (std::exchange(wire.broken, true)) return;
    last = std::exchange(wire.ends, {});
  }
  for (const Wire::End& end : last) {
    if (end.lane == nullptr) continue;
    run_([peer = end.peer, lane = end.lane, why] { peer->Close(lane, why); });
  }
}

void MemoryLanes::CutAll() {
  for (const WirePtr& wire : Wires()) {
    Cut(*wire, absl::UnavailableError("the connection broke"));
  }
}

void MemoryLanes::CutUnnoticed(int number) {
  for (const WirePtr& wire : Wires()) {
    if (wire->number != number) continue;
    Wire::End client;
    {
      absl::MutexLock lock(&wire->mutex);
      client = std::exchange(wire->ends[0], {});
    }
    if (client.lane == nullptr) continue;
    client.peer->Close(client.lane, absl::UnavailableError("the connection broke"));
  }
}

void MemoryLanes::Freeze(int number) {
  for (const WirePtr& wire : Wires()) {
    absl::MutexLock lock(&wire->mutex);
    if (wire->number == number) wire->frozen = true;
  }
}

int MemoryLanes::lanes() const {
  return static_cast<int>(std::ranges::count_if(Wires(), [](const WirePtr& wire) {
    absl::MutexLock lock(&wire->mutex);
    return !wire->broken;
  }));
}

void MemoryLanes::Deliver(const WirePtr& wire, size_t at) {
  std::shared_ptr<LanePeer> peer;
  LanePeer::LanePtr lane;
  v1::LaneMessage content;
  {
    absl::MutexLock lock(&wire->mutex);
    Wire::End& end = wire->ends[at];
    const bool hears = at == 1 || end.lane != nullptr;
    if (wire->broken || wire->frozen || !end.reads || end.arriving.empty() || !hears) return;
    end.reads = false;
    EXPECT_TRUE(content.ParseFromString(end.arriving.front()));
    end.arriving.pop_front();
    peer = end.peer;
    lane = end.lane;
  }
  Message message = {.up = at == 1, .content = &content};
  ++messages_;
  on_message(message);
  if (message.cut) return Cut(*wire, absl::UnavailableError("the connection broke"));
  if (lane == nullptr) {
    Join(wire, content.control().greeting());
  } else if (!peer->Receive(lane, OwnedMessage(content.SerializeAsString()))) {
    return;
  }
  {
    absl::MutexLock lock(&wire->mutex);
    wire->ends[at].reads = true;
  }
  Look(wire, at);
}

void MemoryLanes::Join(const WirePtr& wire, const v1::Greeting& greeting) {
  const auto worker = registry_->Join(greeting);
  if (!worker.ok()) return Cut(*wire, worker.status());
  const LanePeer::LanePtr lane =
      (*worker)->Open(wire->number, std::make_shared<Stream>(*this, wire, 1));
  bool broken = false;
  {
    absl::MutexLock lock(&wire->mutex);
    broken = wire->broken;
    if (!broken) {
      wire->ends[1].peer = *worker;
      wire->ends[1].lane = lane;
    }
  }
  if (broken) return (*worker)->Close(lane, absl::UnavailableError("the connection broke"));
  (*worker)->Written(lane);
}

bool MemoryLanes::Step() {
  if (tasks_.empty()) return false;
  std::swap(tasks_[RandomBits(seed_, 0, steps_++) % tasks_.size()], tasks_.back());
  const std::function<void()> task = std::move(tasks_.back());
  tasks_.pop_back();
  task();
  return true;
}

}  // namespace causeway::server
