#include "worker/commands/site.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"
#include "worker/commands/device_choice.h"
#include "worker/member/rendezvous.h"
#include "worker/sync/site_calls.h"

namespace causeway::worker {
namespace {

// Whoever stops all processes of a site stops process 0 no later than the others, and it may be
// gone before these have heard.
bool IsToldToStopSoon(const std::function<bool()>& stop) {
  constexpr int kPolls = 10;
  for (int i = 0; i < kPolls && !stop(); ++i) absl::SleepFor(kStopPoll);
  return stop();
}

}  // namespace

SiteFollower::SiteFollower(const SiteOptions& options, FileSystem& files)
    : options_(options),
      files_(files),
      cause_(std::make_shared<SharedCause>()),
      pool_(options.devices.kind == DeviceChoice::Kind::kCuda ? 1 : options.threads) {}

SiteFollower::~SiteFollower() {
  std::unique_ptr<ShardServer> shards;
  {
    absl::MutexLock lock(&servers_mutex_);
    shards = std::move(shards_);
  }
  shards.reset();
  link_.reset();
}

absl::StatusOr<std::unique_ptr<SiteFollower>> SiteFollower::Join(const SiteOptions& options,
                                                                 FileSystem& files) {
  std::unique_ptr<SiteFollower> follower(new SiteFollower(options, files));
  RETURN_IF_ERROR(follower->pool_.started());
  SiteRendezvous rendezvous;
  rendezvous.launch = options.launch;
  rendezvous.token = SiteToken(options);
  rendezvous.cause = follower->cause_;
  rendezvous.patience = options.patience;
  rendezvous.secret = options.secret;
  Log().info("process {} of the {} of this site: looking for process 0 at {}:{}",
             options.launch.process, options.launch.processes, options.launch.master_address,
             options.launch.master_port);
  ASSIGN_OR_RETURN(follower->link_, VisitSite(rendezvous));
  Log().info("has found process 0, which may wait for others");
  follower->link_->Start([follower = follower.get()](SiteCall& call) {
    absl::MutexLock lock(&follower->servers_mutex_);
    return follower->shards_ != nullptr && follower->shards_->HandleAtOnce(call);
  });
  return follower;
}

absl::Status SiteFollower::Follow(const std::function<bool()>& stop) {
  absl::StatusOr<std::thread> watcher = StartThread([&] { WatchForStop(stop); });
  absl::Status status = watcher.status();
  while (status.ok()) {
    absl::StatusOr<std::optional<SiteCall>> call = link_->NextCall();
    status = call.status();
    if (status.ok() && !call->has_value()) {
      status = absl::UnavailableError("process 0 of this site has left");
    }
    if (!status.ok()) break;
    const absl::StatusOr<bool> over = Handle(**call);
    status = over.status();
    if (status.ok() && *over) break;
  }
  {
    absl::MutexLock lock(&ended_mutex_);
    ended_ = true;
  }
  if (watcher.ok()) watcher->join();
  if (!status.ok() && !begun_ && IsToldToStopSoon(stop)) return absl::OkStatus();
  // The others end with this process's failure; it already knows theirs.
  if (!status.ok()) {
    cause_->Set(
        Annotate(status, absl::StrCat("process ", options_.launch.process, " of this site")));
    return cause_->Get();
  }
  return status;
}

void SiteFollower::WatchForStop(const std::function<bool()>& stop) {
  for (bool told = false;;) {
    {
      absl::MutexLock lock(&ended_mutex_);
      if (ended_mutex_.AwaitWithTimeout(absl::Condition(&ended_), kStopPoll)) return;
    }
    if (told || !stop()) continue;
    told = true;
    if (!met_) {
      // It hears nobody before all are there, and waits for this process to come again.
      cause_->Set(absl::CancelledError("told to stop"));
      continue;
    }
    Log().info("told to stop: process 0 of this site hears it");
    // An error has a cause, which the training thread finds.
    link_->Call(kSiteStop, 0, 0, {}).status().IgnoreError();
  }
}

absl::StatusOr<bool> SiteFollower::Handle(SiteCall& call) {
  switch (call.method) {
    case kSiteEnd:
      return true;
    case kSiteHello: {
      met_ = true;
      ASSIGN_OR_RETURN(const SiteMember member, SiteMember::OfThisProcess(options_, files_));
      RETURN_IF_ERROR(link_->Answer(call.id, absl::OkStatus(), BytesOf(member.ToJson())));
      return false;
    }
    case kSiteConfig:
      if (!config_.ParseFromArray(call.bytes.data(), static_cast<int>(call.bytes.size()))) {
        return absl::DataLossError("the configuration that process 0 sends cannot be read");
      }
      return false;
    case kSitePlans:
      plans_ = TextOf(call.bytes);
      return false;
    case kSiteBuild: {
      ASSIGN_OR_RETURN(const std::string plans, Build(call));
      RETURN_IF_ERROR(link_->Answer(call.id, absl::OkStatus(), BytesOf(plans)));
      return false;
    }
    default:
      RETURN_IF_ERROR(Serve(call));
      return false;
  }
}

absl::StatusOr<std::string> SiteFollower::Build(const SiteCall& call) {
  ASSIGN_OR_RETURN(plan_, FragmentPlan::Create(config_));
  RankRange range = {
      .first = static_cast<int>(call.argument), .count = 1, .ranks = static_cast<int>(call.number)};
  if (options_.devices.kind == DeviceChoice::Kind::kCpu) {
    steps_ = std::make_unique<StepServer>(*link_, config_, *plan_, &pool_, range);
    Log().info("does its share of every step on {} threads", pool_.threads());
    return std::string();
  }
  range.count = static_cast<int>(options_.devices.gpus.size());
  const GpuShare share = {
      .range = range, .group_id = TextOf(call.bytes), .cause = cause_, .plans = &plans_};
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedBackend> backend,
                   MakeShare(options_.devices, config_, *plan_, files_, share));
  Log().info("does its share of every step on {}", backend->Describe());
  auto shards = std::make_unique<ShardServer>(*link_, config_, *plan_, std::move(backend));
  absl::MutexLock lock(&servers_mutex_);
  shards_ = std::move(shards);
  return plans_;
}

absl::Status SiteFollower::Serve(SiteCall& call) {
  begun_ = begun_ || call.method == kSiteGradient || call.method == kSiteStep;
  if (steps_ != nullptr) {
    ASSIGN_OR_RETURN(const bool is_known, steps_->Handle(call));
    if (is_known) return absl::OkStatus();
  }
  ShardServer* shards = nullptr;
  {
    absl::MutexLock lock(&servers_mutex_);
    shards = shards_.get();  // Replaced by this thread alone.
  }
  if (shards != nullptr) return shards->Handle(call);
  return link_->Answer(
      call.id, absl::InvalidArgumentError(absl::StrCat("there is no method ", call.method)));
}

}  // namespace causeway::worker
