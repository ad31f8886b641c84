// The inner optimizer: one training step's change of the weights, from the gradient. It works on
// arenas in the layout of the FragmentPlan, and its state never leaves the worker.
//
//   ADAMW  AdamW (common/optim/adamw.h) on every tensor.
//   MUON   Muon (muon.h) on the matrices of the blocks, AdamW on embedding, head and norms, each
//          with a learning rate of its own under the same schedule.
//
// Both scale the gradient down to train.clip_norm first, if its global norm is larger, and decay
// matrices only, the embedding and the head included.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_OPTIMIZER_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/scratch_pool.h"

namespace causeway::worker {

// A part of a state that a checkpoint saves and restores, in place.
template <typename T>
struct StateView {
  std::string name;
  std::span<T> values;
};

// T is float, or double for tests. Work is cut into tasks by the layout alone: the result has the
// same bits on any number of threads. Not thread-safe; uses the pool from the calling thread.
template <typename T>
class InnerOptimizer {
 public:
  // `train` must be complete (run_config.h). `pool` must outlive this; `plan` is read here only.
  InnerOptimizer(const FragmentPlan& plan, const v1::TrainConfig& train, ThreadPool* pool);
  InnerOptimizer(const InnerOptimizer&) = delete;
  InnerOptimizer& operator=(const InnerOptimizer&) = delete;

  // One update of `weights` by `gradients`, both of plan.arena_size() values. `step` >= 1 is the
  // run's inner step, for the schedule. The bias correction counts this optimizer's own updates
  // instead: a worker that joins at a late step starts with fresh moments. Alignment gaps stay as
  // they are.
  //
  // OUT_OF_RANGE if the gradient is not finite; nothing has changed then.
  absl::StatusOr<OptimizerReport> Step(int64_t step, std::span<T> weights,
                                       std::span<const T> gradients);

  // The moments "m" and "v" in arena layout. "m" is Muon's momentum where Muon is at work; "v" is 0
  // there. With updates(), that is the whole state.
  std::vector<StateView<T>> State();
  // Calls of Step that succeeded.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  // A run of values of one tensor that AdamW updates as one task.
  struct Slice {
    int64_t begin;  // In the arena.
    int64_t size;
    bool decays;
  };
  struct Matrix {
    int64_t begin;
    int64_t rows;
    int64_t cols;
  };

  double GradientNorm(std::span<const T> gradients);

  const v1::TrainConfig train_;
  ThreadPool* const pool_;
  std::vector<Matrix> muon_;  // The largest first, so that no thread begins it last.
  std::vector<Slice> adamw_;
  int64_t scratch_size_ = 0;  // Size for the largest matrix.
  std::unique_ptr<ScratchPool<T>> scratch_;
  std::vector<double> partial_sums_;
  std::vector<T> m_;
  std::vector<T> v_;
  int64_t updates_ = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_OPTIMIZER_H_
