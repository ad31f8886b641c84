// Buffers that start without values, for bytes that are overwritten anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace causeway {

// Allocates as operator new does, and asks the system for large pages: a gigabyte of small ones
// takes longer to map, page by page, than to fill.
void* AllocateBytes(size_t bytes);
// Frees what AllocateBytes(bytes) gave; `bytes` must be the same.
void FreeBytes(void* memory, size_t bytes);

// Keeps freed blocks of kLargeBlockBytes or more for the next ones of about their size, up to
// `bytes` in all. At first, and with 0, none is kept. A kept block saves the clearing of its pages
// by the system, which takes as long as receiving their content. Large blocks in use and kept
// together never exceed what was in use at once before; those freed longest ago go first.
// Thread-safe.
void KeepFreedBlocks(size_t bytes);
inline constexpr size_t kLargeBlockBytes = size_t{4} << 20;

// Counts of large blocks.
struct LargeBlocks {
  size_t used_bytes = 0;
  size_t most_used_bytes = 0;  // At once, so far.
  size_t kept_bytes = 0;
};
LargeBlocks CountLargeBlocks();

// Allocates as std::allocator does, but vector(n) and resize(n) leave new elements undefined. They
// do not touch new memory, so several threads can fill it at once.
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

// resize() leaves new elements of both undefined.
using ByteBuffer = std::vector<uint8_t, UninitializedAllocator<uint8_t>>;
using FloatBuffer = std::vector<float, UninitializedAllocator<float>>;

// Copies are cheap: all of them view the same bytes, which live as long as the last one.
class SharedBytes {
 public:
  SharedBytes() = default;
  // `owner` keeps the bytes where they are.
  SharedBytes(std::span<const uint8_t> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  // Implicit, so that whoever has just made an object hands it over as it is.
  SharedBytes(std::vector<uint8_t> bytes)  // NOLINT(google-explicit-constructor)
      : SharedBytes(std::make_shared<const std::vector<uint8_t>>(std::move(bytes))) {}
  SharedBytes(ByteBuffer bytes)  // NOLINT(google-explicit-constructor)
      : SharedBytes(std::make_shared<const ByteBuffer>(std::move(bytes))) {}

  std::span<const uint8_t> view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  template <typename Container>
  explicit SharedBytes(std::shared_ptr<const Container> container)
      : bytes_(*container), owner_(std::move(container)) {}

  std::span<const uint8_t> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace causeway
