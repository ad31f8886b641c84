// A site's side of Session.BringModel: hands its model to a run that awaits one.
#ifndef CAUSEWAY_WORKER_LINK_BRING_MODEL_H_
#define CAUSEWAY_WORKER_LINK_BRING_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "causeway/v1/session.grpc.pb.h"

namespace causeway::worker {

struct ModelToBring {
  std::string run_id;     // As described.
  std::string worker_id;  // As in the Join that follows.
  v1::TensorTable tensors;
  // The values of tensor `index`, row-major. Called twice for each, in order: to hash them, and to
  // send them. They must not change meanwhile, and stay until the next call.
  std::function<std::span<const float>(int index)> values;
  // Asked between chunks; true ends it with CANCELLED.
  std::function<bool()> is_cancelled = [] { return false; };
};

// Blocks until the run has begun with this model, or cannot. After OK or ALREADY_EXISTS (another
// site brought the model), describe the run again and join. INVALID_ARGUMENT if the values are not
// those of the table; other errors are session.proto's. The call tries once: after an error that
// passes (common/rpc/status.h) describe the run again first. The next try goes on where this one
// broke, if the coordinator has kept that. `sent`: bytes that this try wrote.
absl::Status BringModel(v1::Session::Stub& stub, const ModelToBring& model,
                        int64_t* sent = nullptr);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_BRING_MODEL_H_
