// Lanes between a LaneClient and a LaneRegistry whose streams are memory: no sockets, no time, and
// no library between them that the thread sanitizer does not see. Whatever happens between two ends
// is one task. On one thread a seed says which one comes next, so a test can cut a lane at every
// message; or a runner's threads do them, each end one message at a time, in order, as a stream
// does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/thread_pool.h"
#include "common/transfer/lane_client.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

// An offer of incarnation 1's object of that fragment and round.
LaneClient::Offered OfferedOf(const std::shared_ptr<std::vector<uint8_t>>& object, int fragment,
                              int64_t round, bool pack);

class MemoryLanes {
 public:
  explicit MemoryLanes(uint64_t seed)
      : run_([this](std::function<void()> task) { tasks_.push_back(std::move(task)); }),
        seed_(seed) {}
  explicit MemoryLanes(Runner run) : run_(std::move(run)) {}
  ~MemoryLanes() { CutAll(); }

  // The registry is the one to which lanes are opened from now on.
  void Serve(LaneRegistry* registry) { registry_ = registry; }
  // For LaneClient::Options. Client and registry outlive their lanes.
  void Dial(int number, const std::shared_ptr<LanePeer>& client);
  const Runner& runner() const { return run_; }

  // With a seed: does one thing that can happen; false if there is none.
  bool Step();
  void Run() {
    while (Step()) {
    }
  }
  // Every message is delivered and written, and counted. May change it, or cut its lane.
  struct Message {
    bool up = false;  // To the coordinator.
    v1::LaneMessage* content = nullptr;
    bool cut = false;  // Set it: the lane breaks, and the message is lost.
  };
  std::function<void(Message& message)> on_message = [](Message&) {};
  // Nothing crosses that lane any more until it is cut.
  void Freeze(int number);
  // The ends hear of it as tasks.
  void CutAll();
  // That lane breaks, and only the client notices: what it had sent may still come, and what the
  // coordinator sends is lost.
  void CutUnnoticed(int number);
  int64_t messages() const { return messages_; }
  int lanes() const;

 private:
  struct Wire;
  class Stream;
  using WirePtr = std::shared_ptr<Wire>;

  std::vector<WirePtr> Wires() const;
  // There may be something to deliver to that end.
  void Look(const WirePtr& wire, size_t end) {
    run_([this, wire, end] { Deliver(wire, end); });
  }
  void Deliver(const WirePtr& wire, size_t at);
  void Join(const WirePtr& wire, const v1::Greeting& greeting);
  static void Wrote(Wire& wire, size_t end);
  void Cut(Wire& wire, const absl::Status& why);

  const Runner run_;
  const uint64_t seed_ = 0;
  uint64_t steps_ = 0;
  std::vector<std::function<void()>> tasks_;  // With a seed.
  std::atomic<int64_t> messages_ = 0;
  LaneRegistry* registry_ = nullptr;
  mutable absl::Mutex mutex_;
  std::vector<WirePtr> wires_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
