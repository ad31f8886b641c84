// A run with its own authority: who is invited boards it over real TLS, once, and nobody else does.
#include "tests/unit/server/service/enrollment_run.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/base/file_system.h"
#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(EnrollmentTest, TheInvitedBoardsOnceAndIsKnownByItsNameFromThenOn) {
  const InvitationLine line = Invite("berlin");
  const auto boarded = BoardIn("berlin", line).value();
  EXPECT_EQ(boarded.identity, (Identity{.run = kRunName, .role = Role::kWorker, .name = "berlin"}));
  EXPECT_EQ(boarded.coordinator, address());
  EXPECT_TRUE(Describe(boarded).ok());
  struct stat info {};
  ASSERT_EQ(stat(folder_.path("berlin/key.pem").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);

  const std::string certificate = FileSystem::Real()->ReadFile(boarded.security.cert_file).value();
  const auto again = BoardIn("berlin", line).value();
  EXPECT_EQ(FileSystem::Real()->ReadFile(again.security.cert_file).value(), certificate)
      << "the same line finds what came of it";

  // Another machine, with the same line.
  EXPECT_THAT(BoardIn("thief", line),
              StatusIs(kPermissionDenied, HasSubstr("with another key: a line counts once")));
  EXPECT_EQ(events_.Count("invitation_used"), 1);
  EXPECT_EQ(events_.Count("invitation_refused"), 1);
}

TEST_F(EnrollmentTest, AnAnswerThatWasLostIsGivenAgainToTheSameKey) {
  const InvitationLine line = Invite("berlin");
  ASSERT_TRUE(BoardIn("berlin", line).ok());
  std::filesystem::remove(folder_.path("berlin/cert.pem"));
  const auto again = BoardIn("berlin", line).value();
  EXPECT_TRUE(Describe(again).ok());
}

