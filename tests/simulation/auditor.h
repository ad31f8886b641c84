// The model that a simulated run is held against. It keeps books of its own from what passes the
// borders (calls with their results, what the store was made to hold, what workers hold), computes
// every round once more, and names the first invariant that does not hold:
//
//   counted_once             an acknowledged contribution is in exactly one round, the bits of
//                            every published value are those of just these contributions
//   acknowledged_is_kept     what was acknowledged is in the store, and in its round
//   made_for_its_round       a delta is merged into the round it was made for, whose base is the
//                            version it was made against
//   fenced_off               no push of an older incarnation is accepted
//   late_only_if_closed      a push is called late only if its round was published without it
//   no_gaps                  a fragment's versions follow each other
//   quorum_kept              a round has its quorum, or nobody at all
//   published_never_changes  whoever is shown a version is shown the same bits, once durable
//   workers_hold_published   after merging version v a worker holds exactly its bits
//   nothing_trained_is_lost  what was trained was sent, or is carried (a late delta too)
//   incarnations_increase    strictly, per worker id
//   slots_are_distinct       of members that are live when they are told to start
//   no_wait_for_the_dead     a round with its quorum closes when lease or grace are over
//   broken_disk_stops        after an error of its store a coordinator says and does nothing more
//   recovers                 what the store holds makes a coordinator
//   tokens_are_bounded       a delta counts for no more than its worker can have trained
//   lies_are_refused         nobody is believed to be beyond a round that is not published
//   tiers_agree              a region publishes what its parent has published, bit for bit
//
// and, checked by the simulation at the end: reaches_the_end, ends_in_undisturbed_bits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/sync_schedule.h"
#include "server/core/coordinator.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

// A worker's debt of one fragment: deltas that it trained and that no round has. Goes into the
// worker's checkpoints.
struct DeltaLedger {
  std::vector<double> carried;  // Empty: the codec's error is not fed back.
};

class Auditor {
 public:
  // With a parent: of a region that has this id there.
  Auditor(World& world, const Scenario& scenario, const FragmentPlan& plan,
          std::span<const float> initial, Auditor* parent = nullptr, std::string region_id = "");

  // At the coordinator's border: calls that it has answered, as they were made.
  void Started();
  void Died();
  void Attached(const v1::Join& join, const v1::Welcome& welcome);
  // The worker was told to start, on that part of the data.
  void Draws(const std::string& worker, int slot);
  void Handled(const std::string& worker, uint64_t incarnation, const v1::WorkerMessage& message,
               const absl::Status& status);
  // The coordinator died or failed in a call that changes this worker's membership.
  void MembershipUnsure(const std::string& worker) { members_[worker].lease_end = world_.now(); }
  void PushServed(const v1::PushHeader& header, const absl::Status& status);
  // An answer, a state or an outcome that leaves the coordinator.
  void Shown(int fragment, int64_t version, uint64_t published_hash);
  void AnswerShown(const server::PullObject& answer);
  void StateShown(const server::PullObject& state);

  // Tells what is durable from now on.
  void Stored(const v1::Contribution& record, std::span<const uint8_t> object);
  // There was none for a delta: a region's round may have waited for it.
  void NoRoom(int index) { fragment(index).no_room = world_.now(); }
  void RoundStored(const v1::Round& record, std::span<const uint8_t> answer);

  // At a worker: `base - target` has been encoded into `object`, against version round - 1.
  void DeltaMade(const std::string& worker, int fragment, int64_t round,
                 std::span<const float> base, std::span<const float> target,
                 std::span<const uint8_t> object, std::span<const float> residual,
                 DeltaLedger& ledger);
  // The round's fate is known, `base` is what the delta was made against. Empty: sent nothing.
  void Landed(const std::string& worker, int fragment, int64_t round, std::span<const float> base,
              std::span<const uint8_t> object, std::span<const float> residual,
              DeltaLedger& ledger);
  void Merged(const std::string& worker, int fragment, int64_t version,
              std::span<const float> published);

  // After every event. `coordinator`: null while there is none.
  void AfterEvent(const server::Coordinator* coordinator);

  int64_t version(int fragment) const {
    return static_cast<int64_t>(fragments_[static_cast<size_t>(fragment)].hashes.size()) - 1;
  }
  // In arena order.
  std::vector<float> Published() const;

 private:
  struct Delta {
    uint64_t base_hash = 0;
    std::vector<uint8_t> object;
    int64_t tokens = -1;  // Trained by a region's sites; -1: another worker's, not known.
  };
  // A region's delta for its parent.
  struct Upward {
    uint64_t object_hash = 0;
    std::vector<uint8_t> object;
  };
  struct Arrival {
    uint64_t object_hash = 0;
    int64_t tokens = 0;
    absl::Duration time;
    bool acknowledged = false;
  };
  struct Fragment {
    std::vector<float> theta, published, momentum;
    std::vector<uint64_t> hashes;         // By version.
    std::vector<uint64_t> answer_hashes;  // By round, the first one unused.
    // By round: worker -> what the store holds of it.
    std::map<int64_t, std::map<std::string, Arrival>> arrivals;
    // (worker, object hash) -> rounds that the delta was made for.
    std::map<std::pair<std::string, uint64_t>, std::map<int64_t, Delta>> deltas;
    // A region has: what it closed, by round; what its encodings left out; what it trained for
    // rounds that closed without it.
    std::map<int64_t, Upward> upward;
    std::vector<float> residual;
    int64_t late_tokens = 0;
    absl::Duration no_room;  // When its disk was full last.
  };
  struct Member {
    uint64_t incarnation = 0;
    std::optional<int> slot;  // Once it was told to start: the first one.
    int sites = 1;
    bool left = false;
    absl::Duration lease_end;       // Alive at least until then, unless it left.
    absl::Duration last_lease_end;  // Alive at most until then.
  };

  Fragment& fragment(int index) { return fragments_[static_cast<size_t>(index)]; }
  std::string RoundName(int fragment, int64_t round) const;
  void CheckContributors(const v1::Round& record, const std::map<std::string, Arrival>& arrivals);
  // False if the books do not give a round.
  bool Merge(const v1::Round& record, const std::map<std::string, Arrival>& arrivals);
  void CheckCarried(const std::string& worker, int fragment, int64_t round,
                    std::span<const float> residual, const DeltaLedger& ledger);
  void CheckWait(int index);
  int SitesOf(const std::string& worker) const;

  // --- Of a region (auditor_region.cc) ---
  // The round is closed: that is its delta for the parent.
  void StoredForParent(const v1::Contribution& record, std::span<const uint8_t> object);
  void RoundOfRegionStored(const v1::Round& record, std::span<const uint8_t> answer);
  // The delta of these arrivals, which changes the residual; nothing if the books do not give one.
  std::optional<std::vector<uint8_t>> EncodeForParent(
      const v1::Round& record, const std::map<std::string, Arrival>& arrivals);
  bool ClosedHere(int index, int64_t round) const;

  World& world_;
  const Scenario& scenario_;
  const FragmentPlan& plan_;
  const Codec& up_;
  const Codec& down_;
  const absl::Duration lease_;
  Auditor* const parent_;
  const std::string region_id_;
  const int quorum_;  // A region has none of its own.
  const SyncSchedule schedule_;
  std::vector<Fragment> fragments_;
  std::map<std::string, Member> members_;
  absl::Duration started_;  // The present coordinator.
  absl::Duration died_;     // The one before.
};

}  // namespace causeway::simulation
