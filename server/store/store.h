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
#ifndef CAUSEWAY_SERVER_STORE_STORE_H_
#define CAUSEWAY_SERVER_STORE_STORE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/byte_buffer.h"
#include "common/params/draws.h"
#include "nlohmann/json.hpp"
#include "server/round/membership.h"

namespace causeway::server {

// Says which run it is. Every later opening must agree with it.
struct RunIdentity {
  std::string run_id;
  v1::RunConfig config;  // Complete.
  uint64_t config_hash = 0;
  uint64_t plan_hash = 0;
  // TreeHash of every fragment's initial values: the published hash of version 0. 0 for a fragment
  // that another coordinator of the run has.
  std::vector<uint64_t> initial_hashes = {};
};

// An operator's orders, and where the run stands.
struct RunState {
  bool started = false;
  double started_unix_s = 0;
  bool paused = false;
  std::string pause_reason = {};
  int64_t stop_step = 0;  // 0: none was asked for.
  int64_t stop_tokens = 0;
  bool finish_recorded = false;
  // Fingerprint of the data that the workers share (session.proto); 0: none has told it.
  uint64_t data_fingerprint = 0;
  int64_t hash_checks = 0;
  int64_t hash_mismatches = 0;
};

// The coordinator's account of a worker, beside its membership. Bytes are payload of fragments,
// counted over all its processes.
struct WorkerAccount {
  std::string device = {};
  std::string software_version = {};
  v1::Heartbeat heartbeat = {};  // The last one.
  int64_t bytes_up = 0;          // Accepted contributions.
  int64_t bytes_down = 0;        // Answers.
  int64_t state_bytes_down = 0;
  // The nonce of its process that an operator asked to drain.
  std::optional<uint64_t> draining = {};
};

// One worker id. Member's fields about the present stream, its lease and its progress mean nothing
// here.
struct MemberRecord {
  Member member;
  WorkerAccount account;
  // Rounds that an operator keeps out, by fragment; -n: all from n on. Empty: none.
  std::vector<std::set<int64_t>> rejected;
};

// Makes the column `account` (docs/formats.md): the account with a part of its heartbeat, the
// orders, and Member's had_slots and sites.
nlohmann::json AccountToJson(const MemberRecord& record);
// Reads them back. A field that is missing or of another type keeps its default.
void AccountFromJson(const nlohmann::json& json, MemberRecord& record);

// One accepted delta, apart from its bytes.
struct ContributionRecord {
  int fragment = 0;
  int64_t round = 0;
  std::string worker_id;
  uint64_t incarnation = 0;
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  int64_t bytes = 0;
  uint64_t object_hash = 0;
  int64_t tokens = 0;
  Draws draws;  // Data of those tokens.
  int64_t send_step = 0;
  double unix_s = 0;  // When it was accepted.
  double norm = 0;    // Euclidean, of the decoded delta; 0 if nobody asked for it.
  // Kept on the disk for people, never merged: its norm was out of line.
  bool quarantined = false;
};

// One merged round.
struct RoundRecord {
  int fragment = 0;
  int64_t round = 0;
  std::vector<std::string> contributors;  // Sorted: the summation order. Empty: published empty.
  // Weights of the contributors, which sum to 1. Negative at a region whose parent closed the round
  // without it: what they contributed travels with the next delta.
  std::vector<double> weights;
  int64_t send_step = 0;  // By the schedule.
  // Wall time; 0 if nobody contributed.
  double first_unix_s = 0;
  double closed_unix_s = 0;
  double published_unix_s = 0;
  int64_t bytes_in = 0;   // Payload of all contributions.
  int64_t bytes_out = 0;  // Size of the answer, counted once.
  uint64_t published_hash = 0;
  uint64_t answer_hash = 0;  // TreeHash of the encoded answer.
  std::string reason;        // Why it closed.
};

struct NamedArray {
  std::string name;  // "momentum"
  std::span<const float> values;
};

// The state of one fragment at a version, as the coordinator holds it. Views, valid for the call.
struct FragmentView {
  int fragment = 0;
  int64_t version = 0;
  uint64_t published_hash = 0;
  std::span<const float> theta = {};
  std::span<const float> published = {};
  std::vector<NamedArray> optimizer = {};
};

// FragmentView with its own memory.
struct FragmentSnapshot {
  int fragment = 0;
  int64_t version = 0;
  uint64_t published_hash = 0;
  FloatBuffer theta;
  FloatBuffer published;
  std::vector<std::pair<std::string, FloatBuffer>> optimizer;
};

FragmentSnapshot CopyFragment(const FragmentView& view);

struct SnapshotRecord {
  int fragment = 0;
  int64_t version = 0;
};

// Everything small that the store was told. The Read methods read what is large.
struct RecoveredRun {
  RunIdentity identity;
  RunState state;
  std::vector<MemberRecord> members;              // Sorted by id.
  std::vector<RoundRecord> rounds;                // Sorted by fragment, then round; no gaps.
  std::vector<ContributionRecord> contributions;  // Sorted by fragment, round, worker id.
  std::vector<SnapshotRecord> snapshots;          // Sorted by fragment, then version.
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
  virtual absl::Status BeginRun(const RunIdentity& identity) = 0;

  // Returns RESOURCE_EXHAUSTED if there is no room now for a contribution of so many bytes.
  virtual absl::Status CheckRoom(uint64_t /*bytes*/) { return absl::OkStatus(); }
  // Call it before the contribution is acknowledged. `object` is the encoded delta.
  virtual absl::Status SaveContribution(const ContributionRecord& record,
                                        std::span<const uint8_t> object) = 0;
  // Call it before the round is published. `answer` is what workers will pull.
  virtual absl::Status SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) = 0;
  // Saves a version that SaveRound has been told of, or 0. Deltas that only older states need are
  // then dropped, or kept, as the implementation was configured.
  virtual absl::Status SaveSnapshot(const FragmentView& fragment) = 0;
  // Drops a snapshot that turned out to be damaged: nothing begins from it any more.
  virtual absl::Status DropSnapshot(int fragment, int64_t version) = 0;
  // Lets a coordinator take the run over. Returns a number larger than every one that was returned
  // for this run before, by older copies of it too.
  virtual absl::StatusOr<int64_t> TakeOver() = 0;
  // Saves the newest state of one member, whose incarnation never goes back.
  virtual absl::Status SaveMember(const MemberRecord& member) = 0;
  // Saves several, at the price of one where the implementation can.
  virtual absl::Status SaveMembers(std::span<const MemberRecord> members);
  virtual absl::Status SaveRunState(const RunState& state) = 0;
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

#endif  // CAUSEWAY_SERVER_STORE_STORE_H_
