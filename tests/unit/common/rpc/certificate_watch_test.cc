#include "common/rpc/certificate_watch.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kInterval = absl::Seconds(10);

std::string Read(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class CertificateWatchTest : public ::testing::Test {
 protected:
  CertificateWatchTest() {
    auto files = CertificateWatch::Open(
                     {.ca = options_.ca_file, .cert = options_.cert_file, .key = options_.key_file},
                     CertificateUse::kClient, kInterval, clock_.Now(), clock_)
                     .value();
    files_.emplace(std::move(files));
  }
  // What there is to say of a change: it has settled by then.
  std::optional<CertificateNotice> Look() {
    clock_.Advance(kInterval);
    EXPECT_EQ(files_->Look(), std::nullopt) << "it has just been seen to change";
    clock_.Advance(CertificateWatch::kSettles);
    return files_->Look();
  }
  // Expects that what was there at the start counts, and that this is said once.
  void ExpectUnfit(const std::string& words) {
    const auto notice = Look();
    ASSERT_TRUE(notice.has_value()) << words;
    EXPECT_FALSE(notice->fit);
    EXPECT_THAT(notice->message, AllOf(HasSubstr(words), HasSubstr("Until the files are fit")));
    for (int i = 0; i < 3; ++i) {
      clock_.Advance(kInterval);
      EXPECT_EQ(files_->Look(), std::nullopt) << "said before: " << words;
    }
    EXPECT_EQ(files_->generation(), 0);
    EXPECT_EQ(files_->set().authorities, authority_.pem());
    EXPECT_EQ(files_->set().own->chain, pair_.certificate);
    EXPECT_EQ(files_->set().own->key, pair_.key);
  }

  const TestAuthority authority_;
  const TestFolder folder_;
  FakeClock clock_{absl::Now()};
  const PemPair pair_ = IssueIdentity(authority_, "causeway://*/worker/a");
  const SecurityOptions options_ = folder_.WriteSet("a", authority_.pem(), pair_);
  std::optional<CertificateWatch> files_;
};

TEST_F(CertificateWatchTest, WhatIsNotWholeLeavesTheSetBeforeInForceAndIsSaidOnce) {
  const PemPair other = IssueIdentity(authority_, "causeway://*/worker/a");
  struct Case {
    std::string name, text, words;
  };
  for (const Case& one : {
           Case{"a.cert", "", "a.cert is empty"},
           Case{"a.cert", pair_.certificate.substr(0, pair_.certificate.size() / 2), "a.cert"},
           Case{"a.cert", other.certificate, "is not the private key of"},
           Case{"a.key", "", "a.key is empty"},
           Case{"a.key", other.key, "is not the private key of"},
           Case{"a.ca", "", "a.ca is empty"},
           Case{"a.ca", "-----BEGIN CERTIFICATE-----\nnonsense\n", "a.ca"},
       }) {
    const std::string good = Read(folder_.path(one.name));
    folder_.Write(one.name, one.text);
    ExpectUnfit(one.words);
    folder_.Write(one.name, good);
    const auto mended = Look();
    ASSERT_TRUE(mended.has_value()) << one.words;
    EXPECT_TRUE(mended->fit);
    EXPECT_EQ(mended->message,
              absl::StrCat(options_.ca_file, ", ", options_.cert_file, ", ", options_.key_file,
                           ": the files say what they said before"));
    EXPECT_EQ(files_->generation(), 0) << "nobody need dial anew";
  }
  std::filesystem::remove(options_.key_file);
  ExpectUnfit("a.key: No such file");
}

TEST_F(CertificateWatchTest, ABlipBetweenTwoLooksIsNoNews) {
  folder_.Write("a.cert", "");
  folder_.Write("a.cert", pair_.certificate);
  EXPECT_TRUE(Look()->fit);
  EXPECT_EQ(files_->generation(), 0);
  // Seen empty, and whole a moment later.
  folder_.Write("a.cert", "");
  clock_.Advance(kInterval);
  EXPECT_EQ(files_->Look(), std::nullopt);
  folder_.Write("a.cert", pair_.certificate);
  clock_.Advance(CertificateWatch::kSettles);
  EXPECT_EQ(files_->Look(), std::nullopt);
  clock_.Advance(CertificateWatch::kSettles);
  EXPECT_TRUE(files_->Look()->fit);
}

TEST_F(CertificateWatchTest, ARenewedPairCountsOnceBothFilesAreThere) {
  const PemPair renewed = IssueIdentity(authority_, "causeway://*/worker/a");
  folder_.Write("a.cert", renewed.certificate);
  ExpectUnfit("is not the private key of");
  folder_.Write("a.key", renewed.key);
  const auto notice = Look();
  ASSERT_TRUE(notice.has_value());
  EXPECT_TRUE(notice->fit);
  EXPECT_THAT(notice->message, HasSubstr("was renewed"));
  EXPECT_EQ(files_->generation(), 1);
  EXPECT_EQ(files_->set().own->chain, renewed.certificate);
  EXPECT_EQ(files_->set().own->key, renewed.key);
  clock_.Advance(kInterval);
  EXPECT_EQ(files_->Look(), std::nullopt);
}

TEST_F(CertificateWatchTest, ACertificateThatIsNotValidYetCountsWhenItIs) {
  CertificateRequest request;
  request.names = "URI:causeway://*/worker/a";
  request.not_before = absl::Now() + absl::Hours(1);
  folder_.WriteSet("a", authority_.pem(), authority_.Issue(request));
  ExpectUnfit("is valid from");
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(files_->Look()->fit);
  EXPECT_EQ(files_->generation(), 1);
}

TEST_F(CertificateWatchTest, SomebodyElsesCertificateIsNotTaken) {
  for (const std::string uri : {"causeway://*/worker/b", "causeway://*/observer/a"}) {
    folder_.WriteSet("a", authority_.pem(), IssueIdentity(authority_, uri));
    ExpectUnfit(absl::StrCat("a.cert is now that of ", uri,
                             ", and this process is causeway://*/worker/a: put its own there"));
    EXPECT_TRUE(files_->IsChanging());
  }
  CertificateRequest nobody;
  nobody.names = "DNS:localhost";
  folder_.WriteSet("a", authority_.pem(), authority_.Issue(nobody));
  ExpectUnfit("that of nobody's name in a run");
  folder_.WriteSet("a", authority_.pem(), IssueIdentity(authority_, "causeway://run-1/worker/a"));
  EXPECT_TRUE(Look()->fit) << "for one run alone";
  folder_.WriteSet("a", authority_.pem(), IssueIdentity(authority_, "causeway://run-2/worker/a"));
  EXPECT_THAT(Look()->message, HasSubstr("is now that of causeway://run-2/worker/a"));
}

TEST_F(CertificateWatchTest, ARefusalMayPassWhileThePeerMayNotKnowTheSetYet) {
  EXPECT_FALSE(files_->IsChanging());
  folder_.WriteSet("a", authority_.pem(), IssueIdentity(authority_, "causeway://*/worker/a"));
  EXPECT_TRUE(files_->IsChanging()) << "the one refused may be the former";
  EXPECT_TRUE(Look()->fit);
  EXPECT_TRUE(files_->IsChanging());
  clock_.Advance(CertificateWatch::kMayStillPass);
  EXPECT_FALSE(files_->IsChanging());
}

TEST_F(CertificateWatchTest, AnEndThatIsOverIsSaidAsOne) {
  folder_.Write("a.cert", "");
  clock_.Advance(absl::Hours(24 * 31));
  EXPECT_EQ(files_->Look(), std::nullopt);
  clock_.Advance(CertificateWatch::kSettles);
  EXPECT_THAT(files_->Look()->message, HasSubstr("that was there before, which ended at 20"));
}

TEST_F(CertificateWatchTest, FilesThatAreBeingCopiedAtTheStartAreNoReasonToStayDown) {
  const std::string half = pair_.certificate.substr(0, pair_.certificate.size() / 2);
  const auto open = [&] {
    return CertificateWatch::Open(
               {.ca = options_.ca_file, .cert = options_.cert_file, .key = options_.key_file},
               CertificateUse::kClient, kInterval, clock_.Now(), clock_)
        .status();
  };
  folder_.WriteNow("a.cert", half);
  EXPECT_EQ(open().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(open().message()),
              AllOf(HasSubstr("a.cert is damaged"), HasSubstr("start again in some seconds")));
  folder_.Write("a.cert", half);
  EXPECT_EQ(open().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CertificateWatchTest, ACertificateOfAnAuthorityThatThisSideDoesNotTrustIsTakenWithAWord) {
  const TestAuthority other("other");
  folder_.WriteSet("a", authority_.pem(), IssueIdentity(other, "causeway://*/worker/a"));
  const auto notice = Look();
  EXPECT_TRUE(notice->fit);
  EXPECT_THAT(notice->message, HasSubstr("no authority in"));
  folder_.Write("a.ca", other.pem());
  EXPECT_THAT(Look()->message, HasSubstr("the authorities in"));
  EXPECT_EQ(files_->generation(), 2);
  EXPECT_EQ(files_->set().authorities, other.pem());
}

TEST(ReplacedFile, WhoOpensItsPathSeesOneTextOrTheOtherWithAnotherTime) {
  auto file = ReplacedFile::Make("former").value();
  const std::string path = file.path();
  std::ifstream open_before(path);
  struct stat before {};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  const std::string latter(100'000, 'x');
  ASSERT_TRUE(file.Replace(latter).ok());
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(Read(path), latter);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(open_before), {}), "former");
  struct stat after {};
  ASSERT_EQ(stat(path.c_str(), &after), 0);
  EXPECT_LT(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
}

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
