// The part of a run that outlives the coordinator's process.
//
// The store is told, in this order: that the run begins; every contribution before it is
// acknowledged; every round after its merge and before it is published; now and then the state of
// one fragment; members and flags whenever they change. When a call returns OK the fact is as
// durable as the implementation promises: MemoryStore outlives its coordinator but not its process,
// RunDirectoryStore outlives kill -9 and power loss.
//
// After a death, Recover says what was told, and the state of a fragment follows from its last
// snapshot by folding in the deltas of the rounds since: theta = fold(merge, snapshot, deltas). The
// merge is deterministic, so the recorded hashes of every round must come out again.
//
// An error of a Save is final: what is on the disk is then unknown until the store is opened and
// recovered again. Callers stop; nobody retries (a failed fsync cannot be repeated).
//
// Fragments are independent of each other: nothing here assumes that one store holds all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/record.pb.h"
#include "common/base/byte_buffer.h"
#include "nlohmann/json.hpp"

namespace causeway::server {

// The state of one fragment at a version, as the coordinator holds it.
template <typename Array>
struct SavedFragment {
  int fragment = 0;
  int64_t version = 0;
  uint64_t published_hash = 0;
  Array theta = {};
  Array published = {};
  std::vector<std::pair<std::string, Array>> optimizer = {};  // By name: "momentum".
};
using FragmentView = SavedFragment<std::span<const float>>;  // Valid for the call.
using FragmentSnapshot = SavedFragment<FloatBuffer>;

// Everything small that the store was told. The Read methods read what is large.
struct RecoveredRun {
  v1::RunIdentity identity;
  v1::State state;
  std::vector<v1::Member> members;              // Sorted by id.
  std::vector<v1::Round> rounds;                // Sorted by fragment, then round; no gaps.
  std::vector<v1::Contribution> contributions;  // Sorted by fragment, round, worker id.
  std::vector<v1::Snapshot> snapshots;          // Sorted by fragment, then version.
};

// Thread-safe: calls may overlap. Within a fragment, the contributions to one round may overlap
// each other; the round is saved after all of them, and before those to the next round.
//
// Errors: RESOURCE_EXHAUSTED (the disk is full: nothing was kept, and SaveContribution may be tried
// again later), DATA_LOSS (what is on the disk is damaged, with file and offset), CANCELLED (of
// SaveContribution: it is kept here, but this coordinator leads no more, so nobody is told),
// anything else as the file system gave it.
class Store {
 public:
  virtual ~Store() = default;

  // Call it once, before anything else. Returns nothing if no run has begun here; then BeginRun is
  // next.
  virtual absl::StatusOr<std::optional<RecoveredRun>> Recover() = 0;
  virtual absl::Status BeginRun(const v1::RunIdentity& identity) = 0;

  // Returns RESOURCE_EXHAUSTED if there is no room now for a contribution of so many bytes.
  virtual absl::Status CheckRoom(uint64_t /*bytes*/) { return absl::OkStatus(); }
  // Call it before the contribution is acknowledged. `object` is the encoded delta. Where its blob
  // is, and the number of the commit, are the store's to fill in, as of all records.
  virtual absl::Status SaveContribution(const v1::Contribution& record,
                                        std::span<const uint8_t> object) = 0;
  // Call it before the round is published. `answer` is what workers will pull.
  virtual absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) = 0;
  // Saves a version that SaveRound has been told of, or 0. Deltas that only older states need are
  // then dropped, or kept, as the implementation was configured.
  virtual absl::Status SaveSnapshot(const FragmentView& fragment) = 0;
  // Drops a snapshot that turned out to be damaged: nothing begins from it any more.
  virtual absl::Status DropSnapshot(int fragment, int64_t version) = 0;
  // Lets a coordinator take the run over. Returns a number larger than every one that was returned
  // for this run before, by older copies of it too.
  virtual absl::StatusOr<int64_t> TakeOver() = 0;
  // Saves the newest state of members, whose incarnations never go back.
  virtual absl::Status SaveMembers(std::span<const v1::Member> members) = 0;
  virtual absl::Status SaveRunState(const v1::State& state) = 0;
  virtual absl::Status SaveSummary(const nlohmann::json& summary) = 0;

  // May drop the fragment's answers of earlier rounds: nobody will ask for them again.
  virtual absl::Status ForgetAnswers(int fragment, int64_t before_round) = 0;

  // These return NOT_FOUND for what was never saved, or is no longer kept.
  virtual absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                                const std::string& worker_id) = 0;
  virtual absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) = 0;
  virtual absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) = 0;
};

}  // namespace causeway::server
