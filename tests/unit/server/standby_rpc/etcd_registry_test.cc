#include "server/standby_rpc/etcd_registry.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

// A member of etcd that grants every lease and answers transactions as the test says.
class FakeEtcd final : private etcdserverpb::KV::Service, private etcdserverpb::Lease::Service {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, {});
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~FakeEtcd() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::shared_ptr<grpc::Channel> Channel() const {
    return MakeChannel(absl::StrCat("127.0.0.1:", port_), 0, ChannelSecurity::Plaintext());
  }

  // Set between calls.
  grpc::Status transaction = grpc::Status::OK;
  bool succeeds = true;
  grpc::Status revocation = grpc::Status::OK;
  std::vector<int64_t> granted;
  std::vector<int64_t> revoked;

 private:
  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest*,
                   etcdserverpb::TxnResponse* response) override {
    response->mutable_header()->set_cluster_id(1);
    response->set_succeeded(succeeds);
    return transaction;
  }
  grpc::Status LeaseGrant(grpc::ServerContext*, const etcdserverpb::LeaseGrantRequest*,
                          etcdserverpb::LeaseGrantResponse* response) override {
    granted.push_back(100 + static_cast<int64_t>(granted.size()));
    response->mutable_header()->set_cluster_id(1);
    response->set_id(granted.back());
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse* response) override {
    revoked.push_back(request->id());
    response->mutable_header()->set_cluster_id(1);
    return revocation;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class EtcdRegistryTest : public testing::Test {
 protected:
  absl::StatusOr<bool> Lead() { return registry_.Lead({}, "a", "a:7070", absl::Seconds(3)); }

  FakeEtcd etcd_;
  EtcdRegistry registry_{{etcd_.Channel()}, "run", absl::Seconds(60)};
};

TEST_F(EtcdRegistryTest, ALeadKeepsItsLeaseUntilItResigns) {
  EXPECT_EQ(Lead().value(), true);
  EXPECT_TRUE(etcd_.revoked.empty());
  registry_.Resign();
  EXPECT_EQ(etcd_.revoked, etcd_.granted);
}

TEST_F(EtcdRegistryTest, TheLeaseOfALeadThatWasNotTakenIsRevoked) {
  etcd_.succeeds = false;
  EXPECT_EQ(Lead().value(), false);
  EXPECT_EQ(etcd_.revoked, std::vector<int64_t>{100});
  etcd_.transaction = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "permission denied");
  EXPECT_EQ(Lead().status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(etcd_.revoked, (std::vector<int64_t>{100, 101}));
  etcd_.transaction = grpc::Status(grpc::StatusCode::UNAVAILABLE, "no leader");
  EXPECT_EQ(Lead().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(etcd_.revoked, etcd_.granted);
}

TEST_F(EtcdRegistryTest, ALeaseWhoseRevocationHadNoAnswerIsRevokedBeforeTheNextOne) {
  etcd_.transaction = grpc::Status(grpc::StatusCode::UNAVAILABLE, "no leader");
  etcd_.revocation = etcd_.transaction;
  EXPECT_FALSE(Lead().ok());
  etcd_.transaction = grpc::Status::OK;
  etcd_.revocation = grpc::Status::OK;
  EXPECT_EQ(Lead().value(), true);
  EXPECT_EQ(etcd_.revoked, (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(etcd_.granted.size(), 2);
}

}  // namespace
}  // namespace causeway::server
