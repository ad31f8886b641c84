#include "common/identity/certificate.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ExpiryWatch, RemindsOnceADayUntilTheCertificateIsRenewed) {
  const TestAuthority authority;
  const TestFolder folder;
  FakeClock clock(absl::Now());
  CertificateRequest request;
  request.not_after = absl::Now() + absl::Hours(24 * 10);
  const std::string file = folder.Write("cert", authority.Issue(request).certificate);
  ExpiryWatch watch(file, clock);
  EXPECT_EQ(watch.Poll(), "");
  clock.Advance(absl::Hours(25));  // Nine days are left: not near.
  EXPECT_EQ(watch.Poll(), "");
  clock.Advance(absl::Hours(72));
  EXPECT_THAT(watch.Poll(), HasSubstr("expires in"));
  EXPECT_EQ(watch.Poll(), "");
  clock.Advance(absl::Hours(23));
  EXPECT_EQ(watch.Poll(), "");
  clock.Advance(absl::Hours(2));
  EXPECT_THAT(watch.Poll(), HasSubstr("expires in"));
  clock.Advance(absl::Hours(25));
  std::filesystem::remove(file);
  EXPECT_THAT(watch.Poll(), HasSubstr(file));
  clock.Advance(absl::Hours(25));
  request.not_after = absl::Now() + absl::Hours(24 * 90);
  folder.Write("cert", authority.Issue(request).certificate);
  EXPECT_EQ(watch.Poll(), "");
}

TEST(ExpiryWatch, WithoutACertificateThereIsNothingToSay) {
  FakeClock clock;
  ExpiryWatch watch("", clock);
  clock.Advance(absl::Hours(1000));
  EXPECT_EQ(watch.Poll(), "");
}

// Lists of an authority live for two days.
class RevocationWatchTest : public ::testing::Test {
 protected:
  void Write(int number, absl::Duration ends_in) {
    folder_.Write(authority_.RevocationListName(number),
                  authority_.RevocationList({}, clock_.Now() + ends_in));
  }
  std::vector<RevocationWatch::Notice> After(absl::Duration time) {
    clock_.Advance(time);
    return watch_.Poll();
  }

  const TestAuthority authority_;
  const TestFolder folder_;
  FakeClock clock_;
  RevocationWatch watch_{folder_.path("."), clock_};
};

TEST_F(RevocationWatchTest, AListThatEndsIsToldOfBeforeAndAfter) {
  Write(0, absl::Hours(20));
  EXPECT_THAT(After(absl::ZeroDuration()), IsEmpty());
  const auto soon = After(absl::Hours(9));  // In 11 hours, of 48.
  ASSERT_THAT(soon, SizeIs(1));
  EXPECT_FALSE(soon[0].ended);
  EXPECT_THAT(soon[0].message,
              HasSubstr(absl::StrCat(authority_.RevocationListName(), " ends at")));
  EXPECT_THAT(After(absl::Hours(10)), IsEmpty()) << "it was said today";
  const auto ended = After(absl::Hours(1));
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_TRUE(ended[0].ended);
  EXPECT_THAT(ended[0].message, HasSubstr("new connections"));
  EXPECT_THAT(After(absl::Minutes(59)), IsEmpty());
  EXPECT_THAT(After(absl::Minutes(1)), SizeIs(1)) << "once an hour";
  Write(1, absl::Hours(48));
  EXPECT_THAT(After(absl::Hours(1)), IsEmpty()) << "its successor counts";
}

TEST_F(RevocationWatchTest, AListThatIsReplacedInPlaceIsWhatItWas) {
  Write(0, absl::Hours(40));
  EXPECT_THAT(After(absl::ZeroDuration()), IsEmpty());
  Write(0, absl::Hours(400));
  const auto replaced = After(absl::Minutes(1));
  ASSERT_THAT(replaced, SizeIs(1));
  EXPECT_THAT(replaced[0].message, HasSubstr("was replaced, and the former one counts"));
  EXPECT_TRUE(After(absl::Hours(41)).back().ended);
}

TEST_F(RevocationWatchTest, WhatIsNoListIsToldUntilItIsOne) {
  folder_.Write(authority_.RevocationListName(), "half of a list");
  folder_.Write("note", "OpenSSL does not look at this");
  const auto broken = After(absl::ZeroDuration());
  ASSERT_THAT(broken, SizeIs(1));
  EXPECT_THAT(broken[0].message, HasSubstr("cannot be read: nobody is refused by it"));
  Write(0, absl::Hours(40));
  EXPECT_THAT(After(absl::Minutes(1)), IsEmpty());
}

TEST_F(RevocationWatchTest, WithoutAFolderThereIsNothingToSay) {
  EXPECT_THAT(RevocationWatch("", clock_).Poll(), IsEmpty());
}

}  // namespace
}  // namespace causeway
