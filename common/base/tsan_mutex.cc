// Tells the thread sanitizer what absl::Mutex and absl::CondVar order. Debian's Abseil is built
// without it, so it would take every access under such a lock for a race. Built in the tsan preset
// only, whose linker option --wrap (CMakeLists.txt) sends the calls of our objects here.
//
// The library evaluates conditions of waiting threads on whatever thread unlocks, at a moment when
// the sanitizer sees the lock as free already: reads inside of the library do not count.
#include "absl/synchronization/mutex.h"

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// What these libraries do to memory and descriptors of their own is ordered by locks that the
// sanitizer does not see.
const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n";
}

}  // extern "C"

namespace {

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// What a call does with the lock from the caller's point of view.
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

}  // namespace

// CAUSEWAY_WRAP(symbol, result, effect, mutex, parameters, arguments) defines what the linker calls
// instead of `symbol`.
#define CAUSEWAY_WRAP(symbol, result, effect, mutex, parameters, arguments) \
  extern "C" result __real_##symbol parameters;                             \
  extern "C" result __wrap_##symbol parameters {                            \
    const effect around(mutex);                                             \
    return __real_##symbol arguments;                                       \
  }

CAUSEWAY_WRAP(_ZN4absl7debian35Mutex4LockEv, void, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex10ReaderLockEv, void, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex13ReaderTryLockEv, bool, Locks, self, (absl::Mutex * self),
              (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex7TryLockEv, bool, Locks, self, (absl::Mutex * self), (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE, void, Locks, self,
              (absl::Mutex * self, const absl::Condition& condition), (self, condition))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex6UnlockEv, void, Unlocks, self, (absl::Mutex * self), (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex12ReaderUnlockEv, void, Unlocks, self, (absl::Mutex * self),
              (self))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, void, Waits, self,
              (absl::Mutex * self, const absl::Condition& condition), (self, condition))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool, Waits,
              self, (absl::Mutex * self, const absl::Condition& condition, absl::Duration timeout),
              (self, condition, timeout))
CAUSEWAY_WRAP(_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool, Waits,
              self, (absl::Mutex * self, const absl::Condition& condition, absl::Time deadline),
              (self, condition, deadline))
CAUSEWAY_WRAP(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, void, Waits, mutex,
              (absl::CondVar * self, absl::Mutex* mutex), (self, mutex))
CAUSEWAY_WRAP(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, bool, Waits,
              mutex, (absl::CondVar * self, absl::Mutex* mutex, absl::Duration timeout),
              (self, mutex, timeout))
CAUSEWAY_WRAP(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, bool, Waits, mutex,
              (absl::CondVar * self, absl::Mutex* mutex, absl::Time deadline),
              (self, mutex, deadline))
