// A simulated run over several coordinators. The lead's end is the product's
// (server/shards/shard_hub.h); a shard's end does what server/shards_rpc/lead_link.h does over
// gRPC.
#ifndef CAUSEWAY_TESTS_SIMULATION_VIRTUAL_SHARDS_H_
#define CAUSEWAY_TESTS_SIMULATION_VIRTUAL_SHARDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "server/core/run_observer.h"
#include "server/core/shards.h"
#include "server/shards/shard_hub.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

class ShardStream;
class VirtualShard;

// One process of the lead.
class VirtualLead final : public server::Shards, public std::enable_shared_from_this<VirtualLead> {
 public:
  // `does_not_wait`: a bug, workers are told to train before the shards know of them.
  VirtualLead(World& world, server::ShardHub::Options options, bool does_not_wait)
      : world_(world), hub_(std::move(options)), does_not_wait_(does_not_wait) {}
  // Its coordinator serves.
  void Begin(server::Coordinator& coordinator) { hub_.Begin(coordinator); }
  // The process is gone.
  void Kill();

  absl::StatusOr<std::shared_ptr<ShardStream>> Attach(const v1::ShardHello& hello,
                                                      const std::shared_ptr<VirtualShard>& shard,
                                                      const Scenario& scenario);

  absl::Status Complete() const override { return hub_.Complete(); }
  std::vector<v1::Shard> Where() const override { return hub_.Where(); }
  void Tell(const v1::ShardRoster& roster, bool wait) override;
  void Call(int fragment, v1::ShardCall call,
            std::function<void(const absl::Status&)> done) override;

 private:
  friend class ShardStream;
  std::vector<std::shared_ptr<ShardStream>> Streams();

  World& world_;
  server::ShardHub hub_;
  const bool does_not_wait_;
  std::vector<std::weak_ptr<ShardStream>> streams_;
};

// A shard's stream: what is said arrives in order, or not at all once it is cut.
class ShardStream : public std::enable_shared_from_this<ShardStream> {
 public:
  ShardStream(World& world, const Scenario& scenario, std::shared_ptr<VirtualLead> lead,
              std::shared_ptr<VirtualShard> shard, std::shared_ptr<server::ShardHub::Line> line)
      : world_(world),
        scenario_(scenario),
        lead_(std::move(lead)),
        shard_(std::move(shard)),
        line_(std::move(line)) {}

  void Report(v1::ShardReport report);
  // The hub has something to say.
  void Order();
  // The lead waits until all of it is heard. Over a stream that carries nothing now, its patience
  // ends, and the shard has noticed the silence before.
  void Flush();
  // Nothing passes any more; both sides learn of it, each in its own time.
  void Sever();
  void Stall(absl::Duration time);
  void LeadIsGone();
  void ShardIsGone();

 private:
  absl::Duration Arrival(absl::Duration& last);
  bool TakeOne();
  bool ObeyAll();
  void EndAtLead();
  void EndAtShard();

  World& world_;
  const Scenario& scenario_;
  const std::weak_ptr<VirtualLead> lead_;
  const std::weak_ptr<VirtualShard> shard_;
  const std::shared_ptr<server::ShardHub::Line> line_;
  std::deque<v1::ShardReport> reports_;  // Under way.
  absl::Duration up_arrival_, down_arrival_, stalled_until_;
  bool severed_ = false;
  bool ended_at_lead_ = false;
  bool ended_at_shard_ = false;
};

// One process of a shard towards its lead.
class VirtualShard final : public server::RunObserver,
                           public std::enable_shared_from_this<VirtualShard> {
 public:
  struct Options {
    World* world = nullptr;
    const Scenario* scenario = nullptr;
    Auditor* auditor = nullptr;
    CoordinatorHost* own = nullptr;                      // The shard's coordinator.
    std::function<std::shared_ptr<VirtualLead>()> lead;  // Null while there is none.
    std::string name;
    std::vector<int> fragments;
    int number = 0;  // At the auditor.
    uint64_t nonce = 0;
  };
  explicit VirtualShard(Options options) : options_(std::move(options)) {}
  // The coordinator serves.
  void Start();
  // The process is gone.
  void Kill();
  // Null: it is not attached.
  ShardStream* stream() { return stream_.get(); }

  // Follows what comes of the stream.
  void Obey(const v1::ShardOrder& order);
  void OnStreamEnd(const ShardStream* stream);

  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const server::RoundRecord& round,
                   const std::vector<std::string>& missing) override;

 private:
  void Attach();
  void Queue(v1::ShardReport report, bool fragments_changed);
  // Runs `event` later if the process is still there.
  void After(absl::Duration delay, std::function<void()> event);

  const Options options_;
  bool dead_ = false;
  std::shared_ptr<ShardStream> stream_;
  std::map<int, std::string> sent_;  // By fragment: its status, serialized.
};

}  // namespace causeway::simulation

#endif  // CAUSEWAY_TESTS_SIMULATION_VIRTUAL_SHARDS_H_
