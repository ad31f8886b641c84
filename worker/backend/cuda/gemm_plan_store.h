// Keeps the chosen way of computing each shape of a matrix product, and attention. Measurements
// choose, so the choice may differ from start to start, and another way may round differently. The
// file beside the worker's checkpoint lets a worker that continues repeat its steps bit for bit.
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

// cuBLASLt's algorithm: opaque words, of one version of the library on one kind of GPU.
using GemmPlan = std::array<uint64_t, 8>;

// Thread-safe: the GPUs of a machine share it, so that they compute alike.
class GemmPlanStore {
 public:
  // Keys say everything that a plan depends on.
  std::optional<GemmPlan> Find(const std::string& key) const;
  // The plan of that key: this one, or one that was there before.
  GemmPlan Keep(const std::string& key, const GemmPlan& plan);
  // Keeps `plan` in place of one that cannot be used, unless another one has replaced that before.
  GemmPlan Replace(const std::string& key, const GemmPlan& unusable, const GemmPlan& plan);

  // The names of attention's providers (attention_choice.h), likewise. Empty: none is there.
  std::string FindAttention(const std::string& key) const;
  // Replaces the one that was there, which it returns.
  std::string SetAttention(const std::string& key, const std::string& name);

  // True if there is a choice that no Write or Read has seen.
  bool changed() const;

  // As Read and Write, of what is in such a file; `name` is what messages call it.
  absl::Status Parse(const std::string& text, const std::string& name);
  std::string Text();

  // JSON: {"version": 1, "plans": {key: [eight numbers]}, "attention": {key: name}}. DATA_LOSS,
  // with what to do, if it is damaged.
  absl::Status Read(FileSystem& file_system, const std::string& path);
  absl::Status Write(FileSystem& file_system, const std::string& path);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, GemmPlan> plans_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> attention_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_PLAN_STORE_H_
