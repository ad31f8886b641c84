// A coordinator between its sites and its parent: what its fragments close goes up, and what the
// parent orders is done.
#ifndef CAUSEWAY_SERVER_CORE_REGION_ROLE_H_
#define CAUSEWAY_SERVER_CORE_REGION_ROLE_H_

#include <cstdint>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/parent.h"
#include "server/core/rounds.h"
#include "server/core/run.h"

namespace causeway::server {

class RegionRole final : public Region, public Upward {
 public:
  RegionRole(Run& run, RoundsImpl& rounds, Parent& parent)
      : run_(run), rounds_(rounds), parent_(parent) {}

  RegionPlace Place() const override;
  absl::Status Begin(int first_slot, const std::vector<int64_t>& next_draws) override;
  absl::Status NoteParentPublished(int fragment, int64_t round) override;
  absl::Status Stop(int64_t step) override;
  void Fail(const absl::Status& why) override;
  void CarryUp(FragmentRounds& fragment) override;

 private:
  void OnParentAnswer(FragmentRounds& fragment, absl::StatusOr<ParentAnswer> answer);

  Run& run_;
  RoundsImpl& rounds_;
  Parent& parent_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_REGION_ROLE_H_
