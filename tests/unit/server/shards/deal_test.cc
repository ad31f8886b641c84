#include "server/shards/deal.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

using Dealt = std::vector<std::vector<int>>;

TEST(DealTest, EqualFragmentsTakeTurns) {
  EXPECT_EQ(DealFragments({5, 5, 5, 5}, 2), (Dealt{{0, 2}, {1, 3}}));
  EXPECT_EQ(DealFragments({5, 5, 5, 5, 5, 5}, 3), (Dealt{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(DealFragments({5, 5, 5}, 1), (Dealt{{0, 1, 2}}));
}

TEST(DealTest, ALargeFragmentHasAShardToItselfWhereNeighboursPermit) {
  // The last fragment of STRIDED plans holds the embedding.
  const Dealt dealt = DealFragments({10, 10, 10, 10, 60}, 3);
  int64_t largest = 0;
  for (const std::vector<int>& shard : dealt) {
    int64_t share = 0;
    for (const int fragment : shard) share += fragment == 4 ? 60 : 10;
    largest = std::max(largest, share);
  }
  EXPECT_EQ(largest, 60);
}

TEST(DealTest, NoNeighboursOfTheScheduleMeetAndEveryFragmentIsDealtOnce) {
  for (int shards = 2; shards <= 5; ++shards) {
    for (int fragments = std::max(4, shards); fragments <= 16; ++fragments) {
      std::vector<int64_t> sizes;
      for (int i = 0; i < fragments; ++i) sizes.push_back(100 + (i * 37) % 50);
      std::vector<int> owner(static_cast<size_t>(fragments), -1);
      const Dealt dealt = DealFragments(sizes, shards);
      for (size_t shard = 0; shard < dealt.size(); ++shard) {
        EXPECT_FALSE(dealt[shard].empty());
        for (const int fragment : dealt[shard]) {
          EXPECT_EQ(owner[static_cast<size_t>(fragment)], -1);
          owner[static_cast<size_t>(fragment)] = static_cast<int>(shard);
        }
      }
      int neighbours = 0;
      for (size_t i = 0; i < owner.size(); ++i) {
        neighbours += owner[i] == owner[(i + 1) % owner.size()] ? 1 : 0;
      }
      // An odd ring cannot have two colours.
      EXPECT_EQ(neighbours, shards == 2 ? fragments % 2 : 0) << shards << " of " << fragments;
    }
  }
}

TEST(DealTest, NamesThatCannotBeAreRefused) {
  EXPECT_EQ(ParseShardNames("lead,a").value(), (std::vector<std::string>{"lead", "a"}));
  EXPECT_NE(ParseShardNames("a,b,a").status().message().find("has a twice"), std::string::npos);
  EXPECT_NE(ParseShardNames("lead").status().message().find("two or more"), std::string::npos);
  EXPECT_FALSE(ParseShardNames("a,,b").ok());
}

TEST(DealTest, ADealIsReadAsItWasWritten) {
  FileSystem& file_system = *FileSystem::Real();
  const TemporaryFolder folder;
  EXPECT_EQ(ReadDeal(file_system, folder.path()).value(), std::nullopt);
  const std::vector<DealtShard> deal = {{"lead", {0, 2}, false}, {"a", {1, 3}, true, true}};
  ASSERT_TRUE(WriteDeal(file_system, folder.path(), deal).ok());
  EXPECT_EQ(ReadDeal(file_system, folder.path()).value(), deal);
}

TEST(DealTest, ADealThatNobodyWroteIsRefused) {
  FileSystem& file_system = *FileSystem::Real();
  const TemporaryFolder folder;
  for (const char* const text : {"", "[]", "{\"shards\": [{\"name\": 3}]}",
                                 "{\"shards\": [{\"name\": \"a\", \"begun\": true, "
                                 "\"fragments\": [\"x\"]}]}"}) {
    ASSERT_TRUE(WriteFileAtomically(file_system, JoinPath(folder.path(), "shards.json"),
                                    absl::string_view(text))
                    .ok());
    EXPECT_TRUE(absl::IsDataLoss(ReadDeal(file_system, folder.path()).status())) << text;
  }
}

}  // namespace
}  // namespace causeway::server
