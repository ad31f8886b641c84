#include "tests/security/hostile_client/run.h"

#include "common/params/initialize.h"
#include "common/params/run_config.h"

namespace causeway::hostile {
namespace {

server::RunDirectoryStore::Options StoreOptions() { return {.durable = false, .spare_bytes = 0}; }

}  // namespace

v1::RunConfig SmallConfig(const ConfigChange& change) {
  v1::RunConfig config;
  config.set_run_name("attacked");
  v1::ModelConfig& model = *config.mutable_model();
  model.set_vocabulary_size(128);
  model.set_layers(1);
  model.set_width(16);
  model.set_heads(2);
  model.set_mlp_width(32);
  model.set_sequence_length(8);
  config.mutable_train()->set_steps(10'000);
  config.mutable_train()->set_batch_sequences(4);
  config.mutable_sync()->set_fragments(1);
  config.mutable_sync()->set_steps_between_syncs(kInterval);
  config.mutable_membership()->set_start_workers(kHonest);
  config.mutable_membership()->set_max_workers(6);
  config.mutable_membership()->set_lease_ms(60'000);
  if (change) change(config);
  return config;
}

void EventCounter::Record(absl::string_view event, const std::string&, const nlohmann::json&) {
  absl::MutexLock lock(&mutex_);
  ++counts_[std::string(event)];
}

int EventCounter::Count(const std::string& event) const {
  absl::MutexLock lock(&mutex_);
  const auto found = counts_.find(event);
  return found == counts_.end() ? 0 : found->second;
}

int EventCounter::total() const {
  absl::MutexLock lock(&mutex_);
  int total = 0;
  for (const auto& [event, count] : counts_) total += count;
  return total;
}

Run::Run(Options options)
    : options_(std::move(options)),
      folder_(options_.folder.empty() ? own_folder_.path("run") : options_.folder),
      config_(SmallConfig(options_.change)) {}

Run::~Run() { Kill(); }

absl::Status Run::Start() {
  RETURN_IF_ERROR(CompleteRunConfig(config_).status());
  ASSIGN_OR_RETURN(store_,
                   server::RunDirectoryStore::Open(*FileSystem::Real(), folder_, StoreOptions()));
  server::Coordinator::Options options;
  ASSIGN_OR_RETURN(options.recovered, store_->Recover());
  options.config = config_;
  options.run_id = "attacked-1";
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(options.config));
  options.initial_parameters.resize(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, 3, options.initial_parameters);
  options.clock = options_.clock;
  options.store = store_.get();
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
