#include "worker/data/bpe_merges.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace causeway::worker {
namespace {

// The definition, word for word: as long as there is a pair with a rank, merge the leftmost of the
// lowest.
std::vector<int32_t> EncodeByDefinition(const std::vector<Merge>& merges, const std::string& word) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  std::vector<int32_t> tokens;
  for (const char byte : word) tokens.push_back(static_cast<uint8_t>(byte));
  while (true) {
    size_t best = merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        best_at = i;
      }
    }
    if (best == merges.size()) return tokens;
    tokens[best_at] = merges[best].result;
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

std::array<int32_t, 256> Bytes() {
  std::array<int32_t, 256> bytes;
  for (int i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  return bytes;
}

// Random merges over few letters, in random order: some lead to tokens before their parts exist.
std::vector<Merge> RandomMerges(std::mt19937& engine, int letters, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < letters; ++i) tokens.push_back('a' + i);
  std::vector<Merge> merges;
  for (int i = 0; i < count; ++i) {
    const int32_t left = tokens[engine() % tokens.size()];
    const int32_t right = tokens[engine() % tokens.size()];
    merges.push_back({left, right, 256 + i});
    tokens.push_back(256 + i);
  }
  std::shuffle(merges.begin(), merges.end(), engine);
  return merges;
}

TEST(BpeMergesTest, WordsOfAnyLengthAreMergedAsDefined) {
  std::mt19937 engine(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int letters = 1 + static_cast<int>(engine() % 4);
    const std::vector<Merge> merges =
        RandomMerges(engine, letters, static_cast<int>(engine() % 60));
    const BpeMerges bpe(Bytes(), merges);
    MergeScratch scratch;
    std::string word;
    const size_t length = 1 + engine() % 120;
    for (size_t i = 0; i < length; ++i) {
      word.push_back(
          static_cast<char>('a' + static_cast<int>(engine() % static_cast<uint32_t>(letters))));
    }
    std::vector<int32_t> tokens = {-7};
    bpe.Encode(word, scratch, tokens);
    ASSERT_EQ(tokens.front(), -7);
    tokens.erase(tokens.begin());
    ASSERT_EQ(tokens, EncodeByDefinition(merges, word)) << word;
  }
}

TEST(BpeMergesTest, LastOfEqualMergesCounts) {
  const std::vector<Merge> merges = {{'a', 'b', 300}, {'b', 'c', 301}, {'a', 'b', 302}};
  const BpeMerges bpe(Bytes(), merges);
  MergeScratch scratch;
  std::vector<int32_t> tokens;
  bpe.Encode("abc", scratch, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 301}));
}

}  // namespace
}  // namespace causeway::worker
