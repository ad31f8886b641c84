// Memory of the CPU backend: arrays in large pages, and what a task works in.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

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

// Working memory of the calling thread, of any content; its until the thread asks again. Kept as
// long as the thread, as large as it was at most.
template <typename T>
std::span<T> ThreadScratch(int64_t size) {
  static thread_local AlignedVector<T> values;
  if (values.size() < Size(size)) values = AlignedVector<T>(Size(size));
  return {values.data(), Size(size)};
}

}  // namespace causeway::worker
