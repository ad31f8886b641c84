// For the targets that speak the protocol: messages with wrong fields, and a run that costs little.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/params/run_config.h"
#include "tests/fuzz/input.h"

namespace causeway::fuzz {

// Merges a serialized message of the input, of less than 64 bytes, over `message`.
inline void Edit(Input& input, google::protobuf::MessageLite& message) {
  const auto length = input.Take<uint8_t>();
  if (length >= 64) return;
  const std::vector<uint8_t> bytes = input.TakeBytes(length);
  message.MergeFromString(std::string(bytes.begin(), bytes.end()));
}

// As a choice of the input numbers them.
inline constexpr v1::Codec kCodecs[] = {v1::INT4, v1::FP32, v1::BF16,  v1::INT8,
                                        v1::E3M0, v1::E2M1, v1::SIGN1, v1::LM2};

// 1000 steps of a model with a handful of values.
inline v1::RunConfig TinyRun() {
  static const v1::RunConfig* const tiny = new v1::RunConfig(
      ParseRunConfig("model { vocabulary_size: 1 layers: 1 width: 2 heads: 1 mlp_width: 1 "
                     "sequence_length: 1 } train { steps: 1000 }",
                     "a target")
          .value());
  return *tiny;
}

}  // namespace causeway::fuzz