TEST_F(EnrollmentTest, WhatWasRevokedReplacedOrIsOverLetsNobodyIn) {
  const InvitationLine revoked = Invite("revoked");
  ASSERT_TRUE(Revoke("revoked").ok());
  const InvitationLine replaced = Invite("berlin");
  const InvitationLine newer = Invite("berlin");
  const InvitationLine over = Invite("over");
  for (const InvitationLine& line : {revoked, replaced}) {
    const absl::Status status = BoardIn("nobody", line, absl::InfiniteDuration()).status();
    EXPECT_THAT(status, StatusIs(kPermissionDenied));
    // By Enroll, where the certificate came to be trusted in between.
    EXPECT_THAT(std::string(status.message()),
                AnyOf(HasSubstr("does not take this invitation"), HasSubstr("was revoked at")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("ask for a new line"));
  }
  EXPECT_TRUE(BoardIn("berlin", newer).ok());
  clock_.Advance(absl::Hours(2));
  EXPECT_THAT(BoardIn("late", over, kShort), StatusIs(kPermissionDenied));
  EXPECT_THAT(Revoke("over"), StatusIs(kNotFound));
  EXPECT_THAT(Revoke("berlin"), StatusIs(kNotFound, HasSubstr("--refused_identities")));
}

TEST_F(EnrollmentTest, ThoseWhoGuessGetNoFurtherThanTheHandshake) {
  InvitationLine line = Invite("berlin");
  line.secret = MakeInvitationSecret().value();
  const absl::Status status = BoardIn("guesser", line, kShort).status();
  EXPECT_THAT(status, StatusIs(kPermissionDenied));
  EXPECT_EQ(events_.Count("access_refused"), 0) << "it reached no call";
  const absl::Status hasty = BoardIn("guesser", line, absl::Seconds(1)).status();
  EXPECT_THAT(hasty, StatusIs(kUnavailable)) << "it may be new: " << hasty;
}

TEST_F(EnrollmentTest, AnInvitationIsGoodForNothingElse) {
  const InvitationLine line = Invite("berlin");
  const KeyedCertificate shown = CertificateOfInvitation(line.secret, line.name).value();
  Boarded invited = Operator();
  invited.security.cert_file = folder_.Write("invited.pem", shown.certificate);
  invited.security.key_file = folder_.Write("invited.key", shown.key);
  // It is trusted within a second or two.
  const absl::Time deadline = absl::Now() + kPatience;
  absl::Status described = Describe(invited);
  while (MadeOnTheWay(described) && absl::Now() < deadline) described = Describe(invited);
  EXPECT_THAT(described, StatusIs(kPermissionDenied, HasSubstr("good for nothing else")));
  EXPECT_THAT(Ask(invited, Request("friend", "secret")), StatusIs(kPermissionDenied));
}

TEST_F(EnrollmentTest, AFolderOfSomebodyElseIsLeftAsItIs) {
  ASSERT_TRUE(BoardIn("shared", Invite("berlin")).ok());
  EXPECT_THAT(BoardIn("shared", Invite("paris")),
              StatusIs(kFailedPrecondition, HasSubstr("is that of worker berlin")));
  EXPECT_EQ(Board(folder_.path("shared"), "", kPatience)->identity.name, "berlin");
  std::filesystem::permissions(folder_.path("shared"), std::filesystem::perms::all);
  EXPECT_THAT(BoardIn("shared", Invite("rome")),
              StatusIs(kFailedPrecondition, HasSubstr("chmod 700")));
}

TEST_F(EnrollmentTest, ANewLineForTheSameNameBringsItsRole) {
  ASSERT_TRUE(BoardIn("alice", Invite("alice", "observer")).ok());
  const auto again = BoardIn("alice", Invite("alice", "operator")).value();
  EXPECT_EQ(again.identity.role, Role::kOperator);
}

TEST_F(EnrollmentTest, WhatIsDamagedInTheFolderIsMadeAnewByItsLine) {
  const InvitationLine line = Invite("berlin");
  ASSERT_TRUE(BoardIn("berlin", line).ok());
  for (const char* damaged : {"cert.pem", "ca.pem", "coordinator"}) {
    folder_.Write(absl::StrCat("berlin/", damaged), "");
    const absl::Status by_name = Board(folder_.path("berlin"), "", kShort).status();
    EXPECT_FALSE(by_name.ok() && std::string(damaged) != "ca.pem") << damaged;
    const auto again = BoardIn("berlin", line);
    ASSERT_TRUE(again.ok()) << damaged << again.status();
    EXPECT_TRUE(Describe(*again).ok());
  }
}

TEST_F(EnrollmentTest, TheSameLineNeedsNoDiskThatCanBeWritten) {
  InvitationLine line = Invite("berlin");
  ASSERT_TRUE(BoardIn("berlin", line).ok());
  const auto may = [&](std::filesystem::perms what) {
    std::filesystem::permissions(folder_.path("berlin"), what);
  };
  // Where root runs this, nothing keeps it from writing.
  std::filesystem::remove(folder_.path("berlin/LOCK"));
  std::filesystem::create_directory(folder_.path("berlin/LOCK"));
  may(std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const auto again = BoardIn("berlin", line, kShort);
  line.addresses.insert(line.addresses.begin(), "127.0.0.1:1");
  const auto moved = BoardIn("berlin", line, kShort);
  may(std::filesystem::perms::owner_all);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->coordinator, address());
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->coordinator, absl::StrCat("127.0.0.1:1,", address()));
}

TEST_F(EnrollmentTest, SilentAddressesBeforeTheCoordinatorsTakeNoneOfItsTime) {
  const Listener first, second;
  InvitationLine line = Invite("berlin");
  line.addresses.insert(line.addresses.begin(), {first.address(), second.address()});
  const auto boarded = BoardIn("berlin", line, absl::Minutes(2));
  ASSERT_TRUE(boarded.ok()) << boarded.status();
  EXPECT_EQ(RenewIdentity(*boarded, absl::Seconds(1)), absl::OkStatus());
}

TEST_F(EnrollmentTest, WhoShowsTheAuthorityWithoutBeingItsOwnIsNotTakenForTheCoordinator) {
  InvitationLine line = Invite("berlin");
  const TestAuthority eve("eve");
  const PemPair own = IssueServer(eve);
  const auto shown = FileSystem::Real()->ReadFile(folder_.path("authority/ca.pem")).value();
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({.private_key = own.key, .cert_chain = own.certificate + shown});
  grpc::CallbackGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> between = builder.BuildAndStart();
  line.addresses = {absl::StrCat("127.0.0.1:", port)};
  EXPECT_THAT(BoardIn("berlin", line),
              StatusIs(kFailedPrecondition, HasSubstr("cannot be trusted")));
}

