// One process of a region towards its parent: does what server/link does over gRPC. The region's
// coordinator is a real one.
#pragma once

#include "server/link/parent_link.h"
#include "tests/simulation/virtual_session.h"

namespace causeway::simulation {

class VirtualRegion final : public server::Parent, public VirtualSession {
 public:
  struct Options : VirtualSession::Options {
    CoordinatorHost* own = nullptr;  // The region's coordinator.
    int sites = 0;
    bool late_counts = false;  // A bug: takes a late delta for one that counts.
  };

  explicit VirtualRegion(Options options)
      : VirtualSession(options, {.welcome = absl::Seconds(10),
                                 .first_pause = absl::Milliseconds(200),
                                 .longest_pause = absl::Seconds(2)}),
        options_(std::move(options)) {}
  // The coordinator serves.
  void Start();

  void Carry(server::RegionDelta delta, Callback done) override;
  void Applied(int fragment, int64_t round, uint64_t published_hash) override;

 private:
  struct Flight {
    server::RegionDelta delta;
    Callback done;
    bool late = false;
  };

  void Complete(v1::Join& join) const override;
  v1::Heartbeat Progress() const override { return place_.heartbeat; }
  When may_call() const override { return connected() ? When::kNow : When::kLater; }
  void OnWelcome(const v1::Welcome& welcome, bool first) override;
  void OnTold(const v1::CoordinatorMessage& message) override;
  bool OnBroken(const absl::Status& status) override;
  void Poll();
  void Attach();
  void Detach();
  // The parent refuses it for good.
  void Fail(const absl::Status& status);
  void PushFlight(const std::shared_ptr<Flight>& flight);
  void PullFlight(const std::shared_ptr<Flight>& flight);
  void NotePublished(int fragment, int64_t round);

  const Options options_;
  bool failed_ = false;  // Its coordinator.
  server::RegionPlace place_;
  server::ObeyedOrders obeyed_;  // The product's rule.
  int unsent_ = 0;
};

}  // namespace causeway::simulation
