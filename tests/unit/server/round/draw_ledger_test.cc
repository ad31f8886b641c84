#include "server/round/draw_ledger.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(DrawLedger, APartGoesOnBeyondWhatAnybodyContributedOfIt) {
  DrawLedger ledger;
  EXPECT_EQ(ledger.NextDraw(2, "a"), 0);
  ledger.Add("a", {{2, 0, 16}});
  ledger.Add("a", {{2, 16, 24}, {3, 5, 6}});
  ledger.Add("b", {{2, 8, 12}});
  EXPECT_EQ(ledger.NextDraw(2, "c"), 24) << "whoever takes it over";
  EXPECT_EQ(ledger.NextDraw(3, "a"), 6);
  EXPECT_EQ(ledger.NextDraw(0, "a"), 0);
}

TEST(DrawLedger, DataOfOnesOwnAreCountedByWorker) {
  DrawLedger ledger;
  ledger.Add("a", {{kOwnData, 0, 16}});
  EXPECT_EQ(ledger.NextDraw(kOwnData, "a"), 16);
  EXPECT_EQ(ledger.NextDraw(kOwnData, "b"), 0);
}

}  // namespace
}  // namespace causeway::server
