// A coordinator in a process of its own, and connections that only cost: idle ones, ones that read
// nothing of what they asked for, and ones that send half an object and stop.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {
namespace {

constexpr int kIdle = 64;
constexpr int kSlowReaders = 16;
constexpr int kSlowSenders = 8;
constexpr int64_t kMemory = int64_t{128} << 20;

// About 8 million parameters in one fragment, FP32 both ways: objects of 32 MB.
v1::RunConfig Config() {
  return CompleteSmallConfig(
      absl::StrCat("model { vocabulary_size: 12288 width: 512 heads: 4 mlp_width: 512 } "
                   "sync { steps_between_syncs: 5 } membership { start_workers: 1 max_workers: ",
                   kSlowSenders, " }"));
}

// In the child process. Writes its port to `out` and serves until it is killed.
[[noreturn]] void Serve(int out) {
  TuneForStreams();
  MemoryStore store;
  const auto coordinator = Coordinator::Create(OptionsOf(Config(), "memory-1", store));
  if (!coordinator.ok()) _exit(1);
  CoordinatorServer::Options server_options;
  server_options.address = "127.0.0.1:0";
  server_options.memory_bytes = kMemory;
  const auto server = CoordinatorServer::Start(server_options, **coordinator);
  if (!server.ok()) _exit(1);
  const int port = (*server)->port();
  if (write(out, &port, sizeof(port)) != sizeof(port)) _exit(1);
  for (;;) pause();
}

// Memory of a process in bytes: "VmRSS" now, "VmHWM" at most so far.
int64_t MemoryOf(pid_t process, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (!absl::StartsWith(line, field + ":")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() > 2 && absl::SimpleAtoi(words[words.size() - 2], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

class TransferMemoryTest : public ::testing::Test {
 protected:
  struct Call {
    std::unique_ptr<OpenSession> session;
    std::unique_ptr<v1::Exchange::Stub> exchange;
    std::unique_ptr<PlainLane> lane;
  };

  // The child is made while this process has one thread.
  TransferMemoryTest() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) Serve(ends[1]);
    close(ends[1]);
    int port = 0;
    EXPECT_EQ(read(ends[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    close(ends[0]);
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~TransferMemoryTest() override {
    for (const auto& call : calls_) {
      if (call->session != nullptr) call->session->context.TryCancel();
    }
    for (const auto& call : calls_) call->lane = nullptr;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  std::shared_ptr<grpc::Channel> Connect() {
    auto channel = MakeChannel(address_, connections_++, ChannelSecurity::Plaintext());
    EXPECT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(30))));
    channels_.push_back(channel);
    return channel;
  }
  Call& NewCall() { return *calls_.emplace_back(std::make_unique<Call>()); }

  uint64_t Join(const std::shared_ptr<grpc::Channel>& channel, const std::string& id) {
    const auto stub = v1::Session::NewStub(channel);
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(DescribeRun(*stub).value(), id);
    Call& call = NewCall();
    call.session = std::make_unique<OpenSession>(*stub, message);
    return call.session->welcome.value().incarnation();
  }

  // Half an object of the worker's, in chunks of zeros. False if the coordinator has no room.
  bool PushHalf(const std::string& id) {
    const auto channel = Connect();
    const v1::RunConfig config = Config();
    const FragmentPlan plan = *FragmentPlan::Create(config);
    const int64_t bytes = plan.arena_size() * int64_t{sizeof(float)};
    v1::PushHeader header;
    header.set_incarnation(Join(channel, id));
    header.set_round(1);
    header.set_codec(v1::FP32);
    header.set_total_bytes(bytes);
    header.set_object_hash(7);
    Call& call = NewCall();
    call.exchange = v1::Exchange::NewStub(channel);
    call.lane = std::make_unique<PlainLane>(*call.exchange, "memory-1", id);
    call.lane->Offer(1, header);
    v1::LaneMessage answer;
    EXPECT_TRUE(call.lane->Read(answer));
    if (answer.control().has_outcome()) {
      EXPECT_EQ(answer.control().outcome().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      return false;
    }
    const std::vector<uint8_t> zeros(kChunkBytes);
    for (int64_t offset = 0; offset < bytes / 2; offset += static_cast<int64_t>(kChunkBytes)) {
      EXPECT_TRUE(call.lane->Chunk(1, offset, zeros));
    }
    return true;
  }

  // Asks for the state and takes no more than its announcement.
  void PullAndStopReading() {
    Call& call = NewCall();
    call.exchange = v1::Exchange::NewStub(Connect());
    call.lane = std::make_unique<PlainLane>(*call.exchange, "memory-1", "reader");
    v1::Want want;
    want.set_transfer(1);
    want.set_object(v1::Want::STATE);
    EXPECT_TRUE(call.lane->Want(want));
    v1::LaneMessage answer;
    EXPECT_TRUE(call.lane->Read(answer));
    object_bytes_ = answer.control().announcement().header().total_bytes();
  }

  pid_t child_ = 0;
  std::string address_;
  int connections_ = 0;
  int64_t object_bytes_ = 0;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(TransferMemoryTest, IdleAndSlowConnectionsStayWithinTheMemoryThatWasAllowed) {
  const int64_t before = MemoryOf(child_, "VmRSS");
  ASSERT_GT(before, 0);
  for (int i = 0; i < kIdle; ++i) Connect();
  const int64_t idle = MemoryOf(child_, "VmRSS");
  for (int i = 0; i < kSlowReaders; ++i) PullAndStopReading();
  const int64_t reading = MemoryOf(child_, "VmRSS");
  int taken = 0;
  for (int i = 0; i < kSlowSenders; ++i) taken += PushHalf(absl::StrCat("w", i)) ? 1 : 0;
  const int64_t most = MemoryOf(child_, "VmHWM");
  EXPECT_GE(taken, 1);
  EXPECT_LT(taken, kSlowSenders) << "not everybody finds room";
  // The state that is being pulled is one copy, however many pull it.
  EXPECT_LE(most - before, kMemory + object_bytes_);
  EXPECT_LE(reading - idle, object_bytes_ + kSlowReaders * 2 * static_cast<int64_t>(kChunkBytes));
}

}  // namespace
}  // namespace causeway::server
