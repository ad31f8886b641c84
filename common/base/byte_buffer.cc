#include "common/base/byte_buffer.h"

#include <algorithm>
#include <bit>
#include <deque>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "absl/synchronization/mutex.h"

namespace causeway {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// Below this, large pages would weigh: the last one is seldom full.
constexpr size_t kLargePagesFrom = 16 * kLargePage;
// Sizes are rounded up to so many steps per power of two, so that one block serves for the next.
constexpr size_t kSizeSteps = 16;

// Returns the size of the block that is asked of the system. Untouched pages cost nothing.
size_t BlockBytes(size_t bytes) {
  const size_t step = std::max(kLargePage, std::bit_floor(bytes) / kSizeSteps);
  return (bytes + step - 1) / step * step;
}

void* NewBlock(size_t bytes) {
  void* const memory = ::operator new (bytes, std::align_val_t{kLargePage});
#if defined(__linux__)
  // A hint: without it the memory is as good, in small pages.
  if (bytes >= kLargePagesFrom) static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
#endif
  return memory;
}

void DeleteBlock(void* memory) { ::operator delete (memory, std::align_val_t{kLargePage}); }

// Large blocks, in use and kept. Thread-safe.
class BlockStore {
 public:
  void* Take(size_t bytes) {
    void* memory = nullptr;
    {
      Superfluous superfluous;
      absl::MutexLock lock(&mutex_);
      // The one freed last: its pages may be in a cache.
      const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                      [&](const Block& block) { return block.bytes == bytes; });
      if (found != kept_.rend()) {
        memory = found->memory;
        kept_.erase(std::next(found).base());
        count_.kept_bytes -= bytes;
      }
      count_.used_bytes += bytes;
      count_.most_used_bytes = std::max(count_.most_used_bytes, count_.used_bytes);
      Trim(superfluous);
    }
    return memory == nullptr ? NewBlock(bytes) : memory;
  }

  void Return(void* memory, size_t bytes) {
    Superfluous superfluous;
    absl::MutexLock lock(&mutex_);
    count_.used_bytes -= bytes;
    count_.kept_bytes += bytes;
    kept_.push_back({memory, bytes});
    Trim(superfluous);
  }

  void SetLimit(size_t bytes) {
    Superfluous superfluous;
    absl::MutexLock lock(&mutex_);
    limit_ = bytes;
    Trim(superfluous);
  }

  LargeBlocks count() const {
    absl::MutexLock lock(&mutex_);
    return count_;
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
  };
  // Deletes its blocks. That takes time: it outlives the lock.
  struct Superfluous {
    ~Superfluous() {
      for (const Block& block : blocks) DeleteBlock(block.memory);
    }
    std::deque<Block> blocks;
  };

  // Takes what is too much out of kept_.
  void Trim(Superfluous& superfluous) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (count_.kept_bytes > std::min(limit_, count_.most_used_bytes - count_.used_bytes)) {
      // A block that alone is too much must not cost the others.
      const bool newest = kept_.back().bytes > limit_;
      superfluous.blocks.push_back(newest ? kept_.back() : kept_.front());
      newest ? kept_.pop_back() : kept_.pop_front();
      count_.kept_bytes -= superfluous.blocks.back().bytes;
    }
  }

  mutable absl::Mutex mutex_;
  size_t limit_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Block> kept_ ABSL_GUARDED_BY(mutex_);  // The one freed last at the back.
  LargeBlocks count_ ABSL_GUARDED_BY(mutex_);
};

BlockStore& Blocks() {
  static BlockStore& blocks = *new BlockStore;  // Outlives whoever frees last.
  return blocks;
}

}  // namespace

void* AllocateBytes(size_t bytes) {
  return bytes < kLargeBlockBytes ? ::operator new(bytes) : Blocks().Take(BlockBytes(bytes));
}

void FreeBytes(void* memory, size_t bytes) {
  if (bytes < kLargeBlockBytes) {
    ::operator delete(memory);
  } else {
    Blocks().Return(memory, BlockBytes(bytes));
  }
}

void KeepFreedBlocks(size_t bytes) { Blocks().SetLimit(bytes); }

LargeBlocks CountLargeBlocks() { return Blocks().count(); }

}  // namespace causeway
