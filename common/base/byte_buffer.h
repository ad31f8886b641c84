// Bytes that are about to be overwritten anyway.
#ifndef CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_
#define CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace causeway {

// Memory as operator new gives it. Where it takes many pages, large ones are asked for: to find a
// gigabyte page by page, at the first touch of each, takes longer than to fill it.
void* AllocateBytes(size_t bytes);
// `bytes` as at AllocateBytes.
void FreeBytes(void* memory, size_t bytes);

// From now on blocks of kLargeBlockBytes or more that are freed stay with the process for the next
// ones of about their size, up to `bytes` in all; 0, as at first: none. The system clears every
// page that it hands out, which takes as long as receiving it does: whoever fills blocks of the
// same sizes over and over should not have it done each time. Large blocks in use and kept together
// never exceed what was in use at once before; those freed longest ago go first. Thread-safe.
void KeepFreedBlocks(size_t bytes);
inline constexpr size_t kLargeBlockBytes = size_t{4} << 20;

// Counts of large blocks.
struct LargeBlocks {
  size_t used_bytes = 0;
  size_t most_used_bytes = 0;  // At once, so far.
  size_t kept_bytes = 0;
};
LargeBlocks CountLargeBlocks();

// As std::allocator, but elements that are made without a value get none: vector(n) and resize(n)
// do not touch new memory, which several threads can then fill at once.
template <typename T>
class UninitializedAllocator : public std::allocator<T> {
 public:
  using std::allocator<T>::allocator;

  T* allocate(size_t count) {  // NOLINT(readability-identifier-naming): the standard's names.
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(AllocateBytes(count * sizeof(T)));
  }
  void deallocate(T* elements, size_t count) {  // NOLINT(readability-identifier-naming)
    FreeBytes(elements, count * sizeof(T));
  }

  template <typename U>
  void construct(U* element) {  // NOLINT(readability-identifier-naming)
    ::new (static_cast<void*>(element)) U;
  }
  template <typename U, typename... Args>
  void construct(U* element, Args&&... args) {  // NOLINT(readability-identifier-naming)
    std::construct_at(element, std::forward<Args>(args)...);
  }
};

// resize() leaves new bytes undefined.
using ByteBuffer = std::vector<uint8_t, UninitializedAllocator<uint8_t>>;
// Likewise.
using FloatBuffer = std::vector<float, UninitializedAllocator<float>>;

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_
