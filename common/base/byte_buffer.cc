#include "common/base/byte_buffer.h"

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace causeway {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// Below this a rounded-up last page would weigh.
constexpr size_t kLargeBytes = 16 * kLargePage;

}  // namespace

void* AllocateBytes(size_t bytes) {
  if (bytes < kLargeBytes) return ::operator new(bytes);
  void* const memory = ::operator new (bytes, std::align_val_t{kLargePage});
#if defined(__linux__)
  // A hint: without it the memory is as good, in small pages. The last part of a page stays small,
  // as does what else the allocator keeps there.
  static_cast<void>(::madvise(memory, bytes / kLargePage * kLargePage, MADV_HUGEPAGE));
#endif
  return memory;
}

void FreeBytes(void* memory, size_t bytes) {
  if (bytes < kLargeBytes) {
    ::operator delete(memory);
  } else {
    ::operator delete (memory, std::align_val_t{kLargePage});
  }
}

}  // namespace causeway