TEST_F(EnrollmentTest, WhatAnOperatorAsksForIsChecked) {
  const Boarded me = Operator();
  const auto refused = [&](auto change) {
    v1::InviteRequest wrong = Request("berlin", "secret");
    change(wrong);
    EXPECT_THAT(Ask(me, wrong), StatusIs(kInvalidArgument)) << wrong.ShortDebugString();
  };
  using R = v1::InviteRequest;
  refused([](R& r) { r.set_name("paris"); });
  refused([&](R& r) { r = Request("../berlin", "secret"); });
  refused([](R& r) { r.set_role("king"); });
  refused([](R& r) { r.set_role("invited"); });
  refused([](R& r) { r.set_seconds(1); });
  refused([](R& r) { r.set_certificate("hello"); });
  const std::string ca = FileSystem::Real()->ReadFile(folder_.path("authority/ca.pem")).value();
  refused([&](R& r) { r.set_certificate(ca); });
}

TEST_F(EnrollmentTest, AnInvitationOfAnotherRoleStaysUnused) {
  const InvitationLine line = Invite("alice", "operator");
  const auto board = [&](const std::string& join, const std::vector<Role>& roles) {
    return Board(join, folder_.path("alice"), kPatience, roles);
  };
  const absl::Status worker = board(FormatInvitation(line), {Role::kWorker}).status();
  EXPECT_THAT(worker, StatusIs(kPermissionDenied,
                               HasSubstr("is for operator alice; who may be here: worker")));
  EXPECT_EQ(events_.Count("invitation_used"), 0);
  const auto boarded = board(FormatInvitation(line), {Role::kObserver, Role::kOperator}).value();
  EXPECT_THAT(board(folder_.path("alice"), {Role::kRegion}),
              StatusIs(kPermissionDenied, HasSubstr("is that of operator alice")));
}

TEST_F(EnrollmentTest, WhoTakesOverWithTheRecordAndTheSameAuthorityKnowsTheInvitations) {
  const InvitationLine open = Invite("open");
  const InvitationLine used = Invite("used");
  const InvitationLine revoked = Invite("revoked");
  ASSERT_TRUE(BoardIn("used", used).ok());
  ASSERT_TRUE(Revoke("revoked").ok());
  EXPECT_EQ(run_.coordinator().orders().Invitations().invitations_size(), 3);
  EXPECT_FALSE(FileSystem::Real()->Exists(folder_.path("authority/invitations.binpb")));
  // Another machine: it has the run's record, and was given the authority.
  CoordinatorServer::Options options = Options();
  options.given_authority = folder_.path("authority");
  options.authority_folder = folder_.path("other");
  server_->Serve(options);
  EXPECT_TRUE(Describe(*Board(folder_.path("used"), "", kPatience)).ok());
  const absl::Status thief = BoardIn("thief", used).status();
  EXPECT_THAT(std::string(thief.message()), HasSubstr("with another key: a line counts once"));
  EXPECT_FALSE(BoardIn("nobody", revoked, kShort).ok());
  EXPECT_TRUE(BoardIn("open", open).ok());
}

TEST_F(EnrollmentTest, TheListMovesFromItsFileIntoTheRecordOnceTheRunHasBegun) {
  const std::string file = folder_.path("waiting/invitations.binpb");
  const OwnAuthority::Options options{
      .folder = folder_.path("waiting"), .run_name = kRunName, .clock = &clock_};
  auto before = OwnAuthority::Open(options).value();
  ASSERT_TRUE(before->Invite(Request("berlin", "secret"), "operator alice").ok());
  before->MoveToRecord();
  EXPECT_TRUE(FileSystem::Real()->Exists(file)) << "there is no record yet";

  auto after = OwnAuthority::Open(options).value();
  v1::InvitationList record;
  absl::Status disk = absl::UnavailableError("the disk is full");
  after->UseRecord({}, [&](const v1::InvitationList& list) {
    if (disk.ok()) record = list;
    return disk;
  });
  after->MoveToRecord();
  EXPECT_TRUE(FileSystem::Real()->Exists(file));
  EXPECT_FALSE(after->Invite(Request("paris", "secret"), "operator alice").ok());
  disk = absl::OkStatus();
  after->MoveToRecord();
  EXPECT_FALSE(FileSystem::Real()->Exists(file));
  ASSERT_EQ(record.invitations_size(), 1) << "what could not be kept was not made";
  EXPECT_EQ(record.invitations(0).name(), "berlin");
}

