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

// Those of the list that are there still. Forgets the others.
template <typename Object>
std::vector<std::shared_ptr<Object>> Living(std::vector<std::weak_ptr<Object>>& all) {
  std::vector<std::shared_ptr<Object>> living;
  std::erase_if(all, [&](const std::weak_ptr<Object>& weak) {
    const std::shared_ptr<Object> object = weak.lock();
    if (object != nullptr) living.push_back(object);
    return object == nullptr;
  });
  return living;
}

}  // namespace causeway
