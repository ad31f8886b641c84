#include "worker/backend/cuda/kernels/device_codec.h"

#include "absl/strings/str_cat.h"
#include "common/codec/difference_codec.h"

namespace causeway::worker::cuda {

absl::StatusOr<DeviceCodec> FindDeviceCodec(v1::Codec id) {
  switch (id) {
    case v1::FP32:
      return DeviceCodec::kFp32;
    case v1::BF16:
      return DeviceCodec::kBf16;
    case v1::INT8:
      return DeviceCodec::kInt8;
    case v1::INT4:
      return DeviceCodec::kInt4;
    case v1::E3M0:
      return DeviceCodec::kE3m0;
    case v1::E2M1:
      return DeviceCodec::kE2m1;
    case v1::LM2:
      return DeviceCodec::kLm2;
    case v1::SIGN1:
      return DeviceCodec::kSign1;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("devices have no codec ", static_cast<int>(id)));
  }
}

int64_t EncodedBytes(const Codec& codec, int64_t values) {
  return static_cast<int64_t>(codec.EncodedBytes(static_cast<size_t>(values)));
}

int64_t RefusedIndex(const Refusal& refusal) {
  return refusal.index_inverted == 0 ? -1 : static_cast<int64_t>(~refusal.index_inverted);
}

absl::Status EncodeStatus(const Codec& codec, const Refusal& refusal, int64_t index) {
  if (refusal.index_inverted == 0) return absl::OkStatus();
  const auto number = static_cast<size_t>(index);
  if (codec.id() == v1::FP32) return EndsNotFinite(number, refusal.base, refusal.target);
  const float largest =
      codec.id() == v1::BF16 ? std::bit_cast<float>(kLargestBf16CodecBits) : kLargestBlockMagnitude;
  return TooLarge(codec, number, refusal.difference, refusal.base, refusal.target, largest);
}

}  // namespace causeway::worker::cuda
