#include "tests/simulation/simulated_shards.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::simulation {

SimulatedShards::SimulatedShards(Options options) : options_(std::move(options)) { Deal(); }

void SimulatedShards::Deal() {
  const Scenario& scenario = *options_.scenario;
  const FragmentPlan& plan = *options_.plan;
  if (scenario.shards == 0) {
    own_fragments_.resize(static_cast<size_t>(plan.fragments()));
    std::iota(own_fragments_.begin(), own_fragments_.end(), 0);
    return;
  }
  std::vector<int64_t> sizes;
  for (int i = 0; i < plan.fragments(); ++i) sizes.push_back(plan.range(i).size());
  const int own = scenario.lead_has_fragments ? 1 : 0;
  std::vector<std::vector<int>> dealt = server::DealFragments(sizes, scenario.shards + own);
  if (own > 0) own_fragments_ = dealt[0];
  for (int i = 0; i < scenario.shards; ++i) {
    deal_.push_back({.name = absl::StrCat("shard-", i),
                     .fragments = std::move(dealt[static_cast<size_t>(i + own)])});
  }
  lead_disk_.CreateFolders("/lead").IgnoreError();
}

std::vector<float> SimulatedShards::InitialOf(const std::vector<int>& fragments) const {
  std::vector<float> values;
  for (const int i : fragments) {
    const FragmentRange& range = options_.plan->range(i);
    values.insert(values.end(), options_.initial->begin() + range.begin,
                  options_.initial->begin() + range.begin + range.size());
  }
  return values;
}

HostHooks SimulatedShards::LeadHooks() {
  if (deal_.empty()) return {};
  HostHooks hooks;
  hooks.begin = [this](server::Coordinator::Options& coordinator) {
    server::ShardHub::Options hub;
    hub.file_system = &lead_disk_;
    hub.folder = "/lead";
    const auto known = server::ReadDeal(lead_disk_, "/lead");
    hub.deal = known.ok() && known->has_value() ? **known : deal_;
    hub.process_nonce = options_.world->Bits();
    lead_ =
        std::make_shared<VirtualLead>(*options_.world, std::move(hub), options_.leads_do_not_wait);
    coordinator.part = server::PartOptions{.fragments = own_fragments_, .shards = lead_.get()};
    coordinator.initial_parameters = InitialOf(own_fragments_);
  };
  hooks.started = [this] { lead_->Begin(*options_.lead->coordinator()); };
  hooks.died = [this] {
    lead_->Kill();
    // It may be what has called.
    options_.world->After(absl::ZeroDuration(), [gone = std::move(lead_)] {});
  };
  return hooks;
}

void SimulatedShards::Add(const server::DealtShard& dealt) {
  Shard& shard = shards_.emplace_back();
  shard.dealt = dealt;
  const int number = options_.auditor->AddShard(dealt.fragments);
  HostHooks hooks;
  hooks.has_sessions = false;
  hooks.begin = [this, &shard, number](server::Coordinator::Options& coordinator) {
    VirtualShard::Options process;
    process.world = options_.world;
    process.scenario = options_.scenario;
    process.auditor = options_.auditor;
    process.own = shard.host.get();
    process.lead = [this] { return options_.lead->coordinator() == nullptr ? nullptr : lead_; };
    process.name = shard.dealt.name;
    process.fragments = shard.dealt.fragments;
    process.number = number;
    process.nonce = options_.world->Bits();
    shard.process = std::make_shared<VirtualShard>(std::move(process));
    coordinator.part = server::PartOptions{.fragments = shard.dealt.fragments};
    coordinator.initial_parameters = InitialOf(shard.dealt.fragments);
    coordinator.observers = {shard.process.get()};
  };
  hooks.started = [&shard] { shard.process->Start(); };
  hooks.died = [this, &shard] {
    shard.process->Kill();
    // It may be what has called.
    options_.world->After(absl::ZeroDuration(), [gone = std::move(shard.process)] {});
  };
  shard.host = std::make_unique<CoordinatorHost>(*options_.world, *options_.scenario,
                                                 *options_.auditor, *options_.initial,
                                                 options_.decorator, dealt.name, std::move(hooks));
}

void SimulatedShards::Start() {
  for (const server::DealtShard& dealt : deal_) Add(dealt);
  for (const Shard& shard : shards_) shard.host->Start();
}

void SimulatedShards::AfterEvent() const {
  for (const Shard& shard : shards_) {
    options_.auditor->AfterEvent(shard.host->coordinator(), shard.dealt.fragments);
  }
}

std::map<int, CoordinatorHost*> SimulatedShards::by_fragment() const {
  std::map<int, CoordinatorHost*> hosts;
  for (const Shard& shard : shards_) {
    for (const int fragment : shard.dealt.fragments) hosts[fragment] = shard.host.get();
  }
  return hosts;
}

ShardStream* SimulatedShards::stream(int shard) const {
  const std::shared_ptr<VirtualShard>& process = shards_[static_cast<size_t>(shard)].process;
  return process == nullptr ? nullptr : process->stream();
}

}  // namespace causeway::simulation
