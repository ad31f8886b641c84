#include "worker/commands/site.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"

namespace causeway::worker {
namespace {

absl::StatusOr<v1::SiteMember> OfThisProcess(const SiteOptions& options, FileSystem& files) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> program, files.Map("/proc/self/exe"));
  v1::SiteMember member;
  member.set_program(absl::StrCat(kSoftwareVersion, " ", HashToHex(TreeHash(program->bytes()))));
  member.set_gpus(static_cast<int>(options.devices.gpus.size()));
  member.set_shard_gradients(options.devices.shard_gradients);
  return member;
}

// Checks what `other` must have in common with process 0.
absl::Status CheckMember(const v1::SiteMember& first, const v1::SiteMember& other) {
  if (other.program() != first.program()) {
    return absl::FailedPreconditionError(absl::StrCat("it runs another build of this program (",
                                                      other.program(), ") than process 0 (",
                                                      first.program(),
                                                      "): install the same one on all "
                                                      "machines"));
  }
  if (other.gpus() < 1) return absl::DataLossError("it says that it has no GPU");
  if (other.shard_gradients() != first.shard_gradients()) {
    const auto flag = [](const v1::SiteMember& member) {
      return member.shard_gradients() ? "--gradients=sharded" : "--gradients=whole";
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "it has ", flag(other), ", process 0 ", flag(first), ": give all of them the same flags"));
  }
  return absl::OkStatus();
}

// The file of measured matrix products that is kept for a process, beside that of process 0.
std::string PlanFileOf(const std::string& plan_file, size_t process) {
  if (process == 0) return plan_file;
  return absl::StrCat(absl::StripSuffix(plan_file, ".json"), ".", process, ".json");
}

// Whoever stops all processes of a site stops process 0 no later than the others, and it may be
// gone before these have heard.
bool IsToldToStopSoon(const std::function<bool()>& stop) {
  constexpr int kPolls = 10;
  for (int i = 0; i < kPolls && !stop(); ++i) absl::SleepFor(kStopPoll);
  return stop();
}

}  // namespace

// --- Process 0 -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Site>> Site::Gather(const SiteOptions& options, FileSystem& files) {
  Log().info("this site has {} processes: waiting for the others on port {}",
             options.rendezvous.launch.processes, options.rendezvous.launch.master_port);
  std::unique_ptr<Site> site(new Site(options, files));
  ASSIGN_OR_RETURN(site->door_, SiteDoor::Open(options.rendezvous));
  ASSIGN_OR_RETURN(site->links_, site->door_->Gather());
  for (const std::unique_ptr<SiteLink>& link : site->links_) {
    link->Start([site = site.get()](SiteCall& call) {
      if (call.method != kSiteStop) return false;
      site->told_to_stop_ = true;
      return true;
    });
  }
  const absl::Status compared = site->CompareMembers();
  if (!compared.ok()) site->End(compared);
  RETURN_IF_ERROR(compared);
  return site;
}

absl::Status Site::CompareMembers() {
  ASSIGN_OR_RETURN(members_.emplace_back(), OfThisProcess(options_, files_));
  for (const std::unique_ptr<SiteLink>& link : links_) {
    const absl::StatusOr<ByteBuffer> said = link->CallAndAwait(kSiteHello);
    RETURN_IF_ERROR(OfPeer(*link, said.status()));
    v1::SiteMember& member = members_.emplace_back();
    if (!member.ParseFromString(TextOf(*said))) {
      return OfPeer(*link, absl::DataLossError(
                               "what it says of itself cannot be read: is it of another build?"));
    }
    RETURN_IF_ERROR(OfPeer(*link, CheckMember(members_.front(), member)));
    Log().info("{} is there: {} GPUs", link->peer(), member.gpus());
  }
  return absl::OkStatus();
}

Site::~Site() {
  if (!ended_) End(absl::UnknownError("it ended without a word"));
}

void Site::End(const absl::Status& status) {
  if (ended_.exchange(true)) return;
  if (!status.ok()) {
    options_.rendezvous.cause->Set(IsOfPeer(status) ? status : Annotate(status, NameOfProcess(0)));
    return;
  }
  for (const std::unique_ptr<SiteLink>& link : links_) {
    link->Call(kSiteEnd, 0, 0, {}).status().IgnoreError();  // It may have ended.
  }
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> Site::MakeBackend(const v1::RunConfig& config,
                                                                   const FragmentPlan& plan,
                                                                   const std::string& plan_file) {
  // One of every process, in their order.
  std::vector<RankRange> ranges;
  std::vector<std::string> plans;
  int ranks = 0;
  for (const v1::SiteMember& member : members_) {
    ASSIGN_OR_RETURN(plans.emplace_back(), ReadPlans(PlanFileOf(plan_file, ranges.size()), files_));
    ranges.push_back({ranks, member.gpus()});
    ranks += member.gpus();
  }
  RETURN_IF_ERROR(CheckShares(config.train(), ranks));
  const std::vector<std::string> stored = plans;
  ASSIGN_OR_RETURN(const std::string group_id, NewGpuGroupId());
  v1::SiteBuild build;
  *build.mutable_config() = config;
  build.set_ranks(ranks);
  build.set_group_id(group_id);
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < links_.size(); ++i) {
    build.set_first_rank(ranges[i + 1].first);
    build.set_plans(plans[i + 1]);
    ASSIGN_OR_RETURN(calls.emplace_back(),
                     links_[i]->Call(kSiteBuild, 0, 0, BytesOf(build.SerializeAsString())));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedBackend> own,
                   MakeShare(options_.devices, config, plan, files_,
                             {.ranks = ranks,
                              .group_id = group_id,
                              .cause = options_.rendezvous.cause,
                              .plans = &plans.front()}));
  std::vector<SiteBackend::Other> others;
  for (size_t i = 0; i < links_.size(); ++i) {
    const absl::StatusOr<ByteBuffer> built = links_[i]->Await(calls[i]);
    RETURN_IF_ERROR(OfPeer(*links_[i], built.status()));
    plans[i + 1] = TextOf(*built);
    others.push_back({links_[i].get(), ranges[i + 1]});
  }
  for (size_t process = 0; process < plans.size(); ++process) {
    RETURN_IF_ERROR(
        KeepPlans(stored[process], plans[process], PlanFileOf(plan_file, process), files_));
  }
  return std::make_unique<SiteBackend>(config, plan, std::move(own), others);
}

