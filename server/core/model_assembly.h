// The values of a model that a site brings, chunk by chunk.
#ifndef CAUSEWAY_SERVER_CORE_MODEL_ASSEMBLY_H_
#define CAUSEWAY_SERVER_CORE_MODEL_ASSEMBLY_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/session.pb.h"
#include "common/base/checksum.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// Checks every byte before it keeps it, and holds no more than has come. For one thread at a time.
class ModelAssembly {
 public:
  // Takes a model and a header that a coordinator has admitted.
  ModelAssembly(const BroughtModel& model, const v1::ModelHeader& header)
      : config_(model.config), total_bytes_(header.total_bytes()), tree_hash_(header.tree_hash()) {}

  // Takes the chunk's data. INVALID_ARGUMENT for another offset or length than the next chunk has,
  // and for a value that is not finite: it names the tensor.
  absl::Status Add(v1::ModelChunk chunk);
  int64_t received_bytes() const { return received_bytes_; }

  // The values in the plan's arena order; the assembly is empty afterwards. INVALID_ARGUMENT if
  // some are missing, DATA_LOSS if they do not hash to what the header said.
  absl::StatusOr<std::vector<float>> Finish(const FragmentPlan& plan);

 private:
  // "h.0.weight, index 3".
  std::string PlaceOf(int64_t value) const;

  const v1::RunConfig config_;
  const int64_t total_bytes_;
  const uint64_t tree_hash_;
  int64_t received_bytes_ = 0;
  TreeHasher hasher_;
  std::deque<std::string> chunks_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_MODEL_ASSEMBLY_H_
