// An object that a worker pushed.
#ifndef CAUSEWAY_SERVER_CORE_RECEIVED_OBJECT_H_
#define CAUSEWAY_SERVER_CORE_RECEIVED_OBJECT_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/shared_bytes.h"

namespace causeway::server {

// A whole object, and what whoever received it knows of it already.
struct ReceivedObject {
  template <typename Bytes>
  requires std::convertible_to<Bytes, SharedBytes>
  // Implicit: whoever knows nothing hands over the bytes as they are.
  ReceivedObject(Bytes&& the_bytes)  // NOLINT(google-explicit-constructor)
      : bytes(std::forward<Bytes>(the_bytes)) {}

  SharedBytes bytes;
  // TreeHash of the bytes, from checksums that were verified as the leaves came.
  std::optional<uint64_t> tree_hash = {};
  // By leaf, what Coordinator::MeasureLeaf said of it: may be empty.
  std::vector<std::vector<double>> squares = {};
};

// Called at most once, without a lock: the round that an object was to come for has closed.
using RoundClosed = std::function<void()>;

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_RECEIVED_OBJECT_H_
