#include "server/access/watched_list.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string HashOf(const std::string& token) { return TokenLine(token, "").substr(0, 64); }

const std::string kSecret(64, 's');
const std::string kOther(64, 'o');

TEST(Tokens, AreListedByTheirHashes) {
  const auto entries =
      ParseTokens(absl::StrCat("# a comment\n\n", HashOf(kSecret), " worker site-a\n  ",
                               HashOf(kOther), "\toperator   ops\r\n"),
                  "file")
          .value();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].identity, (Identity{kEveryRun, Role::kWorker, "site-a"}));
  EXPECT_EQ(entries[1].identity, (Identity{kEveryRun, Role::kOperator, "ops"}));
}

TEST(Tokens, BadLinesAreNamed) {
  const std::string good = absl::StrCat(HashOf(kSecret), " worker a");
  for (const std::string& bad :
       {std::string("x worker a"), HashOf(kSecret).substr(1) + " worker a", HashOf(kSecret),
        HashOf(kSecret) + " worker", HashOf(kSecret) + " root a", HashOf(kSecret) + " worker a b",
        HashOf(kSecret) + " worker a/b", std::string(kSecret + " worker a"), good}) {
    EXPECT_THAT(ParseTokens(absl::StrCat(good, "\n", bad), "file"),
                StatusIs(kInvalidArgument, HasSubstr("file:2")))
        << bad;
  }
}

TEST(Tokens, AnyTextIsReadOrRefused) {
  std::mt19937 random(3);
  const std::string good =
      absl::StrCat(HashOf(kSecret), " worker a\n", HashOf(kOther), " worker b");
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (int changes = 0; changes < 3; ++changes) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    ParseTokens(text.substr(0, random() % (text.size() + 1)), "file").IgnoreError();
  }
}

TEST(TokenTable, KnowsWhoseTokenItIs) {
  const TestFolder folder;
  const std::string file = folder.Write(
      "tokens", absl::StrCat(HashOf(kSecret), " worker a\n", HashOf(kOther), " observer b\n"));
  const auto table = TokenTable::Open(file).value();
  EXPECT_EQ(table->Find(kSecret)->identity.name, "a");
  EXPECT_EQ(table->Find(kOther)->identity.role, Role::kObserver);
  EXPECT_FALSE(table->Find("").ok());
  EXPECT_FALSE(table->Find(kSecret + "s").ok());
  // Whoever reads the file cannot use what he has read.
  EXPECT_FALSE(table->Find(HashOf(kSecret)).ok());
}

absl::StatusCode Code(TokenTable& table, const std::string& token) {
  return table.Find(token).status().code();
}

TEST(TokenTable, AChangedFileCountsFromTheNextCallOnAndItsRefusalsAreFinalOnceItHasSettled) {
  const TestFolder folder;
  FakeClock clock;
  const std::string with = absl::StrCat(HashOf(kSecret), " worker a\n");
  const auto table = TokenTable::Open(folder.Write("tokens", with), &clock).value();
  folder.Write("tokens", absl::StrCat(HashOf(kOther), " worker a\n"));
  EXPECT_EQ(Code(*table, kSecret), kUnavailable) << "its line may still come";
  EXPECT_EQ(Code(*table, "no token"), kUnauthenticated);
  EXPECT_TRUE(table->Find(kOther).ok());
  clock.Advance(kListSettles);
  EXPECT_EQ(Code(*table, kSecret), kUnauthenticated);
  folder.Write("tokens", "# all are gone\nnobody\n");
  EXPECT_THAT(table->Find(kOther), StatusIs(kUnavailable, HasSubstr("that is final only in 5s")));
  clock.Advance(kListSettles);
  EXPECT_EQ(Code(*table, kOther), kUnauthenticated);
  folder.Write("tokens", with);
  EXPECT_TRUE(table->Find(kSecret).ok());
}

TEST(TokenTable, WhatWasFoundIsHeldUntilItsLineIsGoneOrMeansSomebodyElse) {
  const TestFolder folder;
  FakeClock clock;
  const std::string both =
      absl::StrCat(HashOf(kSecret), " worker a\n", HashOf(kOther), " worker b\n");
  const auto table = TokenTable::Open(folder.Write("tokens", both), &clock).value();
  const TokenEntry a = *table->Find(kSecret);
  const TokenEntry b = *table->Find(kOther);
  EXPECT_TRUE(table->Holds(a).ok());
  folder.Write("tokens", absl::StrCat("# moved\n", HashOf(kOther), " worker b\n"));
  EXPECT_THAT(table->Holds(a), StatusIs(kUnavailable));
  clock.Advance(kListSettles);
  EXPECT_THAT(table->Holds(a), StatusIs(kUnauthenticated));
  EXPECT_TRUE(table->Holds(b).ok());
  folder.Write("tokens", absl::StrCat(HashOf(kOther), " observer b-and-more\n"));
  EXPECT_THAT(table->Holds(b), StatusIs(kUnauthenticated));
}

// As cp and scp write, in pieces: nobody who is on the list before and after it is refused for
// good.
TEST(TokenTable, AListThatIsBeingWrittenRefusesNobodyForGood) {
  const TestFolder folder;
  FakeClock clock;
  const std::string text =
      absl::StrCat(HashOf(kSecret), " worker a\n", HashOf(kOther), " worker b-and-more\n");
  const auto table = TokenTable::Open(folder.Write("tokens", text), &clock).value();
  const TokenEntry b = *table->Find(kOther);
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    folder.Write("tokens", text.substr(0, bytes));
    const bool is_cut = bytes > text.find('\n') && bytes < text.size();
    EXPECT_TRUE(table->Find(kSecret).ok()) << bytes;
    EXPECT_EQ(Code(*table, kOther), is_cut ? kUnavailable : kOk) << bytes;
    EXPECT_EQ(table->Holds(b).code(), Code(*table, kOther)) << bytes;
    clock.Advance(absl::Milliseconds(10));
  }
}

