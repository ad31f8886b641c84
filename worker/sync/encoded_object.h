// A delta, encoded, with the checksums that its transfer needs.
#ifndef CAUSEWAY_WORKER_SYNC_ENCODED_OBJECT_H_
#define CAUSEWAY_WORKER_SYNC_ENCODED_OBJECT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker {

struct EncodedObject {
  ByteBuffer bytes;
  std::vector<uint64_t> leaves;  // LeafChecksums(bytes).
};

// Encodes as codec.Encode does, into an object of its own, with Encode's errors. Each leaf's
// checksum is taken while its codes are in a cache. To read the whole object again would take a
// quarter of the time that loopback needs to carry it.
absl::StatusOr<EncodedObject> EncodeObject(const Codec& codec, std::span<const float> base,
                                           std::span<const float> target,
                                           const ErrorFeedback& feedback);

// Upper bound on the bytes of deltas and answers in flight.
size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_ENCODED_OBJECT_H_
