#include "server/link/copy_link.h"

#include <grpcpp/grpcpp.h>

#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/store/run_directory.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

TEST(PutAside, TheFolderIsRenamedToTheFirstNameThatIsFree) {
  FileSystem& files = *FileSystem::Real();
  const TemporaryFolder folder;
  const std::string copy = folder.File("copy");
  for (const char* const former : {"copy.former-1", "copy.former-2"}) {
    ASSERT_TRUE(files.CreateFolders(JoinPath(copy, former)).ok());
    ASSERT_TRUE(PutAside(files, copy + "/", "is of no use").ok());
    EXPECT_FALSE(files.Exists(copy));
    EXPECT_TRUE(files.Exists(JoinPath(folder.File(former), former)));
  }
}

// A disk whose files cannot be read, with that error.
class UnreadableFiles final : public ForwardingFileSystem {
 public:
  UnreadableFiles() : ForwardingFileSystem(*FileSystem::Real()) {}
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    const absl::StatusCode code = code_;
    if (code == absl::StatusCode::kOk) return ForwardingFileSystem::ReadFile(path);
    return absl::Status(code, "read: EIO");
  }
  std::atomic<absl::StatusCode> code_ = absl::StatusCode::kOk;
};

Access::Options OpenToAll() {
  Access::Options options;
  options.clock = Clock::Real();
  return options;
}

class StandbyServiceTest : public testing::Test {
 protected:
  StandbyServiceTest() {
    for (const ScriptedStep& step : ScriptedLife()) {
      EXPECT_EQ(step.take(*store_), absl::OkStatus()) << step.name;
    }
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~StandbyServiceTest() override {
    service_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // Asks from there, until the stream ends or nothing is lacking any more; returns with what.
  absl::Status Follow(const v1::CopyPosition& position) {
    grpc::ClientContext context;
    const auto stub = v1::Standby::NewStub(server_->InProcessChannel({}));
    const auto stream = stub->Follow(&context);
    v1::FollowRequest request;
    request.set_wire_version(kWireVersion);
    request.set_format_version(kRunFormatVersion);
    request.set_name("spare");
    *request.mutable_position() = position;
    stream->Write(request);
    v1::FollowResponse response;
    while (stream->Read(&response)) {
      if (response.has_begin() || response.has_advance()) context.TryCancel();
    }
    return FromGrpcStatus(stream->Finish());
  }

  const TemporaryFolder folder_;
  UnreadableFiles files_;
  const std::unique_ptr<RunDirectoryStore> store_ = [this] {
    auto store = RunDirectoryStore::Open(files_, folder_.File("run"), {.durable = false}).value();
    EXPECT_EQ(store->Recover().status(), absl::OkStatus());
    return store;
  }();
  Standbys standbys_{{.clock = Clock::Real()}};
  Access access_{OpenToAll()};
  StandbyService service_{*store_, standbys_, access_, *NullEventLog()};
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(StandbyServiceTest, AFileThatCannotBeReadNowIsAskedForAgain) {
  for (const absl::StatusCode code : {absl::StatusCode::kInternal, absl::StatusCode::kDataLoss,
                                      absl::StatusCode::kPermissionDenied}) {
    files_.code_ = code;
    const absl::Status ended = Follow({});
    EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
    EXPECT_EQ(ended.message(), "the coordinator cannot read its own run: read: EIO");
  }
  files_.code_ = absl::StatusCode::kOk;
  EXPECT_EQ(Follow({}).code(), absl::StatusCode::kCancelled) << "it got what it lacks";
}

TEST_F(StandbyServiceTest, WhatItSaysOfTheFollowerIsFinal) {
  v1::CopyPosition position = store_->Position();
  position.set_commits(position.commits() + 1);
  EXPECT_EQ(Follow(position).code(), absl::StatusCode::kOutOfRange);
  position.set_run_id("another");
  EXPECT_EQ(Follow(position).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace causeway::server
