// The coordinators of a simulated run whose fragments are dealt: the lead's hub and its shards.
#ifndef CAUSEWAY_TESTS_SIMULATION_SIMULATED_SHARDS_H_
#define CAUSEWAY_TESTS_SIMULATION_SIMULATED_SHARDS_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/params/fragment_plan.h"
#include "server/shards/deal.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/virtual_shards.h"
#include "tests/simulation/world.h"
#include "tests/unit/common/base/fault_disk.h"

namespace causeway::simulation {

class SimulatedShards {
 public:
  // All outlive this; `lead` may be constructed later.
  struct Options {
    World* world = nullptr;
    const Scenario* scenario = nullptr;
    const FragmentPlan* plan = nullptr;
    const std::vector<float>* initial = nullptr;  // In arena order.
    Auditor* auditor = nullptr;
    CoordinatorHost* lead = nullptr;
    CoordinatorHost::Decorator decorator;  // Wraps the shards' coordinators.
    bool leads_do_not_wait = false;        // The bug of that name.
  };
  explicit SimulatedShards(Options options);

  // Hooks of the coordinator with the sessions. They do nothing in a run without shards.
  HostHooks LeadHooks();
  void Start();
  void AfterEvent() const;

  // At the coordinator with the sessions.
  const std::vector<int>& own_fragments() const { return own_fragments_; }
  std::map<int, CoordinatorHost*> by_fragment() const;
  int size() const { return static_cast<int>(shards_.size()); }
  CoordinatorHost& host(int shard) const { return *shards_[static_cast<size_t>(shard)].host; }
  const std::string& name(int shard) const {
    return shards_[static_cast<size_t>(shard)].dealt.name;
  }
  // To the lead; null: there is none.
  ShardStream* stream(int shard) const;

 private:
  struct Shard {
    server::DealtShard dealt;
    std::unique_ptr<CoordinatorHost> host;
    std::shared_ptr<VirtualShard> process;
  };
  void Deal();
  void Add(const server::DealtShard& dealt);
  std::vector<float> InitialOf(const std::vector<int>& fragments) const;

  const Options options_;
  FaultDisk lead_disk_;
  std::vector<int> own_fragments_;
  std::vector<server::DealtShard> deal_;
  std::shared_ptr<VirtualLead> lead_;  // Null while it is dead.
  std::deque<Shard> shards_;
};

}  // namespace causeway::simulation

#endif  // CAUSEWAY_TESTS_SIMULATION_SIMULATED_SHARDS_H_
