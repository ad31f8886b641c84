// Prepares a worker before it asks to join: it reaches the coordinator, checks whom it has reached
// and whether it fits, and brings its model where the run awaits one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/client/reach.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/security.h"

namespace causeway::worker {

struct MemberOptions {
  // HOST:PORT, or several with commas between: where it may be. They are tried one after the other,
  // also when it moves; names in such a list are looked up once.
  std::string coordinator;
  SecurityOptions security;  // Secures the link to it.
  std::string worker_id;
  bool own_data = false;             // Nobody else has them: all of them are this worker's part.
  std::string output;                // Folder for events.jsonl and metrics.jsonl; empty: neither.
  std::string metrics_address;       // HOST:PORT for Prometheus; empty: none.
  std::string metrics_address_file;  // Receives it once it is served.
  std::string tensorboard;           // Folder of curves, a subfolder for each worker; empty: none.
  int threads = 1;
  absl::Duration connect_timeout = absl::Seconds(30);
  // True ends ReachRun with CANCELLED. May be empty.
  std::function<bool()> stop;
  // For bulk transfers, beside the session's; 0: as many as help, from 4 to 16.
  int connections = 0;
  // A record of merges to repeat (merge_record.h); empty: none.
  std::string replay_merges;
  int64_t max_upload_bytes_per_second = 0;  // 0: no limit. Of this worker's fragments.
  int64_t max_download_bytes_per_second = 0;
  // The connections' congestion control (tcp_links.h); empty: the system's.
  std::string congestion_control;
  // The trainer is not Causeway's own: it may have any model.
  bool any_model = false;
};

// Asks the coordinator what its run is. With an empty worker_id, nothing is asked of the
// certificate's.
absl::StatusOr<ReachedRun> ReachRun(const MemberOptions& options);

struct ModelToBring {
  std::string run_id;     // As described.
  std::string worker_id;  // As in the Join that follows.
  v1::TensorTable tensors;
  // The values of tensor `index`, row-major. Called twice for each, in order: to hash them, and to
  // send them. They must not change meanwhile, and stay until the next call.
  std::function<std::span<const float>(int index)> values;
  // Asked between chunks; true ends it with CANCELLED.
  std::function<bool()> is_cancelled = [] { return false; };
};

// Blocks until the run has begun with this model, or cannot. After OK or ALREADY_EXISTS (another
// site brought the model), describe the run again and join. INVALID_ARGUMENT if the values are not
// those of the table; other errors are session.proto's. The call tries once: after an error that
// passes (common/rpc/status.h) describe the run again first. The next try goes on where this one
// broke, if the coordinator has kept that. `sent`: bytes that this try wrote.
absl::Status BringModel(v1::Session::Stub& stub, const ModelToBring& model,
                        int64_t* sent = nullptr);

// FAILED_PRECONDITION unless the coordinator speaks this build's wire version.
absl::Status CheckWireVersion(const v1::DescribeResponse& run);

// Compares the coordinator's description with what this build computes from it: FAILED_PRECONDITION
// if they differ. Only a trainer of one's own (`any_model`) can be given another model than
// Causeway's.
absl::StatusOr<FragmentPlan> CheckRun(const v1::DescribeResponse& run, bool any_model);

// A limit of a link's rate, given as `name` in Mbit/s; 0: none. INVALID_ARGUMENT for what no link
// has.
absl::StatusOr<int64_t> BytesPerSecond(absl::string_view name, double mbit);

// Refuses what the coordinator would refuse later, and at greater length.
absl::Status CheckIdentity(const ChannelSecurity& security, const std::string& worker_id);

}  // namespace causeway::worker
