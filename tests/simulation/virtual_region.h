// One process of a region towards its parent: does what server/link does over gRPC. The region's
// coordinator is a real one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/params/fragment_plan.h"
#include "server/core/coordinator.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

class VirtualRegion final : public server::Parent,
                            public StreamClient,
                            public std::enable_shared_from_this<VirtualRegion> {
 public:
  struct Options {
    World* world = nullptr;
    const Scenario* scenario = nullptr;
    const FragmentPlan* plan = nullptr;
    Auditor* parent_auditor = nullptr;
    CoordinatorHost* parent = nullptr;
    CoordinatorHost* own = nullptr;  // The region's coordinator.
    std::string id;
    int sites = 0;
    uint64_t config_hash = 0;
    uint64_t nonce = 0;
    bool late_counts = false;  // A bug: takes a late delta for one that counts.
  };

  explicit VirtualRegion(Options options) : options_(std::move(options)) {}
  // The coordinator serves.
  void Start();
  // The process is gone.
  void Kill();
  Stream* stream() { return stream_.get(); }
  std::string DescribeState() const;

  void Carry(server::RegionDelta delta, Callback done) override;
  void Applied(int fragment, int64_t round, uint64_t published_hash) override;
  void OnMessage(int64_t stream, const v1::CoordinatorMessage& message) override;
  void OnStreamEnd(int64_t stream, const absl::Status& status) override;

 private:
  struct Flight {
    server::RegionDelta delta;
    Callback done;
    bool pushed = false;
    bool late = false;
  };
  struct Orders {
    bool started = false;
    int data_slot = -1;
    std::vector<int64_t> next_draws;
    bool paused = false;
    bool drain = false;
    int64_t stop_at_step = 0;
  };

  void Poll();
  void Attach();
  void OpenStream();
  void Beat(int64_t beat);
  void Obey();
  void Detach();
  // The parent refuses it for good.
  void Fail(const absl::Status& status);
  void Send(v1::WorkerMessage message);
  void Push(const std::shared_ptr<Flight>& flight, int attempt);
  void Pull(const std::shared_ptr<Flight>& flight, int attempt);
  void NotePushed(const std::shared_ptr<Flight>& flight);
  void NotePublished(int fragment, int64_t round);
  // Runs `event` later if the process is still there.
  void After(absl::Duration delay, std::function<void()> event);
  bool connected() const { return stream_ != nullptr && stream_welcomed_; }
  World& world() const { return *options_.world; }

  const Options options_;
  bool dead_ = false;
  bool failed_ = false;    // Its coordinator.
  bool member_ = false;    // From attaching to leaving, whatever its stream goes through.
  bool welcomed_ = false;  // As that member.
  bool stream_welcomed_ = false;
  std::shared_ptr<Stream> stream_;
  uint64_t incarnation_ = 0;
  int64_t epoch_ = 0;
  int tries_ = 0;
  int64_t beats_ = 0;
  int64_t ready_step_ = 0;
  std::deque<v1::WorkerMessage> outbox_;
  server::RegionPlace place_;
  Orders orders_;
  int begun_slot_ = -1;
  bool paused_ = false;
  bool drained_ = false;
  int64_t stop_step_ = 0;
  int unsent_ = 0;
};

}  // namespace causeway::simulation
