// Tells the thread sanitizer what absl::Mutex and absl::CondVar order. Debian's Abseil is built
// without it, so it would take every access under such a lock for a race. Built in the tsan preset
// only.
//
// The functions below stand before those of the library for everybody in the process: for our
// objects, and for gRPC, whose callbacks are ordered by locks of its own. Each calls the one that
// it hides.
//
// The library evaluates conditions of waiting threads on whatever thread unlocks, at a moment when
// the sanitizer sees the lock as free already: reads inside of the library do not count.
#include <dlfcn.h>

#include <atomic>

#include "absl/synchronization/mutex.h"

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

}  // extern "C"

namespace {

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// A call's effect on the lock from the caller's point of view.
struct Locks {
  explicit Locks(absl::Mutex* mutex) : taken(mutex) {}
  ~Locks() { __tsan_acquire(taken); }
  absl::Mutex* taken;
  IgnoreReads inside{};
};

struct Unlocks {
  explicit Unlocks(absl::Mutex* mutex) { __tsan_release(mutex); }
  IgnoreReads inside{};
};

struct Waits {
  explicit Waits(absl::Mutex* mutex) : locks(mutex) { __tsan_release(mutex); }
  Locks locks;
};

// The function of that name in the libraries.
void* Hidden(std::atomic<void*>& found, const char* symbol) {
  void* function = found.load(std::memory_order_acquire);
  if (function == nullptr) {
    function = dlsym(RTLD_NEXT, symbol);
    found.store(function, std::memory_order_release);
  }
  return function;
}

}  // namespace

// CAUSEWAY_HIDE(symbol, result, effect, mutex, parameters, arguments) defines what is called
// instead of the library's `symbol`.
#define CAUSEWAY_HIDE(symbol, result, effect, mutex, parameters, arguments)             \
  extern "C" __attribute__((visibility("default"))) result symbol parameters {          \
    static constinit std::atomic<void*> found{nullptr};                                 \
    const auto hidden = reinterpret_cast<result(*) parameters>(Hidden(found, #symbol)); \
    const effect around(mutex);                                                         \
    return hidden arguments;                                                            \
  }

CAUSEWAY_HIDE(_ZN4absl7debian35Mutex4LockEv, void, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex10ReaderLockEv, void, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex13ReaderTryLockEv, bool, Locks, self, (absl::Mutex * self),
              (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex7TryLockEv, bool, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE, void, Locks, self,
              (absl::Mutex * self, const absl::Condition& condition), (self, condition))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex6UnlockEv, void, Unlocks, self, (absl::Mutex * self), (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex12ReaderUnlockEv, void, Unlocks, self, (absl::Mutex * self),
              (self))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, void, Waits, self,
              (absl::Mutex * self, const absl::Condition& condition), (self, condition))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool, Waits,
              self, (absl::Mutex * self, const absl::Condition& condition, absl::Duration timeout),
              (self, condition, timeout))
CAUSEWAY_HIDE(_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool, Waits,
              self, (absl::Mutex * self, const absl::Condition& condition, absl::Time deadline),
              (self, condition, deadline))
CAUSEWAY_HIDE(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, void, Waits, mutex,
              (absl::CondVar * self, absl::Mutex* mutex), (self, mutex))
CAUSEWAY_HIDE(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, bool, Waits,
              mutex, (absl::CondVar * self, absl::Mutex* mutex, absl::Duration timeout),
              (self, mutex, timeout))
CAUSEWAY_HIDE(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, bool, Waits, mutex,
              (absl::CondVar * self, absl::Mutex* mutex, absl::Time deadline),
              (self, mutex, deadline))
