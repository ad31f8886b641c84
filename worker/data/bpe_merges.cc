#include "worker/data/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace causeway::worker {
namespace {

// Up to here looking through all pairs again after every merge is faster than a queue.
constexpr size_t kShortWord = 48;

uint64_t Entry(uint32_t rank, size_t at) { return uint64_t{rank} << 32 | at; }

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_tokens, std::span<const Merge> merges)
    : byte_tokens_(byte_tokens) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * merges.size() + 1));
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  slots_.assign(size, {.pair = UINT64_MAX, .rank = kNoRank, .result = -1});
  for (size_t i = 0; i < merges.size(); ++i) Insert(merges[i], static_cast<uint32_t>(i));
}

void BpeMerges::Insert(const Merge& merge, uint32_t rank) {
  const uint64_t pair =
      static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
  size_t at = SlotOf(pair);
  while (slots_[at].rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & mask_;
  slots_[at] = {.pair = pair, .rank = rank, .result = merge.result};
}

void BpeMerges::Encode(absl::string_view word, MergeScratch& scratch,
                       std::vector<int32_t>& tokens) const {
  if (word.size() <= kShortWord) {
    EncodeShort(word, tokens);
  } else {
    EncodeLong(word, scratch, tokens);
  }
}

void BpeMerges::EncodeShort(absl::string_view word, std::vector<int32_t>& tokens) const {
  std::array<int32_t, kShortWord + 1> symbols;
  std::array<uint32_t, kShortWord + 1> ranks;  // Ranks of a symbol and the next.
  size_t count = word.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_tokens_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = Find(symbols[i], symbols[i + 1]).rank;
  while (count > 1) {
    const auto best = static_cast<size_t>(
        std::min_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(count - 1)) -
        ranks.begin());
    if (ranks[best] == kNoRank) break;
    symbols[best] = Find(symbols[best], symbols[best + 1]).result;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --count;
    if (best > 0) ranks[best - 1] = Find(symbols[best - 1], symbols[best]).rank;
    if (best + 1 < count) ranks[best] = Find(symbols[best], symbols[best + 1]).rank;
  }
  tokens.insert(tokens.end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
}

void BpeMerges::EncodeLong(absl::string_view word, MergeScratch& scratch,
                           std::vector<int32_t>& tokens) const {
  const size_t count = word.size();
  std::vector<int32_t>& symbols = scratch.tokens;  // -1 where a symbol went into the one before.
  std::vector<uint32_t>& ranks = scratch.ranks;    // Ranks of a symbol and the next.
  std::vector<int32_t>& previous = scratch.previous;
  std::vector<int32_t>& next = scratch.next;
  std::vector<uint64_t>& queue = scratch.queue;
  symbols.resize(count);
  ranks.assign(count, kNoRank);
  previous.resize(count);
  next.resize(count);
  queue.clear();
  const auto end = static_cast<int32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    symbols[i] = byte_tokens_[static_cast<uint8_t>(word[i])];
    previous[i] = static_cast<int32_t>(i) - 1;
    next[i] = static_cast<int32_t>(i) + 1;
  }
  // Entries are a rank and the position of a pair's first symbol. One that does not have the rank
  // that the pair at its position has now is out of date.
  const auto rank_of = [&](size_t at) {
    return next[at] == end ? kNoRank
                           : Find(symbols[at], symbols[static_cast<size_t>(next[at])]).rank;
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    ranks[i] = rank_of(i);
    if (ranks[i] != kNoRank) queue.push_back(Entry(ranks[i], i));
  }
  const std::greater<uint64_t> lowest_first;
  std::make_heap(queue.begin(), queue.end(), lowest_first);
  const auto update = [&](size_t at) {
    ranks[at] = rank_of(at);
    if (ranks[at] == kNoRank) return;
    queue.push_back(Entry(ranks[at], at));
    std::push_heap(queue.begin(), queue.end(), lowest_first);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), lowest_first);
    const uint64_t entry = queue.back();
    queue.pop_back();
    const auto at = static_cast<size_t>(static_cast<uint32_t>(entry));
    if (symbols[at] < 0 || ranks[at] != static_cast<uint32_t>(entry >> 32)) continue;
    const auto right = static_cast<size_t>(next[at]);
    symbols[at] = Find(symbols[at], symbols[right]).result;
    symbols[right] = -1;
    ranks[right] = kNoRank;
    next[at] = next[right];
    if (next[at] != end) previous[static_cast<size_t>(next[at])] = static_cast<int32_t>(at);
    if (previous[at] >= 0) update(static_cast<size_t>(previous[at]));
    update(at);
  }
  for (size_t i = 0; i < count; i = static_cast<size_t>(next[i])) tokens.push_back(symbols[i]);
}

}  // namespace causeway::worker
