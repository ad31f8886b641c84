#include "common/identity/identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Identity, IsWrittenAndReadAsAUri) {
  const auto identity = ParseIdentity("causeway://*/worker/site-a").value();
  EXPECT_EQ(identity.run, kEveryRun);
  EXPECT_EQ(identity.role, Role::kWorker);
  EXPECT_EQ(identity.name, "site-a");
  for (const Role role : {Role::kObserver, Role::kWorker, Role::kOperator}) {
    const Identity written{"run.1", role, "n_2"};
    const auto read = ParseIdentity(IdentityUri(written)).value();
    EXPECT_EQ(read, written);
  }
}

TEST(Identity, OtherUrisAreRefused) {
  for (const char* const uri :
       {"", "causeway://", "causeway:///worker/a", "causeway://*/worker", "causeway://*/worker/",
        "causeway://*/worker/a/", "causeway://*/worker/a/b", "causeway://*/root/a",
        "causeway://*/Worker/a", "causeway://**/worker/a", "causeway://*/worker/a b",
        "causeway://*/worker/a%41", "causeway://a*/worker/a", "https://*/worker/a",
        "spiffe://causeway/worker/a", " causeway://*/worker/a", "CAUSEWAY://*/worker/a"}) {
    EXPECT_EQ(ParseIdentity(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
  // A name with a NUL in it must not pass for what stands before it.
  EXPECT_FALSE(ParseIdentity(absl::string_view("causeway://*/worker/a\0b", 23)).ok());
  EXPECT_FALSE(ParseIdentity("causeway://*/worker/" + std::string(65, 'a')).ok());
}

TEST(Token, MustBeLongAndPrintableAndIsNeverShown) {
  EXPECT_TRUE(CheckToken(std::string(32, 'x')).ok());
  EXPECT_TRUE(CheckToken(std::string(1024, '~')).ok());
  for (const std::string& token :
       {std::string(), std::string(31, 'x'), std::string(1025, 'x'), std::string(40, ' '),
        std::string("0123456789012345678901234567\n890123456789"), std::string(40, '\xff')}) {
    const absl::Status status = CheckToken(token);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    if (token.empty()) continue;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(token)));
  }
}

}  // namespace
}  // namespace causeway
