// Tells the thread sanitizer that what a thread did before it started an operation of a call comes
// before what is done when the operation has ended. Debian's gRPC is built without it and orders
// them by atomics, so it would take every message that goes from one thread to another for a race.
// Built in the tsan preset only; see tests/sanitizers/tsan_mutex.cc for what its locks order.
//
// The functions below stand before those of the library, and call them.
#include <dlfcn.h>
#include <grpc/grpc.h>

#include <atomic>

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

// Ends an operation of the callback API (grpcpp/support/callback_common.h). Null in a program that
// has none.
__attribute__((weak)) void
_ZN4grpc8internal22CallbackWithSuccessTag9StaticRunEP30grpc_completion_queue_functori(
    grpc_completion_queue_functor* tag, int ok);
__attribute__((weak)) void
_ZN4grpc8internal21CallbackWithStatusTag9StaticRunEP30grpc_completion_queue_functori(
    grpc_completion_queue_functor* tag, int ok);

}  // extern "C"

namespace {

constexpr auto kSuccess =
    &_ZN4grpc8internal22CallbackWithSuccessTag9StaticRunEP30grpc_completion_queue_functori;
constexpr auto kStatus =
    &_ZN4grpc8internal21CallbackWithStatusTag9StaticRunEP30grpc_completion_queue_functori;

void EndWithSuccess(grpc_completion_queue_functor* tag, int ok) {
  __tsan_acquire(tag);
  kSuccess(tag, ok);
}

void EndWithStatus(grpc_completion_queue_functor* tag, int ok) {
  __tsan_acquire(tag);
  kStatus(tag, ok);
}

// A tag of another kind begins with another pointer: its table of virtual functions.
void ReplaceEnd(grpc_completion_queue_functor* tag) {
  if (kSuccess != nullptr && tag->functor_run == kSuccess) tag->functor_run = EndWithSuccess;
  if (kStatus != nullptr && tag->functor_run == kStatus) tag->functor_run = EndWithStatus;
}

template <typename Function>
Function* Hidden(std::atomic<void*>& found, const char* symbol, Function* /*type*/) {
  void* function = found.load(std::memory_order_acquire);
  if (function == nullptr) {
    function = dlsym(RTLD_NEXT, symbol);
    found.store(function, std::memory_order_release);
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) grpc_call_error grpc_call_start_batch(
    grpc_call* call, const grpc_op* operations, size_t count, void* tag, void* reserved) {
  static constinit std::atomic<void*> found{nullptr};
  if (tag != nullptr) {
    ReplaceEnd(static_cast<grpc_completion_queue_functor*>(tag));
    __tsan_release(tag);
  }
  return Hidden(found, __func__, &grpc_call_start_batch)(call, operations, count, tag, reserved);
}

__attribute__((visibility("default"))) grpc_event grpc_completion_queue_next(
    grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static constinit std::atomic<void*> found{nullptr};
  const grpc_event event =
      Hidden(found, __func__, &grpc_completion_queue_next)(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

__attribute__((visibility("default"))) grpc_event grpc_completion_queue_pluck(
    grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  static constinit std::atomic<void*> found{nullptr};
  const grpc_event event =
      Hidden(found, __func__, &grpc_completion_queue_pluck)(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && tag != nullptr) __tsan_acquire(tag);
  return event;
}

}  // extern "C"
