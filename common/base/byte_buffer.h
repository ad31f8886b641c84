// Bytes that are about to be overwritten anyway.
#ifndef CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_
#define CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace causeway {

// As std::allocator, but elements that are made without a value get none: vector(n) and resize(n)
// do not touch new memory, which several threads can then fill at once.
template <typename T>
class UninitializedAllocator : public std::allocator<T> {
 public:
  using std::allocator<T>::allocator;

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_BYTE_BUFFER_H_
