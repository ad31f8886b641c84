// Bytes that several hold at once, and nobody changes.
#ifndef CAUSEWAY_COMMON_BASE_SHARED_BYTES_H_
#define CAUSEWAY_COMMON_BASE_SHARED_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/byte_buffer.h"

namespace causeway {

// Copies are cheap: all of them view the same bytes, which live as long as the last one.
class SharedBytes {
 public:
  SharedBytes() = default;
  // `owner` keeps the bytes where they are.
  SharedBytes(std::span<const uint8_t> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  // Implicit, so that whoever has just made an object hands it over as it is.
  SharedBytes(std::vector<uint8_t> bytes)  // NOLINT(google-explicit-constructor)
      : SharedBytes(std::make_shared<const std::vector<uint8_t>>(std::move(bytes))) {}
  SharedBytes(ByteBuffer bytes)  // NOLINT(google-explicit-constructor)
      : SharedBytes(std::make_shared<const ByteBuffer>(std::move(bytes))) {}

  std::span<const uint8_t> view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  template <typename Container>
  explicit SharedBytes(std::shared_ptr<const Container> container)
      : bytes_(*container), owner_(std::move(container)) {}

  std::span<const uint8_t> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_SHARED_BYTES_H_
