#include "common/rpc/security.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(10);

class TlsHandshakeTest : public ::testing::Test {
 protected:
  // A server that refuses every call: what is tested comes before any call.
  void Serve(const SecurityOptions& options) {
    const auto security = MakeServerSecurity(options, "127.0.0.1:0", absl::Now()).value();
    Serve(security.credentials);
  }
  void Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, {});
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~TlsHandshakeTest() override {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  void ExpectExplanation(const SecurityOptions& options, const std::string& words) {
    EXPECT_THAT(ExplainByTls(address_, options, kTimeout),
                StatusIs(kFailedPrecondition, AllOf(HasSubstr(address_), HasSubstr(words))));
  }
  SecurityOptions WorkerSet(const TestAuthority& signer) {
    return folder_.WriteSet("worker", authority_.pem(),
                            IssueIdentity(signer, "causeway://*/worker/a"));
  }

  const TestAuthority authority_;
  const TestFolder folder_;
  const SecurityOptions server_options_ =
      folder_.WriteSet("server", authority_.pem(), IssueServer(authority_));
  std::string address_;
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(TlsHandshakeTest, ShowsTheServerAsItIs) {
  Serve(server_options_);
  const SecurityOptions worker = WorkerSet(authority_);
  EXPECT_THAT(TryTlsHandshake(address_, worker, kTimeout)->dns_names,
              testing::ElementsAre("localhost"));
  EXPECT_TRUE(ExplainByTls(address_, worker, kTimeout).ok());
}

TEST_F(TlsHandshakeTest, AKeyWithAPassphraseIsRefusedAndNobodyAskedForIt) {
  Serve(server_options_);
  SecurityOptions worker = WorkerSet(authority_);
  worker.key_file = folder_.Write("locked",
                                  "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n"
                                  "-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(
      TryTlsHandshake(address_, worker, kTimeout),
      StatusIs(kInvalidArgument, AllOf(HasSubstr(worker.key_file), HasSubstr("passphrase"))));
}

// Why the server does not take us: intruders_test.cc.
TEST_F(TlsHandshakeTest, SaysWhyWeDoNotTakeTheServer) {
  Serve(server_options_);
  ExpectExplanation({}, "speaks TLS");
  SecurityOptions worker = WorkerSet(authority_);
  const TestAuthority other("other");
  SecurityOptions foreign = worker;
  foreign.ca_file = folder_.Write("other.ca", other.pem());
  ExpectExplanation(foreign, "cannot be trusted");
  SecurityOptions misnamed = worker;
  misnamed.server_name = "coordinator.example";
  ExpectExplanation(misnamed, "localhost, 127.0.0.1");
}

TEST_F(TlsHandshakeTest, WhoIsNotToBeTrustedHasRefusedNobody) {
  Serve(server_options_);
  const TestAuthority other("other");
  SecurityOptions refused = WorkerSet(other);
  EXPECT_THAT(TryTlsHandshake(address_, refused, kTimeout), StatusIs(kPermissionDenied));
  refused.ca_file = folder_.Write("other.ca", other.pem());
  EXPECT_THAT(TryTlsHandshake(address_, refused, kTimeout), StatusIs(kFailedPrecondition));
}

TEST_F(TlsHandshakeTest, AWorkersCertificateMakesNoCoordinator) {
  // A member of the run between another one and the coordinator.
  CertificateRequest request;
  request.names = "URI:causeway://*/worker/eve";
  const PemPair eve = authority_.Issue(request);
  SecurityOptions options = folder_.WriteSet("eve", authority_.pem(), eve);
  EXPECT_THAT(MakeServerSecurity(options, "127.0.0.1:0", absl::Now()), StatusIs(kInvalidArgument));
  // Even one that she made for the coordinator's name would have to be for servers.
  request.names = "DNS:localhost,IP:127.0.0.1";
  const PemPair named = authority_.Issue(request);
  // This build's servers do not take it: one of another make does.
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({.private_key = named.key, .cert_chain = named.certificate});
  Serve(grpc::SslServerCredentials(ssl));
  ExpectExplanation(WorkerSet(authority_), "cannot be trusted");
}

TEST_F(TlsHandshakeTest, APlaintextServerIsRecognized) {
  Serve(SecurityOptions());
  ExpectExplanation(WorkerSet(authority_), "does not speak TLS");
  EXPECT_TRUE(ExplainByTls(address_, {}, kTimeout).ok());
  EXPECT_FALSE(SpeaksTls(address_, kTimeout));
}

TEST_F(TlsHandshakeTest, NobodyThereIsNotTlsFault) {
  address_ = "127.0.0.1:1";
  EXPECT_TRUE(ExplainByTls(address_, WorkerSet(authority_), kTimeout).ok());
  EXPECT_TRUE(ExplainByTls(address_, {}, kTimeout).ok());
  EXPECT_THAT(TryTlsHandshake(address_, WorkerSet(authority_), kTimeout), StatusIs(kUnavailable));
}

}  // namespace
}  // namespace causeway
