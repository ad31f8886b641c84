// The values of a safetensors' tensor, whatever its floating-point type.
#ifndef CAUSEWAY_COMMON_WEIGHTS_TENSOR_VALUES_H_
#define CAUSEWAY_COMMON_WEIGHTS_TENSOR_VALUES_H_

#include <cstdint>
#include <string>

#include "common/files/safetensors.h"

namespace causeway {

// Reads F32, BF16 and F16, each exactly. The tensor's bytes may lie at any address and outlive
// this.
class TensorValues {
 public:
  // Its dtype is one that Reads names.
  explicit TensorValues(const SafeTensor& tensor)
      : bytes_(tensor.bytes.data()), wide_(tensor.dtype == "F32"), half_(tensor.dtype == "F16") {}

  static bool Reads(const std::string& dtype) {
    return dtype == "F32" || dtype == "BF16" || dtype == "F16";
  }

  float At(int64_t index) const;

 private:
  const uint8_t* const bytes_;
  const bool wide_;
  const bool half_;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_WEIGHTS_TENSOR_VALUES_H_
