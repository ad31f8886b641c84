// Gradients of which every GPU keeps its own pieces alone (ZeRO-2). A backward pass writes those of
// one stage into a buffer. The exchange stream sums them over the GPUs, and adds the own pieces of
// the sums to what the GPU keeps.
//
//   training stream   stage 0 | 1 | 2 | 3 waits for the sums of 1 | ...
//   exchange stream           sums of 0 | of 1 | of 2 | ...
//
// Three buffers are enough: the blocks take two in turn, head and embedding, which are far apart in
// time, the third. A head that is the embedding lies in it from the first stage to the last.
//
// Every micro-batch is summed over the GPUs, in place of once per step. The order of a sum: over
// the GPUs first, as the group adds, then over the micro-batches in their order. With one
// micro-batch for each GPU and step it is the order of gradients that are not divided.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/sync/local_group.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker::cuda {

// Used by one thread.
class StagedGradients {
 public:
  // All that is pointed at outlives what is made.
  struct Options {
    const FragmentPlan* plan = nullptr;
    const ShardPlan* shards = nullptr;
    LocalGroup* group = nullptr;
    int rank = 0;
    bool tied_head = false;  // The head is the embedding.
  };
  // Waits for `stream`. Errors of DeviceMemory.
  static absl::StatusOr<std::unique_ptr<StagedGradients>> Create(const Options& options,
                                                                 DeviceMemory* memory,
                                                                 cudaStream_t stream,
                                                                 cudaStream_t exchange);

  // The own pieces' sums [shard_size], in the order of the pieces. They are there when the exchange
  // stream has come to the end of a step.
  float* own() const { return own_; }
  // The places where a pass writes.
  GradientPlaces places() const;

  // Stages are CudaTransformer's, in their order; these only enqueue. `stream` may write the
  // stage's gradients from now on.
  absl::Status Begin(int stage, cudaStream_t stream);
  // Sums the stage's gradients, which `stream` has written. The sums become the own pieces, or with
  // `accumulate` are added to them.
  absl::Status Sum(int stage, bool accumulate, cudaStream_t stream);

 private:
  // A run of a stage's tensors in the arena, with what lies between them.
  struct Run {
    int64_t begin = 0;  // In the arena.
    int64_t end = 0;
    int64_t place = 0;  // In the stage's buffer.
  };
  // The part of a bucket that lies in a run.
  struct Part {
    int64_t place = 0;            // In the stage's buffer.
    std::vector<int64_t> bounds;  // From there, by rank.
    int64_t own = 0;              // Where the rank's piece of it lies in own().
  };
  struct Stage {
    std::vector<Run> runs;
    std::vector<Part> parts;
    std::vector<ClearedRange> gaps;  // In the buffer: belong to no tensor.
    const ClearedRange* device_gaps = nullptr;
    size_t buffer = 0;
  };
  struct Buffer {
    float* data = nullptr;
    int64_t values = 0;
    Event summed;  // Its last contents are summed.
  };
  static constexpr size_t kEnds = 2;  // The buffer of head and embedding.

  explicit StagedGradients(const Options& options, cudaStream_t exchange)
      : options_(options), exchange_(exchange) {}
  // Cuts the arena into the stages' runs, and gives these their places.
  void Lay();
  void LayParts(Stage& stage) const;
  absl::Status Allocate(DeviceMemory& memory, cudaStream_t stream);

  const Options options_;
  const cudaStream_t exchange_;
  std::vector<Stage> stages_;
  std::array<Buffer, 3> buffers_;
  Event written_;
  float* own_ = nullptr;
};

}  // namespace causeway::worker::cuda
