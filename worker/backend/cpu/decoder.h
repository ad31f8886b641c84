// Token after token through the transformer on CPU cores: what generation runs on.
//
// Keys and values of earlier tokens are kept, so that a token costs one pass over the weights
// whatever stands before it, and several sequences that go on together cost little more than one.
// Prompts go through matrix products, a chunk of tokens at a time.
//
// The logits of a sequence have the same bits whatever other sequences are stepped with it, on any
// number of threads. They differ from CpuTransformer::Logits, which sums in another order, in the
// last bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/scratch.h"
#include "worker/model/parameter_layout.h"

namespace causeway::worker {

// T is float or double (for tests). Not thread-safe; uses the pool from the calling thread.
template <typename T>
class CpuDecoder {
 public:
  // `model` must be complete (run_config.h) and `plan` be made from it. Allocates all that any
  // later call needs but for tasks' ThreadScratch, per sequence CacheBytes. `pool` must outlive
  // this. `capacity`: of each sequence, at most the model's sequence_length, which 0 stands for.
  CpuDecoder(const v1::ModelConfig& model, const FragmentPlan& plan, int sequences,
             ThreadPool* pool, int64_t capacity = 0);
  CpuDecoder(const CpuDecoder&) = delete;
  CpuDecoder& operator=(const CpuDecoder&) = delete;

  // Bytes of the keys and values of a sequence of so many tokens.
  static int64_t CacheBytes(const v1::ModelConfig& model, int64_t capacity) {
    return 2 * int64_t{model.layers()} * model.kv_heads() * model.head_dim() * capacity *
           static_cast<int64_t>(sizeof(T));
  }

  int sequences() const { return static_cast<int>(lengths_.size()); }
  int64_t vocabulary_size() const { return shape_.vocabulary; }
  // Tokens that a sequence may have.
  int64_t capacity() const { return capacity_; }
  int64_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  void Clear(int sequence) { lengths_[static_cast<size_t>(sequence)] = 0; }

  // Below, tokens that are out of range or do not fit, and spans of a wrong length, end the
  // program.

  // Appends at least one token to a sequence; logits [vocabulary_size] of what follows the last.
  void Append(std::span<const T> parameters, int sequence, std::span<const int32_t> tokens,
              std::span<T> logits);

  struct NextToken {
    int sequence = 0;
    int32_t token = 0;
  };
  // Appends one token to each of at least one sequence, all different; logits [next.size(),
  // vocabulary_size].
  void Step(std::span<const T> parameters, std::span<const NextToken> next, std::span<T> logits);

 private:
  struct Row {
    int sequence = 0;
    int64_t position = 0;
    int32_t token = 0;
  };

  // The blocks over rows_, whose output is left in x_ and projected_ (not yet added). `prompt`: the
  // rows are consecutive tokens of one sequence.
  void Run(const T* parameters, bool prompt);
  void Norm(const T* arena, const NormLayout& norm, const T* addend);
  void Project(const T* arena, const ProjectionLayout& projection, int64_t inputs, const T* in,
               T* out, int64_t outputs, bool prompt);
  // out [rows, outputs] = in W^T, reading W once.
  void MultiplyOnce(const T* weights, int64_t outputs, int64_t inputs, const T* in, int64_t rows,
                    T* out, int64_t out_stride);
  void RotateAndKeep(const T* parameters, size_t block);
  void AttendPrompt(size_t block);
  void AttendStep(size_t block);
  void WriteLogits(const T* parameters, int64_t first_row, std::span<T> logits);
  void CheckToken(std::span<const T> parameters, int sequence, int32_t token) const;
  // The cache of one head of one sequence: [capacity, head_dim].
  T* CacheAt(std::vector<AlignedVector<T>>& cache, size_t block, int sequence, int64_t head) {
    return cache[block].data() + (sequence * shape_.kv_heads + head) * capacity_ * shape_.head_dim;
  }

  const ParameterLayout layout_;
  const Kernels<T>& kernels_;
  ThreadPool* const pool_;
  const int64_t capacity_;
  const ModelShape shape_;
  const T epsilon_, score_scale_;

  std::vector<int64_t> lengths_;
  std::vector<AlignedVector<T>> keys_,
      values_;                                // By block: [sequences, kv_heads, capacity, head_dim]
  AlignedVector<T> cosine_, sine_;            // [capacity, head_dim / 2]
  std::vector<Row> rows_;                     // Rows of the present call.
  AlignedVector<T> x_, normed_, projected_;   // [rows, width]
  AlignedVector<T> inverse_rms_;              // [rows]
  AlignedVector<T> qkv_;                      // [rows, heads + 2 kv_heads, head_dim]
  AlignedVector<T> raw_qk_, qk_rms_;          // Kept by the kernel for training.
  AlignedVector<T> attention_;                // [rows, heads, head_dim]
  AlignedVector<T> pre_activation_, hidden_;  // [rows, mlp_inputs], [rows, mlp_width]
};

}  // namespace causeway::worker
