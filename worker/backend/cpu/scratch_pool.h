// Working memory for tasks: one slot per thread of a pool, taken for the length of a task.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_SCRATCH_POOL_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_SCRATCH_POOL_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/cpu/aligned_vector.h"

namespace causeway::worker {

// Thread-safe for at most `slots` leases at a time.
template <typename T>
class ScratchPool {
 public:
  ScratchPool(size_t slots, size_t slot_size) : slots_(slots) {
    for (AlignedVector<T>& slot : slots_) {
      slot.resize(slot_size);
      free_.push_back(slot.data());
    }
  }

  class Lease {
   public:
    explicit Lease(ScratchPool* pool) : pool_(pool) {
      absl::MutexLock lock(&pool_->mutex_);
      data_ = pool_->free_.back();
      pool_->free_.pop_back();
    }
    ~Lease() {
      absl::MutexLock lock(&pool_->mutex_);
      pool_->free_.push_back(data_);
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T* data() const { return data_; }

   private:
    ScratchPool* pool_;
    T* data_;
  };

 private:
  std::vector<AlignedVector<T>> slots_;
  absl::Mutex mutex_;
  std::vector<T*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_SCRATCH_POOL_H_
