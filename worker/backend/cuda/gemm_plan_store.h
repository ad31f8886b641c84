// Which way of computing was chosen for each shape of a matrix product. The choice is measured, so
// it may fall differently from start to start; another way may round differently. What was chosen
// once is therefore kept, in a file beside the worker's checkpoint: a worker that continues repeats
// its steps bit for bit.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_PLAN_STORE_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_PLAN_STORE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_system.h"

namespace causeway::worker::cuda {

// What cuBLASLt calls an algorithm: opaque words, of one version of the library on one kind of GPU.
using GemmPlan = std::array<uint64_t, 8>;

// Thread-safe: the GPUs of a machine share it, so that they compute alike.
class GemmPlanStore {
 public:
  // Keys say everything that a plan depends on.
  std::optional<GemmPlan> Find(const std::string& key) const;
  // The plan of that key: this one, or one that was there before.
  GemmPlan Keep(const std::string& key, const GemmPlan& plan);
  // Whether Keep has added any since the last Write or Read.
  bool changed() const;

  // As Read and Write, of what is in such a file; `name` is what messages call it.
  absl::Status Parse(const std::string& text, const std::string& name);
  std::string Text();

  // JSON: {"version": 1, "plans": {key: [eight numbers]}}. DATA_LOSS, with what to do, if it is
  // damaged.
  absl::Status Read(FileSystem& file_system, const std::string& path);
  absl::Status Write(FileSystem& file_system, const std::string& path);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, GemmPlan> plans_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_PLAN_STORE_H_
