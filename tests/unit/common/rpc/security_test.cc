#include "common/rpc/security.h"

#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLoopback[] = "127.0.0.1:7070";
constexpr char kElsewhere[] = "10.0.0.1:7070";

class SecurityTest : public ::testing::Test {
 protected:
  absl::Status Client(const SecurityOptions& options, const std::string& address = kElsewhere) {
    return MakeChannelSecurity(options, address, absl::Now()).status();
  }
  absl::Status Server(const SecurityOptions& options, const std::string& address = kElsewhere) {
    return MakeServerSecurity(options, address, absl::Now()).status();
  }
  static void ExpectRefusal(const absl::Status& status, absl::StatusCode code,
                            const std::string& remedy) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(remedy));
  }

  const TestAuthority authority_;
  const TestFolder folder_;
  const SecurityOptions worker_ = folder_.WriteSet(
      "worker", authority_.pem(), IssueIdentity(authority_, "causeway://*/worker/a"));
  const SecurityOptions server_ =
      folder_.WriteSet("server", authority_.pem(), IssueServer(authority_));
};

TEST_F(SecurityTest, PlaintextBeyondThisMachineMustBeAskedForByName) {
  SecurityOptions options;
  EXPECT_TRUE(Client(options, kLoopback).ok());
  EXPECT_TRUE(Server(options, kLoopback).ok());
  ExpectRefusal(Client(options), absl::StatusCode::kFailedPrecondition, "--tls_ca");
  ExpectRefusal(Server(options), absl::StatusCode::kFailedPrecondition, "--insecure");
  options.insecure = true;
  const auto client = MakeChannelSecurity(options, kElsewhere, absl::Now()).value();
  EXPECT_THAT(client.warnings, ElementsAre(HasSubstr("plaintext")));
  EXPECT_FALSE(client.encrypted);
  EXPECT_THAT(MakeServerSecurity(options, kElsewhere, absl::Now())->warnings,
              ElementsAre(HasSubstr("plaintext")));
}

TEST_F(SecurityTest, WholeSetsAreTaken) {
  const auto client = MakeChannelSecurity(worker_, kElsewhere, absl::Now()).value();
  EXPECT_TRUE(client.encrypted);
  EXPECT_THAT(client.warnings, IsEmpty());
  EXPECT_EQ(client.certificate->identity->name, "a");
  const auto server = MakeServerSecurity(server_, kElsewhere, absl::Now()).value();
  EXPECT_TRUE(server.encrypted);
  EXPECT_THAT(server.warnings, IsEmpty());
}

TEST_F(SecurityTest, HalfSetsAreRefused) {
  const auto without = [](SecurityOptions options, auto... members) {
    ((options.*members).clear(), ...);
    return options;
  };
  using Options = SecurityOptions;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefusal(Client(without(worker_, &Options::key_file)), kInvalid, "--tls_key");
  ExpectRefusal(Client(without(worker_, &Options::cert_file)), kInvalid, "--tls_cert");
  ExpectRefusal(Client(without(worker_, &Options::ca_file)), kInvalid, "--tls_ca");
  ExpectRefusal(Client(without(worker_, &Options::cert_file, &Options::key_file)), kInvalid,
                "--token_file");
  ExpectRefusal(Server(without(server_, &Options::cert_file, &Options::key_file)), kInvalid,
                "--tls_cert");
  ExpectRefusal(Server(without(server_, &Options::ca_file)), kInvalid, "--token_file");
  SecurityOptions both = worker_;
  both.insecure = true;
  ExpectRefusal(Client(both), kInvalid, "--insecure");
  SecurityOptions named = server_;
  named.server_name = "x";
  ExpectRefusal(Server(named), kInvalid, "--tls_server_name");
  SecurityOptions restless = worker_;
  restless.refresh_interval = absl::Milliseconds(10);
  ExpectRefusal(Client(restless), kInvalid, "--tls_refresh");
}

TEST_F(SecurityTest, TokensNeverTravelInTheClear) {
  SecurityOptions options;
  options.token_file = folder_.Write("token", std::string(64, 'a') + "\n");
  options.insecure = true;
  for (const char* const address : {kLoopback, kElsewhere}) {
    ExpectRefusal(Client(options, address), absl::StatusCode::kInvalidArgument, "--tls_ca");
    ExpectRefusal(Server(options, address), absl::StatusCode::kInvalidArgument, "--tls_cert");
  }
  options.insecure = false;
  options.ca_file = worker_.ca_file;
  EXPECT_TRUE(Client(options).ok()) << Client(options);
  options.token_file = folder_.Write("token", "short");
  ExpectRefusal(Client(options), absl::StatusCode::kInvalidArgument, "32");
}

TEST_F(SecurityTest, ACertificateOfAnotherCaOrNearItsEndIsWarnedAbout) {
  const TestAuthority other("other");
  const SecurityOptions foreign =
      folder_.WriteSet("foreign", authority_.pem(), IssueIdentity(other, "causeway://*/worker/a"));
  EXPECT_THAT(MakeChannelSecurity(foreign, kElsewhere, absl::Now())->warnings,
              ElementsAre(HasSubstr("stands behind")));
  CertificateRequest request;
  request.not_after = absl::Now() + absl::Hours(72);
  const SecurityOptions ending =
      folder_.WriteSet("ending", authority_.pem(), authority_.Issue(request));
  EXPECT_THAT(MakeChannelSecurity(ending, kElsewhere, absl::Now())->warnings,
              ElementsAre(HasSubstr("expires in")));
}

}  // namespace
}  // namespace causeway
