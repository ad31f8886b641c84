// Byte pair encoding of one word: what is merged, and in which order.
#ifndef CAUSEWAY_WORKER_DATA_BPE_MERGES_H_
#define CAUSEWAY_WORKER_DATA_BPE_MERGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"

namespace causeway::worker {

struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

// Memory for Encode, to be used again by the same thread.
struct MergeScratch {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> ranks;
  std::vector<int32_t> previous;
  std::vector<int32_t> next;
  std::vector<uint64_t> queue;
};

// Immutable and thread-safe.
class BpeMerges {
 public:
  // A pair's rank is its index in `merges`; of a pair that is named twice, the last counts.
  // byte_tokens[b] is the token of byte b. All tokens are at least 0.
  BpeMerges(const std::array<int32_t, 256>& byte_tokens, std::span<const Merge> merges);

  // Appends the tokens of `word`, which is shorter than 2^31 bytes: beginning with its bytes, the
  // neighbors of the lowest rank are merged, the leftmost of equal ones first, until there are none
  // with a rank. Takes O(n log n) for n bytes.
  void Encode(absl::string_view word, MergeScratch& scratch, std::vector<int32_t>& tokens) const;

 private:
  struct Slot {
    uint64_t pair;
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  size_t SlotOf(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }
  const Slot& Find(int32_t left, int32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    size_t at = SlotOf(pair);
    while (slots_[at].pair != pair && slots_[at].rank != kNoRank) at = (at + 1) & mask_;
    return slots_[at];
  }
  void Insert(const Merge& merge, uint32_t rank);
  void EncodeShort(absl::string_view word, std::vector<int32_t>& tokens) const;
  void EncodeLong(absl::string_view word, MergeScratch& scratch,
                  std::vector<int32_t>& tokens) const;

  std::array<int32_t, 256> byte_tokens_;
  // Open addressing; a slot without a rank is free. At least half of them are.
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_BPE_MERGES_H_
