// A region's membership in its parent's run: finds the parent, attaches once its sites are there,
// tells what the parent orders to its coordinator, brings deltas up and answers down.
//
// A region whose sites are all gone lets its lease end, so that nobody waits for it; it attaches
// again with the first that comes back. What was under way then goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/base/thread_pool.h"
#include "common/client/boarding.h"
#include "common/client/grpc_exchange.h"
#include "common/client/reach.h"
#include "common/client/session.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/telemetry/event_log.h"
#include "server/core/coordinator.h"
#include "server/link/coordinator_link.h"

namespace causeway::server {

struct ParentOptions {
  std::string address;  // HOST:PORT, or several with commas between.
  SecurityOptions security;
  std::string region_id;
  int sites = 0;
  std::string congestion_control;
  absl::Duration connect_timeout = absl::Seconds(30);
  std::shared_ptr<IdentityKeeper> keeper;  // Of a region that boarded by an invitation; or null.
};

// Asks it for its run, and refuses one that this region cannot be part of, naming the flag.
absl::StatusOr<ReachedRun> ReachParent(const ParentOptions& options);

// How far a region has done what its parent orders.
class ObeyedOrders {
 public:
  // A former process may have been told to pause, and the parent has gone on since.
  void Begin(const Coordinator& own) { paused_ = own.GetStatus().paused(); }
  void Attached() { begun_slot_ = -1; }
  absl::Status Obey(Coordinator& own, const Session::Orders& orders);

 private:
  bool paused_ = false;
  bool drained_ = false;
  int64_t stop_step_ = 0;
  int begun_slot_ = -1;
};

// Thread-safe.
class ParentLink final : public CoordinatorLink, public Parent {
 public:
  // `plan`: of the parent's run.
  ParentLink(ParentOptions options, ReachedRun parent, FragmentPlan plan);
  ~ParentLink() override;

  const ParentOptions& options() const { return options_; }
  const ReachedRun& parent() const { return parent_; }
  const FragmentPlan& plan() const { return plan_; }
  // Makes a coordinator the region's.
  RegionOptions ForCoordinator();

  // From now on that coordinator is the region's. It and the log outlive Stop.
  absl::Status Start(Coordinator& coordinator, EventLog* events);
  void Carry(RegionDelta delta, Callback done) override;
  void Applied(int fragment, int64_t round, uint64_t published_hash) override;
  // Waits, up to `patience`, until the parent has what was closed, and leaves: with a word if all
  // sites have left, otherwise it may come back. Carries that have no answer end with CANCELLED.
  void Stop(absl::Duration patience);

 private:
  // Destroyed from the last to the first.
  struct Connection {
    std::unique_ptr<Session> session;
    std::unique_ptr<Link> link;
    std::unique_ptr<GrpcExchange> exchange;
  };

  absl::Status Follow() override;
  bool Passes(const absl::Status& error) const override { return parent_.security.Passes(error); }
  std::string Line(const absl::Status& why) override;
  void Ended(const absl::Status& why) override { region_->Fail(why); }
  absl::Status Attach(const RegionPlace& place);
  absl::Status Obey(const RegionPlace& place);
  static void Report(const RegionPlace& place, const Connection& connection);
  void Detach();
  void Leave(Connection& left);
  std::shared_ptr<Connection> connection() const;
  // Null once it stops.
  std::shared_ptr<Connection> AwaitConnection();
  void Fly(const std::shared_ptr<RegionDelta>& delta, const Callback& done);

  const ParentOptions options_;
  const ReachedRun parent_;
  const FragmentPlan plan_;
  WorkQueue queue_;
  EventLog* events_ = NullEventLog();  // Set by Start, as the next two.
  Coordinator* coordinator_ = nullptr;
  Region* region_ = nullptr;

  mutable absl::Mutex mutex_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int unsent_ ABSL_GUARDED_BY(mutex_) = 0;  // Deltas that the parent has not acknowledged.
  // The following thread's.
  bool was_attached_ = false;
  ObeyedOrders obeyed_;
};

}  // namespace causeway::server
