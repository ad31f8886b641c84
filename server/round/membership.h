// Who is a member of the run, under which incarnation, until when.
//
// Pure bookkeeping: no lock, no time source, no I/O. Times are monotonic durations since an
// arbitrary start, passed in by the caller, who also serializes the calls.
//
// States of a worker id:
//
//   Join ---> JOINING --Ready--> ACTIVE --Leave--> LEFT
//                |                  |
//                +--- lease ends ---+--> LOST
//
// A member is live while it is JOINING or ACTIVE. Its lease is renewed by heartbeats; a broken
// stream alone does not end it. Every Join of an id gives a larger incarnation, and calls with an
// older one are fenced off (ABORTED).
//
//   - The same process (same nonce) that joins again takes its membership over as it was.
//   - Another process with the id of an attached member is refused (ALREADY_EXISTS). Once the
//     member's stream is broken it takes the membership over: as it was if it resumes from a
//     checkpoint, so that rounds go on waiting for what the checkpoint will send again; as JOINING
//     if it starts anew. The former process, should it still be there, is fenced off.
//   - A lost or left id may join again, starts as JOINING, and gets its data slot back if it is
//     still free.
//   - Who joins again and again, faster than any link breaks, is asked to wait
//     (RESOURCE_EXHAUSTED): every Join costs a write to the disk and a message to everybody.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/record.pb.h"

namespace causeway::server {

// How fast a member is, as its heartbeats say (session.proto).
struct Progress {
  absl::Duration reported_at = absl::ZeroDuration();      // Monotonic, when the heartbeat came.
  int64_t tokens = 0;                                     // Trained in this run.
  absl::Duration inner_step_time = absl::ZeroDuration();  // 0: not known yet.
  int64_t pace_milli = 1000;                              // Steps of the schedule, in 1/1000.
  double download_bytes_per_s = 0;                        // 0: not known yet.
  double tokens_per_second = 0;                           // While it trains.

  // Time of one step of the schedule. 0: unknown so far.
  absl::Duration step_time() const {
    return inner_step_time * 1000 / static_cast<double>(pace_milli);
  }
};

// Join limit per worker: a burst, then one per interval.
inline constexpr double kJoinsAtOnce = 20;
inline constexpr absl::Duration kJoinInterval = absl::Seconds(5);

struct Member {
  // Outlives the coordinator's process. Its heartbeat and the bytes are its account, which
  // nobody here looks at.
  v1::Member record;
  // An operator keeps its contributions out: no round waits for it.
  bool rejected = false;
  bool attached = true;  // False after its stream broke.
  absl::Duration lease_end;
  Progress progress;
  // Joins that were left to it after the last one. Each process of the coordinator counts anew.
  double joins_left = kJoinsAtOnce;
  absl::Duration joined_at = absl::ZeroDuration();

  bool live() const {
    return record.state() == v1::Member::JOINING || record.state() == v1::Member::ACTIVE;
  }
  bool region() const { return record.sites() > 0; }
  int workers() const { return region() ? record.sites() : 1; }
  bool had_slot(int slot) const {
    return std::ranges::find(record.had_slots(), slot) != record.had_slots().end();
  }
};

// Time in which a member finds out that the coordinator is back.
inline constexpr absl::Duration kReturnTime = absl::Seconds(30);

// Not thread-safe.
class Membership {
 public:
  // max_workers >= 1 is also the number of data slots; lease > 0.
  Membership(int max_workers, absl::Duration lease) : max_workers_(max_workers), lease_(lease) {}

  // `has_checkpoint`: the process resumes from one; otherwise it starts anew.
  // `sites`: as Member's. RESOURCE_EXHAUSTED if max_workers workers are live, or as above;
  // ALREADY_EXISTS as above.
  absl::StatusOr<Member> Join(const std::string& id, uint64_t process_nonce, bool has_checkpoint,
                              absl::Duration now, bool own_data = false, int sites = 0);

  // Brings back a member as a former coordinator knew it; call it before anything else. A live one
  // is not attached, and has a lease and kReturnTime to come back: it tries at intervals. Step and
  // slots are believed: the caller checks them.
  const Member& Restore(v1::Member record, absl::Duration now);

  // Errors of this and all that follow: PERMISSION_DENIED if the id never joined, ABORTED if the
  // incarnation is an older one, UNAVAILABLE if the member is lost, FAILED_PRECONDITION if it left.
  absl::Status Check(const std::string& id, uint64_t incarnation) const;
  // Makes a member active from `step` on. One that was ready before keeps its earlier step, because
  // its rounds under way expect it, unless it starts `anew` with the published state.
  absl::Status Ready(const std::string& id, uint64_t incarnation, int64_t step, bool anew);
  absl::Status Heartbeat(const std::string& id, uint64_t incarnation, int64_t step,
                         absl::Duration now, const Progress& progress = {});
  // Gives the live members the first data slots in the order of their ids, so that a run does not
  // depend on who joined first. Call it before anybody has trained.
  void NumberByName();
  // Makes slots first_slot .. first_slot + max_workers - 1, as a region's parent says.
  void SetFirstSlot(int first_slot) { first_slot_ = first_slot; }
  int first_slot() const { return first_slot_; }
  // Does nothing if the id never joined.
  void SetRejected(const std::string& id, bool rejected);
  // Notes an order. Does nothing if the id never joined.
  void OrderPace(const std::string& id, int64_t pace_milli, int64_t from_step);
  absl::Status Leave(const std::string& id, uint64_t incarnation);
  // Takes the membership away at once, as if the lease had ended.
  absl::Status Expel(const std::string& id, uint64_t incarnation);
  // An older incarnation is ignored.
  void Disconnected(const std::string& id, uint64_t incarnation);

  // Ends the leases with lease_end <= now; returns the ids, sorted.
  std::vector<std::string> Expire(absl::Duration now);

  // Every id that ever joined, sorted.
  const std::map<std::string, Member>& members() const { return members_; }
  const Member* Find(const std::string& id) const;
  // The record, for its account; null if the id never joined.
  v1::Member* Account(const std::string& id);
  std::vector<std::string> LiveIds() const;  // Sorted.
  // A region counts as its sites.
  int live() const;
  int active() const;
  // The largest step that any member reported, 0 before.
  int64_t largest_step() const { return largest_step_; }

 private:
  absl::StatusOr<Member*> FindLive(const std::string& id, uint64_t incarnation);
  // The first of `workers` consecutive slots that nobody has; RESOURCE_EXHAUSTED.
  absl::StatusOr<int> FreeSlot(const Member* former, int workers) const;
  static void HadSlots(Member& member);
  void Advance(Member& member, int64_t step);

  const int max_workers_;
  const absl::Duration lease_;
  int first_slot_ = 0;
  std::map<std::string, Member> members_;
  int64_t largest_step_ = 0;
};

}  // namespace causeway::server
