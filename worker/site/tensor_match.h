// Where a trainer's tensors lie in the arena of a run.
#ifndef CAUSEWAY_WORKER_SITE_TENSOR_MATCH_H_
#define CAUSEWAY_WORKER_SITE_TENSOR_MATCH_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/site/causeway_site.h"

namespace causeway::worker {

// A tensor as its trainer has it.
struct GivenTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Values of the arena that no tensor of the trainer has: rows of the vocabulary's padding.
struct ArenaRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// By fragment, in arena order.
struct TensorMatch {
  std::vector<std::vector<causeway_range>> ranges;
  std::vector<std::vector<ArenaRange>> padding;
};

// The run's tensors must be exactly `tensors`, in any order. The vocabulary's tensors may have as
// many rows as the vocabulary, or some of its padding; the first rows of the run's are theirs.
// FAILED_PRECONDITION names the first few that are missing, unknown or of another shape;
// INVALID_ARGUMENT for a name that comes twice.
absl::StatusOr<TensorMatch> MatchTensors(const v1::RunConfig& config, const FragmentPlan& plan,
                                         std::span<const GivenTensor> tensors);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SITE_TENSOR_MATCH_H_
