// A run over several coordinators, as the command line has it: `serve --shards=lead,a,b` is the
// lead, `serve --lead=HOST:PORT --shard=a` a shard.
#ifndef CAUSEWAY_SERVER_SHARDED_RUN_H_
#define CAUSEWAY_SERVER_SHARDED_RUN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/shards.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "common/telemetry/event_log.h"
#include "server/access/access.h"
#include "server/core/coordinator.h"
#include "server/core/shards.h"
#include "server/given_run.h"
#include "server/initial_parameters.h"
#include "server/shards/shard_hub.h"
#include "server/shards_rpc/lead_link.h"
#include "server/store/store.h"

namespace causeway::server {

struct ShardFlags {
  std::vector<std::string> names;  // A lead's --shards; empty: of a run that goes on.
  std::string lead;                // A shard's.
  std::string name;
  std::string advertise;  // Empty: as it listens.
  ChannelSecurity security;
};

// Nothing where neither is asked for. INVALID_ARGUMENT for flags that do not fit together.
absl::StatusOr<std::optional<ShardFlags>> ShardFlagsFromFlags(const GivenRun& given,
                                                              const std::string& listen,
                                                              bool is_region);

class ShardedRun {
 public:
  // Null: the run has no shards. A shard asks its lead what it is to have, unless it has heard that
  // the run has reached its end, and nobody leads any more; a lead deals the
  // fragments of a run that begins, or finds how they were dealt. `config`: a lead's. A shard waits
  // for a run that awaits its model, until `wait` says that the process is to end (CANCELLED).
  static absl::StatusOr<std::unique_ptr<ShardedRun>> OpenShard(
      FileSystem& file_system, const ShardFlags& flags, const std::string& run_dir,
      const std::optional<RecoveredRun>& recovered, const LeadLink::Waiter& wait);
  // `awaits_model`: the fragments are dealt by TakeModel.
  static absl::StatusOr<std::unique_ptr<ShardedRun>> OpenLead(
      FileSystem& file_system, const std::optional<ShardFlags>& flags, const std::string& run_dir,
      const v1::RunConfig& config, const std::optional<RecoveredRun>& recovered, bool awaits_model);

  // A shard's run, as the lead has it.
  const v1::ShardWelcome& welcome() const { return welcome_; }
  PartOptions part();
  // A lead's whose model has come: deals its fragments. INVALID_ARGUMENT for more names than there
  // are fragments.
  absl::Status TakeModel(const v1::RunConfig& config);
  // A shard's that begins where its lead was given values (welcome): fetches and keeps those of its
  // fragments, and returns them. CANCELLED if `wait` says that the process is to end.
  absl::StatusOr<std::vector<float>> FetchInitial(const FragmentPlan& plan,
                                                  const LeadLink::Waiter& wait);
  // Nobody attaches until it is OK: what the folder holds is replicated. Before SetEvents.
  void SetMayTell(std::function<absl::Status()> may_tell);
  // Whoever is to see what happens; the result outlives `events`' use.
  EventLog* SetEvents(EventLog* events);
  // Null: none.
  RunObserver* observer() { return link_.get(); }
  // A lead's; null at a shard.
  std::unique_ptr<grpc::Service> MakeService(Access& access);
  // Before the server starts; and once it listens there.
  void Begin(Coordinator& coordinator);
  absl::Status Start(Coordinator& coordinator, const std::string& bound);
  // Not OK once the lead has refused this shard.
  absl::Status status() const;
  // The run is finished, every shard knows it, and each knows that the lead has noted that.
  bool MayEnd() const { return hub_ != nullptr ? hub_->AllHaveEnded() : link_->MayEnd(); }
  // Before the server stops.
  void Stop();

 private:
  ShardedRun() = default;

  void NoteDeal(const std::vector<DealtShard>& deal);
  // A lead's: the values that the run was given.
  absl::StatusOr<const KeptParameters*> Kept();

  FileSystem* file_system_ = nullptr;
  Coordinator* coordinator_ = nullptr;
  std::string run_dir_;
  std::vector<std::string> names_;  // A lead's --shards.
  std::vector<int> fragments_;
  absl::Mutex kept_mutex_;
  std::optional<KeptParameters> kept_ ABSL_GUARDED_BY(kept_mutex_);  // Once a shard has asked.
  std::unique_ptr<ShardHub> hub_;                                    // A lead's.
  ShardHub::Options hub_options_;                                    // Until the hub is made.
  std::unique_ptr<LeadLink> link_;                                   // A shard's.
  v1::ShardWelcome welcome_;
  std::optional<v1::ShardRoster> end_;  // Heard by a former process of this shard.
  v1::ShardHello hello_;
  std::string advertise_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDED_RUN_H_
