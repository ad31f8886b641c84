#include "tests/security/hostile_client/run.h"

#include "common/params/run_config.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::hostile {
namespace {

server::RunDirectoryStore::Options StoreOptions() { return {.durable = false, .spare_bytes = 0}; }

v1::RunConfig AttackedConfig(const ConfigChange& change) {
  v1::RunConfig config = server::SmallConfig(absl::StrCat(
      "run_name: 'attacked' train { steps: 10000 batch_sequences: 4 } "
      "sync { steps_between_syncs: ",
      kInterval, " } membership { max_workers: 6 lease_ms: 60000 start_workers: ", kHonest, " }"));
  if (change) change(config);
  return config;
}

}  // namespace

Run::Run(Options options)
    : options_(std::move(options)),
      folder_(options_.folder.empty() ? own_folder_.path("run") : options_.folder),
      config_(AttackedConfig(options_.change)) {}

Run::~Run() { Kill(); }

absl::Status Run::Start() {
  RETURN_IF_ERROR(CompleteRunConfig(config_).status());
  ASSIGN_OR_RETURN(store_,
                   server::RunDirectoryStore::Open(*FileSystem::Real(), folder_, StoreOptions()));
  server::Coordinator::Options options = server::OptionsOf(config_, "attacked-1", *store_);
  ASSIGN_OR_RETURN(options.recovered, store_->Recover());
  options.clock = options_.clock;
  options.events = &record_;
  options.snapshot_every_rounds = options_.snapshot_every_rounds;
  ASSIGN_OR_RETURN(coordinator_, server::Coordinator::Create(std::move(options)));
  server::CoordinatorServer::Options serve;
  serve.address = "127.0.0.1:0";
  serve.events = &record_;
  if (options_.server) options_.server(serve);
  ASSIGN_OR_RETURN(server_, server::CoordinatorServer::Start(serve, *coordinator_));
  return absl::OkStatus();
}

void Run::Kill() {
  if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  server_.reset();
  coordinator_.reset();
  store_.reset();
}

std::string Run::address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

absl::StatusOr<std::vector<v1::Round>> Run::Rounds() const {
  ASSIGN_OR_RETURN(const std::unique_ptr<server::RunDirectoryStore> store,
                   server::RunDirectoryStore::Open(*FileSystem::Real(), folder_, StoreOptions()));
  ASSIGN_OR_RETURN(std::optional<server::RecoveredRun> run, store->Recover());
  if (!run.has_value()) return absl::NotFoundError("there is no run");
  return std::move(run->rounds);
}

}  // namespace causeway::hostile
