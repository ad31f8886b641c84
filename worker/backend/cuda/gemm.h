// Matrix products on a GPU: bf16 in, sums in fp32, bf16 or fp32 out, row-major. What stands behind
// is cuBLASLt (cublaslt.h), or plain C++ under the tests' emulation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// An operand, as it is stored: rows of `stride` values. Matrices of a batch are `batch_stride`
// values apart.
struct GemmOperand {
  const __nv_bfloat16* data = nullptr;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transpose = false;
};

// D = alpha * op(A) op(B) + beta * C, of [m, k] [k, n] -> [m, n], `batch` times.
struct GemmCall {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  float alpha = 1;
  float beta = 0;
  GemmOperand a;  // [m, k], or [k, m] with transpose.
  GemmOperand b;  // [k, n], or [n, k] with transpose.
  // Exactly one of these two: D, of [m, n].
  __nv_bfloat16* d = nullptr;
  float* d_float = nullptr;
  int64_t d_stride = 0;
  int64_t d_batch_stride = 0;
  // Read unless beta = 0: D itself, or of the same shape, type and strides. The product may be
  // rounded to D's type before C is added: bf16 has two roundings then.
  const void* c = nullptr;
  // [n], added to every row of a bf16 D, before rounding; or null.
  const __nv_bfloat16* bias = nullptr;
};

// One GPU's, used by its thread alone. Pointers are aligned to 16 bytes and strides are multiples
// of 8 values.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // Enqueues the product. Equal calls have equal bits. Everything that a first call of a shape
  // prepares is prepared outside of recorded graphs: a shape must have been run before its first
  // record.
  virtual absl::Status Run(const GemmCall& call, cudaStream_t stream) = 0;

  // While tuning is on, a shape's first call measures which way of computing it is the fastest,
  // waiting for the stream. Otherwise it takes the way that is recommended.
  virtual void SetTuning(bool /*on*/) {}
};

// Makes a device's, in its memory.
using MakeGemm =
    std::function<absl::StatusOr<std::unique_ptr<Gemm>>(const DeviceInfo&, DeviceMemory*)>;

// Keeps the chosen way of computing each shape of a matrix product, and attention. Measurements
// choose, so the choice may differ from start to start, and another way may round differently. The
// file beside the worker's checkpoint lets a worker that continues repeat its steps bit for bit.

// cuBLASLt's algorithm: opaque words, of one version of the library on one kind of GPU.
using GemmPlan = std::array<uint64_t, 8>;

// Thread-safe: the GPUs of a machine share it, so that they compute alike.
class GemmPlanStore {
 public:
  // Keys say everything that a plan depends on.
  std::optional<GemmPlan> Find(const std::string& key) const;
  // The plan of that key: this one, or one that was there before, unless that one is `unusable`.
  GemmPlan Keep(const std::string& key, const GemmPlan& plan,
                const std::optional<GemmPlan>& unusable = std::nullopt);

  // The names of attention's providers (attention_choice.h), likewise. Empty: none is there.
  std::string FindAttention(const std::string& key) const;
  // Replaces the one that was there, which it returns.
  std::string SetAttention(const std::string& key, const std::string& name);

  // True if there is a choice that no Parse or Text has seen.
  bool changed() const;

  // JSON: {"version": 1, "plans": {key: [eight numbers]}, "attention": {key: name}}. `name` is what
  // messages call the file that it is in. DATA_LOSS, with what to do, if it is damaged.
  absl::Status Parse(const std::string& text, const std::string& name);
  std::string Text();

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, GemmPlan> plans_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> attention_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Gemm by cuBLASLt. A shape's first call makes a plan, which is found again by everything that it
// depends on; while tuning is on, the eight ways that the library recommends are timed and the
// fastest is kept.

// For the calling thread's device. The workspace comes from `memory`; `plans` outlives the Gemm.
// FAILED_PRECONDITION if the library is not there.
absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm(const DeviceInfo& device,
                                                       DeviceMemory* memory, GemmPlanStore* plans);

}  // namespace causeway::worker::cuda
