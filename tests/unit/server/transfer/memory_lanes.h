// Lanes between a LaneClient and a LaneRegistry whose streams are memory: one thread, no sockets,
// no time. Whatever happens between two ends is one event, and a seed says which one comes next, so
// a test can cut a lane at every message.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"
#include "common/transfer/lane_client.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

// The message's bytes on the wire.
std::string Serialize(const OutgoingMessage& message);

// An offer of incarnation 1's object of that fragment and round.
LaneClient::Offered OfferedOf(const std::shared_ptr<std::vector<uint8_t>>& object, int fragment,
                              int64_t round, bool pack);

class MemoryLanes {
 public:
  // The registry is the one to which lanes are opened from now on; null: nobody listens.
  void Serve(LaneRegistry* registry) { registry_ = registry; }
  explicit MemoryLanes(uint64_t seed) : seed_(seed) {}
  ~MemoryLanes();

  // For LaneClient::Options. Client and registry outlive their lanes.
  void Dial(int number, const std::shared_ptr<LanePeer>& client);
  Runner runner() {
    return [this](std::function<void()> task) { tasks_.push_back(std::move(task)); };
  }

  // Does one thing that can happen; false if there is none.
  bool Step();
  void Run() {
    while (Step()) {
    }
  }
  // Every message is delivered and written, and counted. May change it, or cut its lane.
  struct Message {
    int lane = 0;
    bool up = false;  // To the coordinator.
    v1::LaneMessage* content = nullptr;
    bool cut = false;  // Set it: the lane breaks, and the message is lost.
  };
  std::function<void(Message& message)> on_message = [](Message&) {};
  // Nothing crosses that lane until it is thawed or cut.
  void Freeze(int number, bool frozen);
  void CutAll();
  // That lane breaks, and only the client notices: what it had sent may still come, and what the
  // coordinator sends is lost.
  void CutUnnoticed(int number);
  int64_t messages() const { return messages_; }
  int lanes() const;

 private:
  struct Wire;
  class Stream;

  void Deliver(const std::shared_ptr<Wire>& wire, bool up);
  static void Cut(const std::shared_ptr<Wire>& wire, const absl::Status& client_hears);

  const uint64_t seed_;
  uint64_t steps_ = 0;
  int64_t messages_ = 0;
  LaneRegistry* registry_ = nullptr;
  std::vector<std::shared_ptr<Wire>> wires_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace causeway::server
