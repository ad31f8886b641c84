// A run, computed again from its retained deltas.
//
// Every round that can be is merged again and its hashes are compared with those recorded: what was
// published then is what comes out now. With other settings of the outer optimizer the same deltas
// step another theta beside it, which answers "what if". The deltas stay what they were, taken
// against what was published then, so that is a first-order answer, not a run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/thread_pool.h"
#include "server/store/store.h"

namespace causeway::server {

struct ReplayOptions {
  Store* store = nullptr;
  const RecoveredRun* run = nullptr;      // Result of store->Recover().
  std::vector<float> initial_parameters;  // In the plan's arena order.
  // Complete. Its optimizer and settings replace the run's for the second theta; outer.merge must
  // be MEAN.
  std::optional<v1::OuterConfig> outer = {};
  // The second theta goes without what these workers contributed: the others' weights are scaled to
  // sum to 1, and a round of nobody else does not step.
  std::set<std::string> without = {};
  ThreadPool* pool = nullptr;  // Null: this thread.
  // Called after every round, with those done and those to do.
  std::function<void(int64_t, int64_t)> progress = {};
};

struct ReplayResult {
  int64_t rounds = 0;  // Merged again, all with their recorded hashes.
  // In arena order: the published values at the end, or, with `outer` or `without`, the other
  // theta.
  std::vector<float> parameters;
  // With either: the Euclidean norm of what the two thetas differ by, over that of the first.
  double relative_difference = 0;
};

// NOT_FOUND, naming the first delta that is missing and --retain_deltas, if the run did not keep
// them; DATA_LOSS if a hash differs, naming the round; FAILED_PRECONDITION for a run of another
// release's plan, INVALID_ARGUMENT for `outer` that cannot be replayed.
absl::StatusOr<ReplayResult> Replay(const ReplayOptions& options);

}  // namespace causeway::server