TEST_F(EnrollmentTest, ADiskThatFailsForAMomentRefusesNobodyForGood) {
  const OwnAuthority::Options options{
      .folder = folder_.path("waiting"), .run_name = kRunName, .clock = &clock_};
  const auto authority = OwnAuthority::Open(options).value();
  absl::Status disk = absl::InternalError("EIO");
  authority->UseRecord({}, [&](const v1::InvitationList&) { return disk; });
  const v1::InviteRequest asked = Request("berlin", "secret");
  EXPECT_THAT(authority->Invite(asked, "operator alice"), StatusIs(kUnavailable));
  disk = absl::OkStatus();
  const v1::InviteResponse made = authority->Invite(asked, "operator alice").value();
  const std::string& fingerprint = made.invitation().certificate_sha256();
  v1::EnrollRequest request;
  request.set_certificate_request(MakeRequest(MakePrivateKey().value(), "a new key").value());
  disk = absl::InternalError("EIO");
  EXPECT_THAT(authority->Enroll(fingerprint, request, "here"), StatusIs(kUnavailable));
  disk = absl::OkStatus();
  std::filesystem::remove(folder_.path("waiting/ca.pem"));  // It is held in memory.
  EXPECT_EQ(authority->Enroll(fingerprint, request, "here").value().name(), "berlin");
}

TEST_F(EnrollmentTest, ADamagedFileIsPassedOverAndGoesOnceTheRecordHasTheList) {
  const InvitationLine line = Invite("berlin");
  const std::string file = folder_.Write("authority/invitations.binpb", "damaged");
  server_->Serve(Options());
  const auto boarded = BoardIn("berlin", line);
  EXPECT_TRUE(boarded.ok()) << boarded.status();
  EXPECT_FALSE(FileSystem::Real()->Exists(file));
}

TEST_F(EnrollmentTest, WhatTheAuthoritysFolderHasWrongIsNamedWithWhatToDo) {
  const auto start = [&] {
    CoordinatorServer::Options options = Options();
    options.address = "127.0.0.1:0";
    return CoordinatorServer::Start(options, run_.coordinator()).status();
  };
  folder_.Write("authority/invitations.binpb", "");
  const absl::Status empty = start();
  EXPECT_THAT(empty, StatusIs(kDataLoss, HasSubstr("invitations.binpb is empty: remove it")));
  std::filesystem::remove(folder_.path("authority/invitations.binpb"));
  clock_.Advance(absl::Hours(24 * 3660));
  EXPECT_THAT(start(),
              StatusIs(kFailedPrecondition, HasSubstr("and the next start makes a new one")));
}

TEST_F(EnrollmentTest, TheReminderOfTheAuthoritysEndSaysHowItIsReplaced) {
  clock_.Advance(absl::Hours(24 * 3648));
  EXPECT_THAT(events_.Await("certificate_expiring")["message"].get<std::string>(),
              HasSubstr("authority away and start again, which makes a new one, and everybody "
                        "needs a new invitation"));
}

TEST_F(EnrollmentTest, AHalfOfAnAuthorityIsRefusedWithWhatToDo) {
  std::filesystem::create_directories(folder_.path("half"));
  std::filesystem::permissions(folder_.path("half"), std::filesystem::perms::owner_all);
  std::filesystem::copy(folder_.path("authority/ca.pem"), folder_.path("half/ca.pem"));
  CoordinatorServer::Options options = Options();
  options.address = "127.0.0.1:0";
  options.authority_folder = folder_.path("half");
  const absl::Status status = CoordinatorServer::Start(options, run_.coordinator()).status();
  EXPECT_THAT(status, StatusIs(kFailedPrecondition, HasSubstr("put both there, or neither")));
  folder_.Write("half/ca.key", MakePrivateKey().value());
  EXPECT_THAT(CoordinatorServer::Start(options, run_.coordinator()),
              StatusIs(kFailedPrecondition, HasSubstr("is not the key of")));
}

}  // namespace
}  // namespace causeway::server
