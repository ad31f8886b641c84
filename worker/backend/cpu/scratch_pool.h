// Working memory for tasks: one slot per thread of a pool, taken for the length of a task.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace causeway::worker {

// std::vector whose values start at a cache line and, where they fill several large pages, lie in
// large pages: matrix products walk over strides that would otherwise exhaust the TLB.

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr size_t kCacheLine = 64;
  static constexpr size_t kLargePage = size_t{2} << 20;

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT: allocators convert.

  static std::align_val_t Alignment(size_t size) {
    return std::align_val_t{size * sizeof(T) >= 2 * kLargePage ? kLargePage : kCacheLine};
  }
  T* allocate(size_t size) {
    const std::align_val_t alignment = Alignment(size);
    void* const values = ::operator new(size * sizeof(T), alignment);
#ifdef MADV_HUGEPAGE
    // Only advice: where it fails, pages are small and everything works.
    if (alignment == std::align_val_t{kLargePage}) {
      madvise(values, size * sizeof(T) / kLargePage * kLargePage, MADV_HUGEPAGE);
    }
#endif
    return static_cast<T*>(values);
  }
  void deallocate(T* values, size_t size) { ::operator delete(values, Alignment(size)); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// A count or an index, as containers take it.
inline size_t Size(int64_t value) { return static_cast<size_t>(value); }

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