// --- The others ----------------------------------------------------------------------------------

SiteFollower::~SiteFollower() {
  if (shards_ != nullptr) shards_->Close();
  link_.reset();  // Ends the thread that receives, which may use the rest.
}

absl::StatusOr<std::unique_ptr<SiteFollower>> SiteFollower::Join(const SiteOptions& options,
                                                                 FileSystem& files) {
  std::unique_ptr<SiteFollower> follower(new SiteFollower(options, files));
  const LaunchEnvironment& launch = options.rendezvous.launch;
  Log().info("process {} of the {} of this site: looking for process 0 at {}:{}", launch.process,
             launch.processes, launch.master_address, launch.master_port);
  ASSIGN_OR_RETURN(follower->link_, VisitSite(options.rendezvous));
  Log().info("has found process 0, which may wait for others");
  follower->link_->Start([follower = follower.get()](SiteCall& call) {
    ShardServer* const server = follower->server_;
    return server != nullptr && server->HandleAtOnce(call);
  });
  return follower;
}

absl::Status SiteFollower::Follow(const std::function<bool()>& stop) {
  PeriodicThread watcher;
  absl::Status status = watcher.Start(kStopPoll, [&] { return WatchForStop(stop); });
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
  watcher.Stop();
  if (!status.ok() && !begun_ && IsToldToStopSoon(stop)) return absl::OkStatus();
  // The others end with this process's failure; it already knows theirs.
  if (!status.ok()) {
    SharedCause& cause = *options_.rendezvous.cause;
    cause.Set(Annotate(status, NameOfProcess(options_.rendezvous.launch.process)));
    return cause.Get();
  }
  return status;
}

absl::Duration SiteFollower::WatchForStop(const std::function<bool()>& stop) {
  if (!stop()) return kStopPoll;
  if (!met_) {
    // It hears nobody before all are there, and waits for this process to come again.
    options_.rendezvous.cause->Set(absl::CancelledError("told to stop"));
  } else {
    Log().info("told to stop: process 0 of this site hears it");
    // An error has a cause, which the training thread finds.
    link_->Call(kSiteStop, 0, 0, {}).status().IgnoreError();
  }
  return absl::InfiniteDuration();
}

absl::StatusOr<bool> SiteFollower::Handle(SiteCall& call) {
  switch (call.method) {
    case kSiteEnd:
      return true;
    case kSiteHello: {
      met_ = true;
      ASSIGN_OR_RETURN(const v1::SiteMember member, OfThisProcess(options_, files_));
      RETURN_IF_ERROR(
          link_->Answer(call.id, absl::OkStatus(), BytesOf(member.SerializeAsString())));
      return false;
    }
    case kSiteBuild: {
      ASSIGN_OR_RETURN(const std::string plans, Build(call));
      RETURN_IF_ERROR(link_->Answer(call.id, absl::OkStatus(), BytesOf(plans)));
      return false;
    }
    default:
      begun_ = begun_ || call.method == kSiteStep;
      RETURN_IF_ERROR(shards_ != nullptr
                          ? shards_->Handle(call)
                          : link_->Answer(call.id, absl::FailedPreconditionError(
                                                       "it has made no backend yet")));
      return false;
  }
}

absl::StatusOr<std::string> SiteFollower::Build(const SiteCall& call) {
  if (!build_.ParseFromString(TextOf(call.bytes))) {
    return absl::DataLossError("the configuration that process 0 sends cannot be read");
  }
  ASSIGN_OR_RETURN(plan_, FragmentPlan::Create(build_.config()));
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedBackend> backend,
                   MakeShare(options_.devices, build_.config(), *plan_, files_,
                             {.first_rank = build_.first_rank(),
                              .ranks = build_.ranks(),
                              .group_id = build_.group_id(),
                              .cause = options_.rendezvous.cause,
                              .plans = build_.mutable_plans()}));
  Log().info("does its share of every step on {}", backend->Describe());
  shards_ = std::make_unique<ShardServer>(*link_, build_.config(), *plan_, std::move(backend));
  server_ = shards_.get();
  return build_.plans();
}

}  // namespace causeway::worker
