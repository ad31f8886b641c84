#include "common/rpc/token_file.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Status kRefusal = absl::PermissionDeniedError("its token and --id must agree");

class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileTest() {
    token_->ReportTo([this](const CertificateNotice& notice) {
      (notice.fit ? news_ : faults_).push_back(notice.message);
    });
  }
  void Put(const std::string& token) { folder_.Write("token", token + "\n"); }
  // A try that the peer refuses, two seconds after the last one.
  bool Refused() {
    clock_.Advance(absl::Seconds(2));
    token_->Now();
    return token_->MayPass(kRefusal);
  }

  const std::string own_ = std::string(40, 'a');
  const std::string others_ = std::string(40, 'b');
  const TestFolder folder_;
  FakeClock clock_{absl::Now()};
  std::shared_ptr<TokenFile> token_ =
      TokenFile::Open(folder_.Write("token", own_ + "\n"), clock_).value();
  std::vector<std::string> news_, faults_;
};

TEST_F(TokenFileTest, ATokenThatWasWrongFromTheStartIsRefusedForGood) {
  EXPECT_FALSE(Refused());
  EXPECT_THAT(faults_, ElementsAre());
}

TEST_F(TokenFileTest, AfterTheRefusalOfANewTokenTheOneBeforeGoesOn) {
  Put(others_);
  EXPECT_EQ(token_->Now(), others_);
  EXPECT_TRUE(Refused());
  EXPECT_EQ(token_->Now(), own_);
  EXPECT_THAT(news_, ElementsAre(HasSubstr("is another one")));
  EXPECT_THAT(faults_, ElementsAre(AllOf(HasSubstr("its token and --id must agree"),
                                         HasSubstr("the one before goes on"))));
  // The own one is back, and is no news to the peer.
  Put(own_);
  EXPECT_EQ(token_->Now(), own_);
  EXPECT_EQ(faults_.size(), 1u);
}

TEST_F(TokenFileTest, ANewTokenThatThePeerLearnsOfLaterIsShownOnceTheFormerIsRefused) {
  Put(others_);
  EXPECT_TRUE(Refused());
  EXPECT_EQ(token_->Now(), own_);
  clock_.Advance(absl::Hours(5));
  EXPECT_TRUE(Refused()) << "the former is off the list, the new one on it";
  EXPECT_EQ(token_->Now(), others_);
}

TEST_F(TokenFileTest, WhenBothAreRefusedForAMinuteThatIsFinal) {
  Put(others_);
  int tries = 0;
  while (Refused()) ASSERT_LT(++tries, 100);
  EXPECT_EQ(tries, 30) << "of two seconds each";
  EXPECT_EQ(faults_.size(), 1u);
}

TEST_F(TokenFileTest, RefusalsOfSeveralCallsAtOnceCountAsOne) {
  Put(others_);
  EXPECT_TRUE(Refused());
  EXPECT_TRUE(token_->MayPass(kRefusal)) << "of a call that was made before";
  EXPECT_EQ(token_->Now(), own_);
}

TEST_F(TokenFileTest, AFileThatIsNotFitIsSaidOnceAndTheTokenBeforeGoesOn) {
  for (const std::string& unfit : {std::string(), std::string("short\n")}) {
    folder_.Write("token", unfit);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(token_->Now(), own_);
      clock_.Advance(CertificateWatch::kSettles);
    }
  }
  std::filesystem::remove(folder_.path("token"));
  token_->Now();
  clock_.Advance(CertificateWatch::kSettles);
  EXPECT_EQ(token_->Now(), own_);
  EXPECT_THAT(faults_,
              ElementsAre(HasSubstr("token is empty"), HasSubstr("32"),
                          AllOf(HasSubstr("No such file"), HasSubstr("the token before goes on"))));
  EXPECT_TRUE(Refused()) << "another one may be on its way";
  // The first piece of one counts once nothing has come for a moment.
  folder_.Write("token", others_);
  EXPECT_EQ(token_->Now(), own_);
  clock_.Advance(CertificateWatch::kSettles);
  EXPECT_EQ(token_->Now(), others_);
}

TEST_F(TokenFileTest, AFileThatIsBeingWrittenAtTheStartIsNoReasonToStayDown) {
  EXPECT_EQ(TokenFile::Open(folder_.WriteNow("young", ""), clock_).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(TokenFile::Open(folder_.Write("old", ""), clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway
