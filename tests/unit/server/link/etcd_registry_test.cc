#include "server/link/leading.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "etcd/rpc.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/link/leading.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

// A member of etcd that grants every lease and answers transactions as the test says.
class FakeEtcd final : private etcdserverpb::KV::CallbackService,
                       private etcdserverpb::Lease::CallbackService {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, {});
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<etcdserverpb::KV::CallbackService*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~FakeEtcd() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::shared_ptr<RenewedChannels> Channel() const {
    return std::make_shared<RenewedChannels>(address(), ChannelSecurity::Plaintext());
  }

  // How it answers from now on.
  void set_succeeds(bool succeeds) {
    absl::MutexLock lock(&mutex_);
    succeeds_ = succeeds;
  }
  void set_transaction(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    transaction_ = status;
  }
  void set_revocation(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    revocation_ = status;
  }
  // The leases, in order.
  std::vector<int64_t> granted() const {
    absl::MutexLock lock(&mutex_);
    return granted_;
  }
  std::vector<int64_t> revoked() const {
    absl::MutexLock lock(&mutex_);
    return revoked_;
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const grpc::Status& status) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  grpc::ServerUnaryReactor* Txn(grpc::CallbackServerContext* context,
                                const etcdserverpb::TxnRequest* request,
                                etcdserverpb::TxnResponse* response) override {
    absl::MutexLock lock(&mutex_);
    response->mutable_header()->set_cluster_id(1);
    response->set_succeeded(succeeds_);
    // Whoever reads: nobody leads, and another copy alone is in sync.
    for (int i = 0; i < request->success_size(); ++i) {
      auto& range = *response->add_responses()->mutable_response_range();
      if (i == 1) range.add_kvs()->set_value("another-1");
    }
    return Answer(context, transaction_);
  }
  grpc::ServerUnaryReactor* LeaseGrant(grpc::CallbackServerContext* context,
                                       const etcdserverpb::LeaseGrantRequest*,
                                       etcdserverpb::LeaseGrantResponse* response) override {
    absl::MutexLock lock(&mutex_);
    granted_.push_back(100 + static_cast<int64_t>(granted_.size()));
    response->mutable_header()->set_cluster_id(1);
    response->set_id(granted_.back());
    return Answer(context, grpc::Status::OK);
  }
  grpc::ServerUnaryReactor* LeaseRevoke(grpc::CallbackServerContext* context,
                                        const etcdserverpb::LeaseRevokeRequest* request,
                                        etcdserverpb::LeaseRevokeResponse* response) override {
    absl::MutexLock lock(&mutex_);
    revoked_.push_back(request->id());
    response->mutable_header()->set_cluster_id(1);
    return Answer(context, revocation_);
  }

  mutable absl::Mutex mutex_;
  grpc::Status transaction_ ABSL_GUARDED_BY(mutex_) = grpc::Status::OK;
  bool succeeds_ ABSL_GUARDED_BY(mutex_) = true;
  grpc::Status revocation_ ABSL_GUARDED_BY(mutex_) = grpc::Status::OK;
  std::vector<int64_t> granted_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> revoked_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status NoLeader() { return {grpc::StatusCode::UNAVAILABLE, "no leader"}; }

class EtcdRegistryTest : public testing::Test {
 protected:
  absl::StatusOr<bool> Lead() { return registry_->Lead({}, "a", "a:7070", absl::Seconds(3)); }

  FakeEtcd etcd_;
  const std::unique_ptr<Registry> registry_ =
      MakeEtcdRegistry({etcd_.Channel()}, "run", absl::Seconds(60));
};

TEST_F(EtcdRegistryTest, ALeadKeepsItsLeaseUntilItResigns) {
  EXPECT_EQ(Lead().value(), true);
  EXPECT_TRUE(etcd_.revoked().empty());
  registry_->Resign();
  EXPECT_EQ(etcd_.revoked(), etcd_.granted());
}

TEST_F(EtcdRegistryTest, TheLeaseOfALeadThatWasNotTakenIsRevoked) {
  etcd_.set_succeeds(false);
  EXPECT_EQ(Lead().value(), false);
  EXPECT_EQ(etcd_.revoked(), std::vector<int64_t>{100});
  etcd_.set_transaction(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "permission denied"));
  EXPECT_EQ(Lead().status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(etcd_.revoked(), (std::vector<int64_t>{100, 101}));
  etcd_.set_transaction(NoLeader());
  EXPECT_EQ(Lead().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(etcd_.revoked(), etcd_.granted());
}

// A password that is changed in etcd before it is changed here, a proxy that answers for a moment.
TEST_F(EtcdRegistryTest, WhatEtcdRefusesEndsAStandbyAtItsStartAlone) {
  const TemporaryFolder folder;
  const Clock* const clock = Clock::Real();
  Standbys standbys({.clock = clock});
  StandbyNotes notes;
  Leading::Options options;
  options.etcd = etcd_.address();
  options.run = "run";
  options.address = "a:7070";
  options.folder = folder.path();
  options.file_system = FileSystem::Real();
  options.notes = &notes;
  const grpc::Status refusal(grpc::StatusCode::PERMISSION_DENIED, "permission denied");
  bool refused = false;
  bool was_refused = false;
  const auto wait = [&](absl::Duration) {
    const std::string doing = notes.Get().doing;
    was_refused = was_refused || absl::StrContains(doing, "etcd does not let a caller");
    etcd_.set_transaction(was_refused ? grpc::Status::OK : refusal);
    return was_refused && absl::StrContains(doing, "nobody leads");
  };
  EXPECT_TRUE(absl::IsCancelled(Leading::StandBy(options, standbys, wait, refused).status()));
  etcd_.set_transaction(refusal);
  EXPECT_TRUE(
      absl::IsPermissionDenied(Leading::StandBy(options, standbys, wait, refused).status()));
  EXPECT_TRUE(refused);
}

TEST_F(EtcdRegistryTest, ALeaseWhoseRevocationHadNoAnswerIsRevokedBeforeTheNextOne) {
  etcd_.set_transaction(NoLeader());
  etcd_.set_revocation(NoLeader());
  EXPECT_FALSE(Lead().ok());
  etcd_.set_transaction(grpc::Status::OK);
  etcd_.set_revocation(grpc::Status::OK);
  EXPECT_EQ(Lead().value(), true);
  EXPECT_EQ(etcd_.revoked(), (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(etcd_.granted().size(), 2);
}

}  // namespace
}  // namespace causeway::server
