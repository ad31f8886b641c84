#include "worker/commands/site.h"

#include "absl/strings/strip.h"
#include "common/base/checksum.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "nlohmann/json.hpp"

namespace causeway::worker {
namespace {

using nlohmann::json;

std::string Process(size_t process) { return absl::StrCat("process ", process, " of this site"); }

// Checks what `other` must have in common with process 0.
absl::Status CheckMember(const SiteMember& first, const SiteMember& other) {
  if (other.program != first.program) {
    return absl::FailedPreconditionError(
        absl::StrCat("it runs another build of this program (", other.program, ") than process 0 (",
                     first.program, "): install the same one on all machines"));
  }
  if (other.device != first.device) {
    return absl::FailedPreconditionError(
        absl::StrCat("it computes on ", other.device, ", process 0 on ", first.device,
                     ": give all of them --device=", first.device,
                     first.device == "cuda" ? ", where each sees GPUs" : ""));
  }
  if (other.shard_gradients != first.shard_gradients) {
    const auto flag = [](const SiteMember& member) {
      return member.shard_gradients ? "--gradients=sharded" : "--gradients=whole";
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "it has ", flag(other), ", process 0 ", flag(first), ": give all of them the same flags"));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t SiteToken(const SiteOptions& options) {
  return Checksum64(absl::StrCat(options.worker_id, " at ", options.coordinator));
}

std::string PlanFileOf(const std::string& plan_file, int process) {
  if (process == 0) return plan_file;
  return absl::StrCat(absl::StripSuffix(plan_file, ".json"), ".", process, ".json");
}

// --- SiteMember ----------------------------------------------------------------------------------

absl::StatusOr<SiteMember> SiteMember::OfThisProcess(const SiteOptions& options,
                                                     FileSystem& files) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> program, files.Map("/proc/self/exe"));
  const bool gpus = options.devices.kind == DeviceChoice::Kind::kCuda;
  SiteMember member;
  member.program = absl::StrCat(kSoftwareVersion, " ", HashToHex(TreeHash(program->bytes())));
  member.device = gpus ? "cuda" : "cpu";
  member.gpus = static_cast<int>(options.devices.gpus.size());
  member.shard_gradients = options.devices.shard_gradients;
  member.threads = options.threads;
  return member;
}

std::string SiteMember::ToJson() const {
  return json({{"program", program},
               {"device", device},
               {"gpus", gpus},
               {"shard_gradients", shard_gradients},
               {"threads", threads}})
      .dump();
}

absl::StatusOr<SiteMember> SiteMember::FromJson(const std::string& text) {
  SiteMember member;
  try {
    const json said = json::parse(text);
    member.program = said.at("program").get<std::string>();
    member.device = said.at("device").get<std::string>();
    member.gpus = said.at("gpus").get<int>();
    member.shard_gradients = said.at("shard_gradients").get<bool>();
    member.threads = said.at("threads").get<int>();
  } catch (const json::exception&) {
    return absl::DataLossError("what it says of itself cannot be read: is it of another build?");
  }
  if (member.device == "cuda" && member.gpus < 1) {
    return absl::DataLossError("it says that it has no GPU");
  }
  return member;
}

// --- Site ----------------------------------------------------------------------------------------

Site::Site(const SiteOptions& options, std::shared_ptr<SharedCause> cause)
    : options_(options), cause_(std::move(cause)) {}

absl::StatusOr<std::unique_ptr<Site>> Site::Gather(const SiteOptions& options, FileSystem& files) {
  SiteRendezvous rendezvous;
  rendezvous.launch = options.launch;
  rendezvous.token = SiteToken(options);
  rendezvous.cause = std::make_shared<SharedCause>();
  rendezvous.patience = options.patience;
  rendezvous.secret = options.secret;
  Log().info("this site has {} processes: waiting for the others on port {}",
             options.launch.processes, options.launch.master_port);
  std::unique_ptr<Site> site(new Site(options, rendezvous.cause));
  ASSIGN_OR_RETURN(site->door_, SiteDoor::Open(rendezvous));
  ASSIGN_OR_RETURN(site->links_, site->door_->Gather());
  for (const std::unique_ptr<SiteLink>& link : site->links_) {
    link->Start([site = site.get()](SiteCall& call) {
      if (call.method != kSiteStop) return false;
      site->told_to_stop_ = true;
      return true;
    });
  }
  const absl::Status compared = site->CompareMembers(files);
  if (!compared.ok()) site->End(compared);
  RETURN_IF_ERROR(compared);
  return site;
}

absl::Status Site::CompareMembers(FileSystem& files) {
  ASSIGN_OR_RETURN(const SiteMember own, SiteMember::OfThisProcess(options_, files));
  members_.push_back(own);
  for (const std::unique_ptr<SiteLink>& link : links_) {
    const absl::StatusOr<ByteBuffer> said = link->CallAndAwait(kSiteHello);
    RETURN_IF_ERROR(OfPeer(*link, said.status()));
    const absl::StatusOr<SiteMember> member = SiteMember::FromJson(TextOf(*said));
    RETURN_IF_ERROR(OfPeer(*link, member.status()));
    RETURN_IF_ERROR(OfPeer(*link, CheckMember(own, *member)));
    Log().info("{} is there: {}", link->peer(),
               member->device == "cuda" ? absl::StrCat(member->gpus, " GPUs")
                                        : absl::StrCat(member->threads, " threads"));
    members_.push_back(*member);
  }
  return absl::OkStatus();
}

Site::~Site() {
  if (!ended_) End(absl::UnknownError("it ended without a word"));
}

void Site::End(const absl::Status& status) {
  if (ended_.exchange(true)) return;
  if (!status.ok()) {
    cause_->Set(IsOfPeer(status) ? status : Annotate(status, Process(0)));
    return;
  }
  for (const std::unique_ptr<SiteLink>& link : links_) {
    link->Call(kSiteEnd, 0, 0, {}).status().IgnoreError();  // It may have ended.
  }
}

std::vector<RankRange> Site::Ranks() const {
  std::vector<RankRange> ranks;
  int first = 0;
  for (const SiteMember& member : members_) {
    const int count = member.device == "cuda" ? member.gpus : 1;
    ranks.push_back({.first = first, .count = count, .ranks = 0});
    first += count;
  }
  for (RankRange& range : ranks) range.ranks = first;
  return ranks;
}

absl::Status Site::Build(const v1::RunConfig& config, const std::string& group_id,
                         const std::function<absl::Status()>& own) {
  const std::string serialized = config.SerializeAsString();
  const std::vector<RankRange> ranks = Ranks();
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < links_.size(); ++i) {
    SiteLink& link = *links_[i];
    const RankRange& range = ranks[i + 1];
    RETURN_IF_ERROR(link.Call(kSiteConfig, 0, 0, BytesOf(serialized)).status());
    RETURN_IF_ERROR(link.Call(kSitePlans, 0, 0, BytesOf(plans_[i + 1])).status());
    ASSIGN_OR_RETURN(const uint64_t call,
                     link.Call(kSiteBuild, range.first, range.ranks, BytesOf(group_id)));
    calls.push_back(call);
  }
  RETURN_IF_ERROR(own());
  for (size_t i = 0; i < links_.size(); ++i) {
    const absl::StatusOr<ByteBuffer> built = links_[i]->Await(calls[i]);
    RETURN_IF_ERROR(OfPeer(*links_[i], built.status()));
    plans_[i + 1] = TextOf(*built);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> Site::MakeBackend(const v1::RunConfig& config,
                                                                   const FragmentPlan& plan,
                                                                   ThreadPool* pool,
                                                                   FileSystem& files,
                                                                   const std::string& plan_file) {
  plans_.resize(members_.size());
  if (options_.devices.kind == DeviceChoice::Kind::kCuda) {
    return MakeGpuBackend(config, plan, files, plan_file);
  }
  RETURN_IF_ERROR(
      CheckShares(config.train(), processes(), "processes", "start fewer of them (WORLD_SIZE)"));
  std::vector<SiteLink*> links;
  for (const std::unique_ptr<SiteLink>& link : links_) links.push_back(link.get());
  std::unique_ptr<TrainingBackend> backend;
  RETURN_IF_ERROR(Build(config, "", [&] {
    backend = std::make_unique<CpuBackend>(
        config, plan, pool, std::make_unique<RemoteHelpers>(config, plan, pool, std::move(links)));
    return absl::OkStatus();
  }));
  return backend;
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> Site::MakeGpuBackend(
    const v1::RunConfig& config, const FragmentPlan& plan, FileSystem& files,
    const std::string& plan_file) {
  const std::vector<RankRange> ranks = Ranks();
  RETURN_IF_ERROR(CheckShares(config.train(), ranks.front().ranks, "GPUs",
                              "name fewer with --device=cuda:0,.."));
  std::vector<std::string> stored;
  for (int process = 0; process < processes(); ++process) {
    const std::string path = PlanFileOf(plan_file, process);
    if (files.Exists(path)) {
      ASSIGN_OR_RETURN(plans_[static_cast<size_t>(process)], files.ReadFile(path));
    }
  }
  stored = plans_;
  ASSIGN_OR_RETURN(const std::string group_id, NewGpuGroupId());
  std::unique_ptr<ShardedBackend> own;
  RETURN_IF_ERROR(Build(config, group_id, [&]() -> absl::Status {
    GpuShare share = {
        .range = ranks.front(), .group_id = group_id, .cause = cause_, .plans = &plans_.front()};
    ASSIGN_OR_RETURN(own, MakeShare(options_.devices, config, plan, files, share));
    return absl::OkStatus();
  }));
  for (int process = 0; process < processes(); ++process) {
    const std::string& text = plans_[static_cast<size_t>(process)];
    if (text == stored[static_cast<size_t>(process)]) continue;
    RETURN_IF_ERROR(
        WriteFileAtomically(files, PlanFileOf(plan_file, process), absl::string_view(text)));
  }
  std::vector<SiteBackend::Other> others;
  for (size_t i = 0; i < links_.size(); ++i) others.push_back({links_[i].get(), ranks[i + 1]});
  return std::make_unique<SiteBackend>(config, plan, std::move(own), others);
}

}  // namespace causeway::worker
