// The values of a site whose tensors lie on CUDA devices: the library reads and writes them there.
// The implementation is worker/backend/cuda/kernels; a build without CUDA has another one, which
// says so.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/site/causeway_site.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {

// Where a trainer's tensors lie in the arena of a run.

// A tensor as its trainer has it.
struct GivenTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Values of the arena that no tensor of the trainer has.
struct ArenaRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// By fragment, in arena order.
struct TensorMatch {
  std::vector<std::vector<causeway_range>> ranges;
  std::vector<std::vector<ArenaRange>> padding;  // Rows of the vocabulary's: as published.
  // What lies between tensors: zeros, until a codec changes them. They are merged like any value.
  std::vector<std::vector<ArenaRange>> gaps;
  int64_t gap_values = 0;
};

// The run's tensors must be exactly `tensors`, in any order. The vocabulary's tensors may have as
// many rows as the vocabulary, or some of its padding; the first rows of the run's are theirs.
// FAILED_PRECONDITION names the first few that are missing, unknown or of another shape;
// INVALID_ARGUMENT for a name that comes twice.
absl::StatusOr<TensorMatch> MatchTensors(const v1::RunConfig& config, const FragmentPlan& plan,
                                         std::span<const GivenTensor> tensors);

// Lists the padding, which nobody trains.
std::vector<FragmentRange> Untrained(const TensorMatch& match);

// Values of a tensor that a rank of a site is to own.
struct TensorShare {
  int64_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int rank = 0;
};

// INVALID_ARGUMENT unless every value of every tensor is some rank's, once.
absl::StatusOr<ShardPlan> PlanShares(const FragmentPlan& plan, const TensorMatch& match,
                                     std::span<const GivenTensor> tensors,
                                     std::vector<TensorShare> shares, int ranks);
// Lists what each rank owns, by rank.
std::vector<std::vector<causeway_piece>> PiecesOf(const ShardPlan& shards);

struct DeviceOptions {
  std::vector<int> devices;  // Each a rank, if they are several.
  bool published_on_host = false;
  std::vector<causeway_device_values> values;
};

// Holds what one device has of a site. One thread at a time, as the replicas of which it makes a
// part have it. Streams are cudaStream_t; nothing waits for a device unless it says so.
class DeviceValues {
 public:
  virtual ~DeviceValues() = default;

  // A part of a replica, of these values; a former one is gone by then. Waits. RESOURCE_EXHAUSTED
  // with the bytes that are needed.
  virtual absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart() = 0;

  // Whether Move would take them: NOT_FOUND where some are missing that the rank owns,
  // INVALID_ARGUMENT where some come twice, or a type is not that of the beginning.
  virtual absl::Status CheckMove(std::span<const causeway_device_values> values) const = 0;
  // The values lie there from now on; those of other devices are left alone. Waits. After an error
  // of CheckMove nothing has changed.
  virtual absl::Status Move(std::span<const causeway_device_values> values) = 0;

  // Takes the local values of these fragments from the tensors, for what the replica does next to
  // them, if it is known where all are (FAILED_PRECONDITION); those of other fragments are of no
  // interest then. What no tensor has is what is published. FAILED_PRECONDITION without a part.
  virtual absl::Status Gather(std::span<const int32_t> fragments, void* stream) = 0;
  // Whether they were gathered last.
  virtual bool HasGathered(int fragment) const = 0;
  // Writes the local values of these fragments, or the published ones, to the tensors. Where local
  // values are of no interest the published ones are the local ones.
  virtual absl::Status Scatter(std::span<const int32_t> fragments, bool published,
                               void* stream) = 0;
};

// Makes a device the calling thread's; returns the one before. Nothing for -1, and without CUDA.
int SwapDevice(int device);

// FAILED_PRECONDITION where these values cannot be on that device: why not.
absl::Status CheckDeviceValues(int device);

// Opens what that rank owns, on that device; of several ranks each may say later where that is.
// Plans outlive the values. Errors of Move; RESOURCE_EXHAUSTED with the bytes that are needed.
absl::StatusOr<std::unique_ptr<DeviceValues>> OpenDeviceValues(
    const FragmentPlan& plan, const ShardPlan& shards, int rank, int device,
    const v1::SyncConfig& sync, const TensorMatch& match, const DeviceOptions& options);

}  // namespace causeway::worker
