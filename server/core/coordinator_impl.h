// The implementation behind coordinator.h: one run, and the roles that act on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/core/coordinator.h"
#include "server/core/region_role.h"
#include "server/core/roles.h"
#include "server/core/run.h"

namespace causeway::server {

class CoordinatorImpl final : public Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<CoordinatorImpl>> Create(Options options);

  const v1::RunConfig& config() const override { return run_.options.config; }
  const FragmentPlan& plan() const override { return run_.plan; }
  const std::string& run_id() const override { return run_.options.run_id; }
  v1::DescribeResponse Describe() const override;
  Members& members() override { return members_; }
  Rounds& rounds() override { return rounds_; }
  Orders& orders() override { return orders_; }
  Region* region() override { return region_.get(); }
  void Tick() override;
  bool Maintain() override;
  v1::RunStatus GetStatus() const override;
  End Ended() const override;
  absl::Status Health() const override;
  absl::Status Shutdown() override;
  std::vector<float> PublishedParameters() const override;

 private:
  CoordinatorImpl(Options options, FragmentPlan plan, Tier tier,
                  std::unique_ptr<const OuterOptimizer> optimizer);

  // Makes the fragments, without values.
  absl::Status MakeFragments();
  v1::RunIdentity Identity() const;
  // Becomes what the store remembers.
  absl::Status Recover(const RecoveredRun& run, const InitialValues& initial);
  // Returns the snapshots of each fragment that were not whole.
  absl::StatusOr<std::vector<std::vector<FragmentRounds::Damaged>>> RecoverFragments(
      const RecoveredRun& run, const InitialValues& initial);
  // Those that lack most rounds first, until a second has passed. One that finds no room is passed
  // over. Returns whether others were due still.
  absl::StatusOr<bool> SaveDueSnapshots();
  absl::Status ForgetOldAnswers();
  // The run's totals, for summary.json:
  // {"run_id", "mode", "parameters", "fragments", "steps", "tokens", "rounds", "hash_checks",
  //  "hash_mismatches", "started_unix_s", "ended_unix_s", "bytes_up", "bytes_down",
  //  "state_bytes_down", "workers": {id: {"device", "steps", "tokens", "train_loss",
  //  "compute_seconds", "blocked_seconds", "bytes_up", "bytes_down", "state_bytes_down"}}}
  nlohmann::json Summary() const;

  Run run_;
  RoundsImpl rounds_;
  OrdersImpl orders_;
  MembersImpl members_;
  std::unique_ptr<RegionRole> region_;  // Null: this is the hub.
};

}  // namespace causeway::server
