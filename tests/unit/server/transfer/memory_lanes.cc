#include "tests/unit/server/transfer/memory_lanes.h"

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/unit/common/transfer/owned_message.h"

namespace causeway::server {

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
    std::shared_ptr<Stream> stream;
    std::shared_ptr<LanePeer> peer;
    LanePeer::LanePtr lane;
    std::deque<std::string> arriving;
    bool reads = true;
    bool writes = false;
  };
  int number = 0;
  bool broken = false;
  bool frozen = false;
  std::array<End, 2> ends;
};

class MemoryLanes::Stream final : public WorkerLaneStream {
 public:
  Stream(std::weak_ptr<Wire> wire, size_t end) : wire_(std::move(wire)), end_(end) {}

  void Write(OutgoingMessage message) override {
    const auto wire = wire_.lock();
    if (wire == nullptr || wire->broken || wire->ends[end_].stream == nullptr) return;
    EXPECT_FALSE(wire->ends[end_].writes) << "one write at a time";
    wire->ends[end_].writes = true;
    wire->ends[1 - end_].arriving.push_back(Serialize(message));
  }
  void ReadOn() override {
    const auto wire = wire_.lock();
    if (wire != nullptr) wire->ends[end_].reads = true;
  }
  void End(const absl::Status& status) override {
    const auto wire = wire_.lock();
    if (wire != nullptr) Cut(wire, status);
  }
  absl::Status Admit(bool) override { return absl::OkStatus(); }
  bool greeted() override { return true; }

 private:
  const std::weak_ptr<Wire> wire_;
  const size_t end_;
};

MemoryLanes::~MemoryLanes() { CutAll(); }

void MemoryLanes::Dial(int number, const std::shared_ptr<LanePeer>& client) {
  auto wire = std::make_shared<Wire>();
  wire->number = number;
  wires_.push_back(wire);
  Wire::End& end = wire->ends[0];
  end.peer = client;
  end.stream = std::make_shared<Stream>(wire, 0);
  end.lane = client->Open(number, end.stream);
  client->Written(end.lane);
  if (registry_ == nullptr) Cut(wire, absl::UnavailableError("nobody listens"));
}

void MemoryLanes::Cut(const std::shared_ptr<Wire>& wire, const absl::Status& client_hears) {
  if (std::exchange(wire->broken, true)) return;
  for (const size_t end : {0, 1}) {
    Wire::End last = std::exchange(wire->ends[end], {});
    if (last.lane == nullptr) continue;
    last.peer->Close(last.lane,
                     client_hears.ok() ? absl::UnavailableError("the lane ended") : client_hears);
  }
}

void MemoryLanes::CutAll() {
  const std::vector<std::shared_ptr<Wire>> wires = wires_;
  for (const auto& wire : wires) Cut(wire, absl::UnavailableError("the connection broke"));
  wires_.clear();
}

void MemoryLanes::CutUnnoticed(int number) {
  for (const auto& wire : wires_) {
    if (wire->number != number || wire->ends[0].lane == nullptr) continue;
    const Wire::End client = std::exchange(wire->ends[0], {});
    client.peer->Close(client.lane, absl::UnavailableError("the connection broke"));
  }
}

void MemoryLanes::Freeze(int number, bool frozen) {
  for (const auto& wire : wires_) {
    if (wire->number == number) wire->frozen = frozen;
  }
}

int MemoryLanes::lanes() const {
  return static_cast<int>(std::ranges::count_if(wires_, [](const auto& w) { return !w->broken; }));
}

void MemoryLanes::Deliver(const std::shared_ptr<Wire>& wire, bool up) {
  Wire::End& end = wire->ends[up ? 1 : 0];
  std::string bytes = std::move(end.arriving.front());
  end.arriving.pop_front();
  v1::LaneMessage content;
  EXPECT_TRUE(content.ParseFromString(bytes));
  Message message = {.lane = wire->number, .up = up, .content = &content};
  ++messages_;
  on_message(message);
  if (message.cut) return Cut(wire, absl::UnavailableError("the connection broke"));
  if (!up || end.lane != nullptr) {
    const std::shared_ptr<LanePeer> peer = end.peer;
    const LanePeer::LanePtr lane = end.lane;
    end.reads = false;
    const bool reads = peer->Receive(lane, OwnedMessage(content.SerializeAsString()));
    if (reads && !wire->broken) end.reads = true;
    return;
  }
  const auto worker =
      registry_ == nullptr
          ? absl::StatusOr<std::shared_ptr<WorkerLanes>>(absl::UnavailableError("nobody listens"))
          : registry_->Join(content.control().greeting());
  if (!worker.ok()) return Cut(wire, worker.status());
  end.peer = *worker;
  end.stream = std::make_shared<Stream>(wire, 1);
  end.lane = (*worker)->Open(wire->number, end.stream);
  (*worker)->Written(end.lane);
}

bool MemoryLanes::Step() {
  std::vector<std::function<void()>> possible;
  std::erase_if(wires_, [](const auto& wire) { return wire->broken; });
  for (const auto& wire : wires_) {
    if (wire->frozen) continue;
    for (const size_t end : {0, 1}) {
      Wire::End& here = wire->ends[end];
      if (here.writes) {
        possible.push_back([wire, end] {
          Wire::End& writer = wire->ends[end];
          writer.writes = false;
          const std::shared_ptr<LanePeer> peer = writer.peer;
          peer->Written(LanePeer::LanePtr(writer.lane));
        });
      }
      const bool hears = end == 1 || here.lane != nullptr;
      if (!here.arriving.empty() && here.reads && hears) {
        possible.push_back([this, wire, end] { Deliver(wire, end == 1); });
      }
    }
  }
  if (!tasks_.empty()) {
    possible.push_back([this] {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    });
  }
  if (possible.empty()) return false;
  possible[RandomBits(seed_, 0, steps_++) % possible.size()]();
  return true;
}

}  // namespace causeway::server
