#include "common/identity/expiry_watch.h"

#include <filesystem>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace causeway
