// Who has contributed to a fragment's open round and to its latest ones, and whose contributions
// are held and not merged: out of line, impossible, or kept out by an operator's order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/record.pb.h"
#include "common/base/byte_buffer.h"
#include "server/core/delta_check.h"
#include "server/round/plausibility.h"
#include "server/round/round_policy.h"

namespace causeway::server {

// Why a contribution is held and not merged.
enum class Quarantine { kNone, kOutlier, kAboveCap, kOverflow, kRejected };

// The outcome of a contribution.
struct AddedContribution {
  v1::PushResponse response = {};  // A duplicate was held already, and has nothing of what follows.
  Quarantine quarantine = Quarantine::kNone;
  double norm = 0;
  // The outlier guard judged it by this; 0: it has too few norms yet, or is off.
  double median = 0;
  double cap = 0;             // The largest norm that the fragment takes; 0: any.
  bool may_overflow = false;  // The merge says whether it is quarantined.
  bool quarantined() const { return quarantine != Quarantine::kNone; }
  // The record keeps this. What an operator keeps out is no part of it: he may let it in again.
  bool out_of_line() const { return quarantined() && quarantine != Quarantine::kRejected; }
};

// A contribution that was accepted, and found to be impossible when its round closed.
struct LateQuarantine {
  std::string worker_id;
  double norm = 0;
  std::string reason;  // The merge's error.
};

// Orders in force: worker -> rounds, and 0 - n for every round from n on.
using Rejections = std::map<std::string, std::set<int64_t>>;

// Not thread-safe. Rounds count from 1; the one after the last that Publish knows is open.
class RoundLedger {
 public:
  struct Held {
    v1::Contribution record;
    SharedBytes object;
    bool accepted = false;  // False while it is verified and stored.
    absl::Duration arrived;
    bool rejected = false;
    bool kept_out() const { return record.quarantined() || rejected; }
  };
  // By worker id: the summation order. Copies share the objects' bytes.
  using Contributions = std::map<std::string, Held>;
  // Callbacks of pushes that have begun, by worker.
  using Begun = std::map<std::string, RoundClosed>;

  explicit RoundLedger(int fragment) : fragment_(fragment) {}

  // After a restart: becomes what a former process knew. All as in FragmentRounds::History. EndAdd
  // takes each contribution to the open round.
  void Restore(std::span<const v1::Round> rounds, std::span<const v1::Contribution> contributions,
               Rejections rejections);

  int64_t open() const { return open_; }
  bool closed() const { return closed_; }  // The open round is being merged.
  const Contributions& contributions() const { return contributions_; }
  const Rejections& rejections() const { return rejections_; }
  const NormHistory& norms() const { return norms_; }
  // Fills in who has contributed to the open round, and when.
  void Describe(OpenRound& round) const;

  // What became of this very object if it is held, nothing if it may be sent, else the error that
  // its push ends with (exchange.proto).
  absl::StatusOr<std::optional<v1::PushResponse>> Find(const v1::PushHeader& header) const;
  // `closed` is to be called once the open round has closed. The worker's next one takes its place.
  void NoteBegun(const std::string& worker_id, RoundClosed closed);
  // Another stream adds an object of the worker at this moment.
  bool IsAdding(const std::string& worker_id) const;
  // Takes its place while it is verified and stored; EndAdd or CancelAdd follows.
  void BeginAdd(const v1::Contribution& record);
  v1::PushResponse EndAdd(v1::Contribution record, SharedBytes object, absl::Duration now);
  void CancelAdd(const std::string& worker_id) { contributions_.erase(worker_id); }

  // Whether an order keeps that contribution out.
  bool IsRejected(const std::string& worker_id, int64_t round) const;
  // FragmentRounds::Reject.
  absl::Status Reject(const std::string& worker_id, int64_t round, bool undo);

  // The open round takes no more. False: one is still being added, whose end is to be waited for.
  bool Close();
  // Nobody has heard of it: it is open again, for these, too.
  void Reopen(Begun begun);
  Begun TakeBegun() { return std::exchange(begun_, {}); }
  // The closed round is published, without those that are none of its contributors. The next one is
  // open.
  void Publish(const v1::Round& record);

 private:
  v1::PushResponse Accepted(const v1::PushHeader& header, bool duplicate) const;
  // Keeps what is asked for of a published round, given its contributions.
  void Remember(const v1::Round& round, std::span<const v1::Contribution> records);

  const int fragment_;
  int64_t open_ = 1;
  bool closed_ = false;
  Contributions contributions_;
  Begun begun_;
  // Who was in the rounds published last: worker id -> object hash.
  std::map<int64_t, std::map<std::string, uint64_t>> past_;
  NormHistory norms_;
  Rejections rejections_;
  // Rounds, as far back as past_, and workers.
  std::set<std::pair<int64_t, std::string>> quarantined_;
};

}  // namespace causeway::server
