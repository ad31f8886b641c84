// What of a run outlives the coordinator's process.
//
// The store is told, in this order: that the run begins; every contribution before it is
// acknowledged; every round after its merge and before it is published; snapshots of the fragments'
// state; the summary at the end. When a call returns OK the fact is as durable as the
// implementation promises: MemoryStore nothing, RunDirectoryStore rounds as lines of a file and
// snapshots as synced files. With contributions and rounds kept as well, the state follows from the
// last snapshot by folding the deltas in again: theta = fold(merge, snapshot, deltas since).
//
// Fragments are independent of each other: nothing here assumes that one store holds all of them.
#ifndef CAUSEWAY_SERVER_STORE_STORE_H_
#define CAUSEWAY_SERVER_STORE_STORE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/config.pb.h"
#include "nlohmann/json.hpp"

namespace causeway::server {

// What every later opening of the run must agree with.
struct RunIdentity {
  std::string run_id;
  v1::RunConfig config;  // Complete.
  uint64_t config_hash = 0;
  uint64_t plan_hash = 0;
};

// One accepted delta, apart from its bytes.
struct ContributionRecord {
  int fragment = 0;
  int64_t round = 0;
  std::string worker_id;
  uint64_t incarnation = 0;
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  uint64_t object_hash = 0;
  int64_t tokens = 0;
  int64_t send_step = 0;
  double unix_s = 0;  // Accepted.
};

// One merged round.
struct RoundRecord {
  int fragment = 0;
  int64_t round = 0;
  std::vector<std::string> contributors;  // Sorted: the summation order. Empty: published empty.
  std::vector<double> weights;            // Of the contributors; they sum to 1.
  int64_t send_step = 0;                  // By the schedule.
  // Wall time; 0 if nobody contributed.
  double first_unix_s = 0;
  double closed_unix_s = 0;
  double published_unix_s = 0;
  int64_t bytes_in = 0;   // Payload of all contributions.
  int64_t bytes_out = 0;  // Of the answer, once.
  uint64_t published_hash = 0;
  std::string reason;  // Why it closed.
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

// Thread-safe: calls may overlap. Of one fragment, the contributions to a round may overlap each
// other; the round comes after all of them, and before those to the next.
class Store {
 public:
  virtual ~Store() = default;

  // Once, before anything else.
  virtual absl::Status BeginRun(const RunIdentity& identity) = 0;
  // Before the contribution is acknowledged. `object` is the encoded delta.
  virtual absl::Status SaveContribution(const ContributionRecord& record,
                                        std::span<const uint8_t> object) = 0;
  // Before the round is published. `answer` is what workers will pull.
  virtual absl::Status SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) = 0;
  // Replaces the last snapshot as a whole; after an error the last one stands.
  virtual absl::Status SaveSnapshot(std::span<const FragmentView> fragments) = 0;
  virtual absl::Status SaveSummary(const nlohmann::json& summary) = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_STORE_H_
