// Who owns a server reactor: gRPC, from the call's start to OnDone, and besides whoever else still
// needs it, such as a task in a work queue or a callback that waits for a round.
//
//   class PullReactor final : public SelfOwned<PullReactor, grpc::ServerWriteReactor<...>> {...};
//   return PullReactor::Make(arguments);   // from the service's method
//
// Inside, shared_from_this() makes the other references. They may outlive the call, so every
// Start... and Finish is made under the reactor's own lock, after a look whether Finish was called.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace causeway {

template <typename Derived, typename Reactor>
class SelfOwned : public Reactor, public std::enable_shared_from_this<Derived> {
 public:
  template <typename... Arguments>
  static Derived* Make(Arguments&&... arguments) {
    auto reactor = std::make_shared<Derived>(std::forward<Arguments>(arguments)...);
    Derived* const raw = reactor.get();
    raw->owned_by_grpc_ = std::move(reactor);
    raw->Start();
    return raw;
  }

  void OnDone() final {
    // May be the last reference: nothing of *this may be touched after it.
    const std::shared_ptr<Derived> last = std::move(owned_by_grpc_);
  }

 private:
  std::shared_ptr<Derived> owned_by_grpc_;
};

// Reactors whose calls are under way, for whoever looks at all of them. Thread-safe.
template <typename Reactor>
class OpenReactors {
 public:
  // gRPC lets go of a reactor only after the service's method has returned it: it is still there.
  void Add(Reactor& reactor) {
    absl::MutexLock lock(&mutex_);
    reactors_.push_back(reactor.weak_from_this());
  }
  std::vector<std::shared_ptr<Reactor>> All() {
    std::vector<std::shared_ptr<Reactor>> all;
    absl::MutexLock lock(&mutex_);
    std::erase_if(reactors_, [&](const std::weak_ptr<Reactor>& weak) {
      const std::shared_ptr<Reactor> reactor = weak.lock();
      if (reactor != nullptr) all.push_back(reactor);
      return reactor == nullptr;
    });
    return all;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<Reactor>> reactors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway
