// The codecs of devices beside those of hosts: which kernel is which codec, and what a refusal
// says.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"

namespace causeway::worker::cuda {

// INVALID_ARGUMENT for an id without one.
absl::StatusOr<DeviceCodec> FindDeviceCodec(v1::Codec id);

// Bytes of so many values' codes.
int64_t EncodedBytes(const Codec& codec, int64_t values);

// The first value that was refused, -1 if none was.
int64_t RefusedIndex(const Refusal& refusal);

// codec.Encode's word on a value that was refused, under the number `index`; OK if none was.
absl::Status EncodeStatus(const Codec& codec, const Refusal& refusal, int64_t index);

}  // namespace causeway::worker::cuda
