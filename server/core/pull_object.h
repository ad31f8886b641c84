// An object that a worker pulls.
#ifndef CAUSEWAY_SERVER_CORE_PULL_OBJECT_H_
#define CAUSEWAY_SERVER_CORE_PULL_OBJECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"

namespace causeway::server {

// An encoded fragment, ready to be pulled. Immutable.
struct PullObject {
  v1::PullHeader header;
  ByteBuffer bytes;
  // The checksums of the leaves that object_hash is made of, where they are known; or empty.
  std::vector<uint64_t> leaves;
};

// Called once: with the object, or with the reason why it never comes.
using PullCallback = std::function<void(absl::StatusOr<std::shared_ptr<const PullObject>>)>;

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_PULL_OBJECT_H_