TEST(Tokens, AFileWithoutOneSaysThatNobodyCountsOrIsNoList) {
  for (const char* none : {"", "\n\n", "# a comment\n", "nobod"}) {
    EXPECT_THAT(ParseTokens(none, "file"), StatusIs(kInvalidArgument));
  }
  EXPECT_THAT(std::string(ParseTokens("# none", "file").status().message()),
              AllOf(HasSubstr("file holds no token"), HasSubstr("\"nobody\"")));
  const auto nobody = ParseTokens("# for a while\n nobody\n", "file").value();
  EXPECT_TRUE(nobody.empty());
  EXPECT_THAT(
      std::string(ParseTokens(absl::StrCat("nobody\n", HashOf(kSecret), " worker a"), "file")
                      .status()
                      .message()),
      HasSubstr("holds 1 token: leave one of them out"));
}

TEST(TokenTable, AListThatStaysAwayEmptyOrMalformedLeavesTheLastOneInForce) {
  const TestFolder folder;
  FakeClock clock;
  const std::string text = absl::StrCat(HashOf(kSecret), " worker a\n");
  const auto table = TokenTable::Open(folder.Write("tokens", text), &clock).value();
  for (const auto& broken : {std::optional<std::string>(), std::optional<std::string>(""),
                             std::optional<std::string>("\n# to be written\n"),
                             std::optional<std::string>(text.substr(0, 40))}) {
    if (broken.has_value()) {
      folder.Write("tokens", *broken);
    } else {
      std::filesystem::remove(folder.path("tokens"));
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(table->Find(kSecret)->identity.name, "a");
      EXPECT_EQ(Code(*table, kOther), kUnavailable) << "it may be a new one";
      clock.Advance(absl::Hours(1));
    }
    folder.Write("tokens", text);
    EXPECT_TRUE(table->Find(kSecret).ok());
    EXPECT_EQ(Code(*table, kOther), kUnauthenticated);
  }
  // A last line without an end counts once nothing has come for a while.
  folder.Write("tokens", absl::StrCat(HashOf(kOther), " worker b"));
  EXPECT_TRUE(table->Find(kSecret).ok());
  clock.Advance(kListSettles);
  EXPECT_EQ(table->Find(kOther)->identity.name, "b");
  EXPECT_EQ(Code(*table, kSecret), kUnauthenticated);
}

TEST(TokenTable, FilesThatOthersMayWriteAreRefused) {
  const TestFolder folder;
  const std::string file = folder.Write("tokens", absl::StrCat(HashOf(kSecret), " worker a\n"));
  ASSERT_EQ(chmod(file.c_str(), 0646), 0);
  EXPECT_THAT(TokenTable::Open(file), StatusIs(kFailedPrecondition));
  const absl::Status none = TokenTable::Open(folder.path("none")).status();
  EXPECT_THAT(none, StatusIs(kNotFound, HasSubstr("none: No such file or directory")));
}

// A coordinator that starts while its list is being copied knows nobody who was on it before.
TEST(TokenTable, AListThatWasCutAtTheStartRefusesNobodyForGoodUntilItHasSettled) {
  const TestFolder folder;
  const std::string text =
      absl::StrCat(HashOf(kSecret), " worker a\n", HashOf(kOther), " worker b-and-more\n");
  const size_t first_line = text.find('\n') + 1;
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    FakeClock clock(absl::Now());
    const std::string file = folder.WriteNow("tokens", text.substr(0, bytes));
    const auto table = TokenTable::Open(file, &clock);
    if (!ParseTokens(text.substr(0, bytes), file).ok()) {
      EXPECT_THAT(table,
                  StatusIs(kUnavailable,
                           HasSubstr("was written a moment ago: in case it still is, start again")))
          << bytes;
      continue;
    }
    ASSERT_TRUE(table.ok()) << bytes << table.status();
    EXPECT_EQ(Code(**table, kSecret), bytes < first_line ? kUnavailable : kOk) << bytes;
    EXPECT_EQ(Code(**table, kOther), bytes < text.size() ? kUnavailable : kOk) << bytes;
    EXPECT_EQ(Code(**table, "no token"), kUnavailable) << bytes;
    folder.WriteNow("tokens", text);
    EXPECT_EQ((*table)->Find(kOther)->identity.name, "b-and-more") << bytes;
    clock.Advance(kListSettles);
    EXPECT_EQ(Code(**table, "no token"), kUnauthenticated) << bytes;
  }
}

TEST(TokenTable, AListThatStaysAsItWasAtTheStartIsFinalOnceItHasSettled) {
  const TestFolder folder;
  FakeClock clock(absl::Now());
  const auto table =
      TokenTable::Open(folder.WriteNow("tokens", absl::StrCat(HashOf(kSecret), " worker a")),
                       &clock)
          .value();
  EXPECT_EQ(Code(*table, kSecret), kUnavailable) << "its name may go on";
  clock.Advance(kListSettles);
  EXPECT_EQ(table->Find(kSecret)->identity.name, "a");
  EXPECT_EQ(Code(*table, kOther), kUnauthenticated);
}

}  // namespace
}  // namespace causeway::server
