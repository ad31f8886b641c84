#include "server/access/watched_list.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kFingerprint(64, 'a');
const Identity kSiteA = {.run = "*", .role = Role::kWorker, .name = "site-a"};

TEST(RefusedIdentities, NamesAndFingerprintsAreReadAndTheRestIsRefused) {
  std::string colons = "certificate AA";
  for (int i = 1; i < 32; ++i) colons += ":AA";
  const auto refused =
      ParseRefused("# nobody else\nworker site-a # gone\n\n" + colons + "\n", "f").value();
  EXPECT_THAT(refused, ElementsAre("certificate/" + kFingerprint, "worker/site-a"));
  for (const char* wrong :
       {"site-a", "worker", "worker site a", "certificate aa:bb", "certificate zz",
        "sha256 Fingerprint=aa:bb", "sha1 Fingerprint=aa:bb"}) {
    EXPECT_THAT(ParseRefused(std::string("\n") + wrong, "f"),
                StatusIs(kInvalidArgument, HasSubstr("f, line 2")))
        << wrong;
  }
}

TEST(RefusedIdentities, AFingerprintIsReadAsOpenSslPrintsIt) {
  std::string printed = "Fingerprint=AA";
  for (int i = 1; i < 32; ++i) printed += ":AA";
  for (const char* before : {"sha256 ", "SHA256 ", "certificate sha256 "}) {
    const auto refused = ParseRefused(before + printed + "\n", "f");
    ASSERT_TRUE(refused.ok()) << before << refused.status();
    EXPECT_THAT(*refused, ElementsAre("certificate/" + kFingerprint));
  }
}

TEST(RefusedIdentities, ACertificateIsRefusedAndItsNameIsNot) {
  const TestFolder folder;
  const auto list =
      RefusedIdentities::Open(folder.Write("f", "certificate " + kFingerprint)).value();
  EXPECT_THAT(list->Check(kSiteA, kFingerprint),
              StatusIs(kUnauthenticated, HasSubstr("this certificate of worker site-a")));
  EXPECT_TRUE(list->Check(kSiteA, std::string(64, 'b')).ok()) << "the one after it";
  EXPECT_TRUE(list->Check(kSiteA, "").ok()) << "with a token";
}

TEST(RefusedIdentities, WhileTheListIsAwayOrMalformedTheLastOneCounts) {
  const TestFolder folder;
  FakeClock clock;
  const std::string file = folder.Write("f", "worker site-a\n");
  const Identity site_b = {.run = "*", .role = Role::kWorker, .name = "site-b"};
  const auto list = RefusedIdentities::Open(file, &clock).value();
  for (const bool away : {true, false}) {
    away ? void(std::filesystem::remove(file)) : void(folder.Write("f", "certificate sha256\n"));
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(list->Check(kSiteA, ""), StatusIs(kUnauthenticated));
      EXPECT_TRUE(list->Check(site_b, "").ok());
      clock.Advance(absl::Hours(1));
    }
  }
  folder.Write("f", "worker site-b\n");
  EXPECT_THAT(list->Check(site_b, ""), StatusIs(kUnauthenticated));
}

TEST(RefusedIdentities, WhoIsTakenOffTheListComesInOnceItHasSettled) {
  const TestFolder folder;
  FakeClock clock;
  const std::string file = folder.Write("f", "worker site-a\nworker site-b\n");
  const auto list = RefusedIdentities::Open(file, &clock).value();
  // Emptied, or what a copy has written so far: nobody slips in meanwhile.
  for (const char* text : {"", "worker site-b\n"}) {
    folder.Write("f", text);
    EXPECT_THAT(list->Check(kSiteA, ""), StatusIs(kUnavailable));
  }
  clock.Advance(kListSettles);
  EXPECT_TRUE(list->Check(kSiteA, "").ok());
  folder.Write("f", "");
  clock.Advance(kListSettles);
  EXPECT_TRUE(list->Check(kSiteA, "").ok()) << "an empty list refuses nobody";
}

TEST(RefusedIdentities, AListThatWasWrittenJustBeforeTheStartLetsNobodyInUntilItHasSettled) {
  const TestFolder folder;
  FakeClock clock(absl::Now());
  const std::string file = folder.WriteNow("f", "worker site-b\nworker site");
  const auto list = RefusedIdentities::Open(file, &clock).value();
  const Identity site = {.run = "*", .role = Role::kWorker, .name = "site"};
  EXPECT_THAT(list->Check(kSiteA, ""), StatusIs(kUnavailable));
  EXPECT_THAT(list->Check(site, ""), StatusIs(kUnavailable)) << "or site-a";
  folder.WriteNow("f", "worker site-b\nworker site-a\n");
  EXPECT_THAT(list->Check(kSiteA, ""), StatusIs(kUnauthenticated));
  clock.Advance(kListSettles);
  EXPECT_TRUE(list->Check(site, "").ok());
}

}  // namespace
}  // namespace causeway::server
