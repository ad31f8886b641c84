// Checksums of chunks, objects and states, all built on XXH3-64.
//
// TreeHash cuts its input into leaves of kTreeLeafBytes (1 MiB, the last one shorter) and hashes
// the little-endian sequence of the leaves' XXH3-64 values. A leaf is what one chunk carries, so a
// transfer verifies as it goes, several threads can hash one object, and a prefix can be resumed
// without reading it again. The empty input has no leaves.
//
// These detect corruption; they are no defence against a forger. Authenticity is TLS's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace causeway {

inline constexpr size_t kTreeLeafBytes = size_t{1} << 20;

// XXH3-64 with seed 0.
uint64_t Checksum64(std::span<const uint8_t> data);
uint64_t Checksum64(absl::string_view data);

// The root over the leaves' checksums, in order.
uint64_t TreeRoot(std::span<const uint64_t> leaf_checksums);

// The checksums of the leaves of `data`, in order; TreeHash is their root.
std::vector<uint64_t> LeafChecksums(std::span<const uint8_t> data);
uint64_t TreeHash(std::span<const uint8_t> data);
// Hashes the values' bytes, little endian.
uint64_t TreeHash(std::span<const float> values);

// TreeHash of data that arrives in pieces of any size, without a copy of it.
class TreeHasher {
 public:
  TreeHasher();
  void Update(std::span<const uint8_t> data);
  // May be called once; the hasher is empty again afterwards.
  uint64_t Finish();

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  void EndLeaf();

  std::unique_ptr<XXH3_state_s, FreeState> leaf_;  // Hashes the leaf that has begun.
  size_t leaf_bytes_ = 0;
  std::vector<uint64_t> checksums_;
};

// 16 lower-case hexadecimal digits.
std::string HashToHex(uint64_t hash);

}  // namespace causeway
