#include "server/service/coordinator_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"

namespace causeway::server {
namespace {

// Merges of different fragments run side by side; a merge itself is bound by memory.
constexpr int kWorkThreads = 4;
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kMaintenance = absl::Seconds(2);
constexpr absl::Duration kDefaultStop = absl::Seconds(1);

// Room for the whole model of every worker at 4 bytes a value, and for repeated pushes.
int64_t PushMemory(const Coordinator& coordinator) {
  const int64_t model_bytes = coordinator.plan().arena_size() * 4;
  return model_bytes * (coordinator.config().membership().max_workers() + 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const std::string& address, Coordinator& coordinator) {
  RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/true));
  std::unique_ptr<CoordinatorServer> result(new CoordinatorServer(coordinator));
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &result->port_);
  builder.RegisterService(&result->session_);
  builder.RegisterService(&result->exchange_);
  builder.RegisterService(&result->admin_);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     ": the host is not this machine's, or the port is taken or not allowed; "
                     "choose another one"));
  }
  result->ticker_ = std::thread([server = result.get()] { server->TickLoop(); });
  result->maintainer_ = std::thread([server = result.get()] { server->MaintainLoop(); });
  return result;
}

CoordinatorServer::CoordinatorServer(Coordinator& coordinator)
    : coordinator_(coordinator),
      push_memory_(PushMemory(coordinator)),
      work_(kWorkThreads),
      session_(coordinator),
      exchange_(coordinator, work_, push_memory_),
      admin_(coordinator) {}

CoordinatorServer::~CoordinatorServer() { Stop(kDefaultStop); }

void CoordinatorServer::TickLoop() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick)) return;
    }
    coordinator_.Tick();
  }
}

void CoordinatorServer::MaintainLoop() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kMaintenance)) return;
    }
    coordinator_.Maintain();
  }
}

void CoordinatorServer::Stop(absl::Duration deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  if (ticker_.joinable()) ticker_.join();
  if (maintainer_.joinable()) maintainer_.join();
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  server_->Wait();
}

}  // namespace causeway::server
