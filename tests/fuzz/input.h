// Takes a fuzzer's bytes apart. Where they end, everything is zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace causeway::fuzz {

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : rest_(bytes) {}
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}

  template <typename T>
  T Take() {
    static_assert(std::is_arithmetic_v<T>);
    T value = 0;
    const size_t size = std::min(sizeof(value), rest_.size());
    if (size > 0) std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }

  // At most `size` bytes, in memory of their own, so that a sanitizer sees reads beyond them.
  std::vector<uint8_t> TakeBytes(size_t size) {
    const std::span<const uint8_t> taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return {taken.begin(), taken.end()};
  }

  // `size` bytes: the rest, over and over.
  std::vector<uint8_t> Repeat(size_t size) const {
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size && !rest_.empty(); ++i) bytes[i] = rest_[i % rest_.size()];
    return bytes;
  }

  std::span<const uint8_t> rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
};

// Of two vectors or buffers.
template <typename Values>
bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

}  // namespace causeway::fuzz
