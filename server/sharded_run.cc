#include "server/sharded_run.h"

#include <algorithm>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/nonce.h"
#include "common/base/status_macros.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/rpc/security.h"
#include "common/rpc/security_flags.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "server/initial_parameters.h"
#include "server/shards/deal.h"
#include "server/shards/end_note.h"
#include "server/shards_rpc/shard_service.h"
#include "server/store/run_directory.h"
#include "server/store/run_parts.h"

ABSL_FLAG(std::string, shards, "",
          "NAME,...: the coordinators that share the run's fragments; this one is lead");
ABSL_FLAG(std::string, lead, "", "HOST:PORT: the lead whose shard this is, in place of --config");
ABSL_FLAG(std::string, shard, "", "NAME: this one's, of those in the lead's --shards");
ABSL_FLAG(std::string, lead_tls_cert, "",
          "FILE: this shard's certificate there; else --tls_cert and its key");
ABSL_FLAG(std::string, lead_tls_key, "", "FILE: its private key");
ABSL_FLAG(std::string, lead_tls_server_name, "",
          "NAME: the host in the lead's certificate; else that of --lead");

ABSL_DECLARE_FLAG(std::string, advertise);
ABSL_DECLARE_FLAG(std::string, etcd);

namespace causeway::server {
namespace {

// Lead and shard give each other up after the workers' lease, but not sooner than this: the lead
// waits as long for a roster to be heard.
constexpr absl::Duration kLeastSilence = absl::Seconds(5);

absl::Duration Silence(const v1::RunConfig& config) {
  return std::max(absl::Milliseconds(config.membership().lease_ms()), kLeastSilence);
}

constexpr absl::Duration kLeadPatience = absl::Seconds(30);

absl::StatusOr<ChannelSecurity> SecurityToLead(const std::string& lead) {
  SecurityOptions security = SecurityOptionsFromFlags();
  const std::string certificate = absl::GetFlag(FLAGS_lead_tls_cert);
  if (!certificate.empty()) {
    security.cert_file = certificate;
    security.key_file = absl::GetFlag(FLAGS_lead_tls_key);
  }
  security.server_name = absl::GetFlag(FLAGS_lead_tls_server_name);
  security.token_file.clear();
  return MakeChannelSecurity(security, lead, Clock::Real()->Now());
}

std::string Names(const std::vector<DealtShard>& deal) {
  return absl::StrJoin(deal, ",", [](std::string* text, const DealtShard& shard) {
    absl::StrAppend(text, shard.name);
  });
}

absl::Status CheckCount(const std::vector<std::string>& names, int fragments) {
  if (std::ssize(names) <= fragments) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--shards names ", names.size(), " coordinators, the run has ", fragments,
                   " fragments: name fewer, or raise sync.fragments"));
}

absl::StatusOr<std::vector<DealtShard>> Deal(const std::vector<std::string>& names,
                                             const v1::RunConfig& config) {
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  RETURN_IF_ERROR(CheckCount(names, plan.fragments()));
  std::vector<int64_t> sizes;
  for (int i = 0; i < plan.fragments(); ++i) sizes.push_back(plan.range(i).size());
  std::vector<std::vector<int>> dealt = DealFragments(sizes, static_cast<int>(names.size()));
  std::vector<DealtShard> deal;
  for (size_t i = 0; i < names.size(); ++i) {
    deal.push_back({.name = names[i], .fragments = std::move(dealt[i])});
  }
  return deal;
}

// The lead's answer to a shard whose folder holds this.
v1::ShardWelcome WelcomeOf(const RunIdentity& identity) {
  v1::ShardWelcome welcome;
  welcome.set_run_id(identity.run_id);
  *welcome.mutable_config() = identity.config;
  welcome.set_config_hash(identity.config_hash);
  welcome.set_plan_hash(identity.plan_hash);
  for (const int fragment : FragmentsOf(identity)) welcome.add_fragments(fragment);
  welcome.set_software_version(kSoftwareVersion);
  return welcome;
}

// The deal of a run that goes on without kDealFile: a standby's copy has none. Nothing: the folder
// has all fragments.
absl::StatusOr<std::optional<std::vector<DealtShard>>> DealOfCopy(
    const std::optional<ShardFlags>& flags, const std::string& run_dir, const RecoveredRun& run) {
  const std::vector<int> held = FragmentsOf(run.identity);
  const bool has_all = held.size() == run.identity.initial_hashes.size();
  if (!flags.has_value()) {
    if (has_all) return std::optional<std::vector<DealtShard>>();
    return absl::FailedPreconditionError(absl::StrCat(
        "the run in ", run_dir, " has fragments ", absl::StrJoin(held, ","),
        " in this folder, and others elsewhere: serve it with --lead and --shard if it is a "
        "shard's, with the --shards that the run began with if it is a copy of the lead's"));
  }
  if (has_all) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run in ", run_dir,
                     " has all fragments in this folder: leave --shards out to continue it, or "
                     "choose another --run_dir"));
  }
  ASSIGN_OR_RETURN(std::vector<DealtShard> deal, Deal(flags->names, run.identity.config));
  std::vector<int> own;
  for (DealtShard& shard : deal) {
    shard.begun = true;  // Nobody knows: one that has not needs no copy of its lead.
    if (shard.name == kLeadName) own = shard.fragments;
  }
  if (own == held) return std::optional(std::move(deal));
  return absl::FailedPreconditionError(
      absl::StrCat("the run in ", run_dir, " has fragments ", absl::StrJoin(held, ","),
                   " in this folder, --shards=", Names(deal), " deals the lead ",
                   absl::StrJoin(own, ","), ": give the --shards that the run began with"));
}

}  // namespace

absl::StatusOr<std::optional<ShardFlags>> ShardFlagsFromFlags(const GivenRun& given,
                                                              const std::string& listen,
                                                              bool is_region) {
  ShardFlags flags;
  const std::string names = absl::GetFlag(FLAGS_shards);
  flags.lead = absl::GetFlag(FLAGS_lead);
  flags.name = absl::GetFlag(FLAGS_shard);
  flags.advertise = absl::GetFlag(FLAGS_advertise);
  if (names.empty() && flags.lead.empty() && flags.name.empty()) {
    return std::optional<ShardFlags>();
  }
  if (!absl::GetFlag(FLAGS_etcd).empty()) {
    return absl::InvalidArgumentError(
        "--etcd with --shards or --lead: a run over several coordinators has no standby yet; leave "
        "out one of them");
  }
  if (is_region) {
    return absl::InvalidArgumentError(
        "--parent with --shards or --lead: a region has all fragments; leave out one of them");
  }
  if (!names.empty()) {
    if (!flags.lead.empty() || !flags.name.empty()) {
      return absl::InvalidArgumentError(
          "--shards is the lead's flag, --lead and --shard are a shard's: give one or the others");
    }
    ASSIGN_OR_RETURN(flags.names, ParseShardNames(names));
    return std::optional(std::move(flags));
  }
  if (flags.lead.empty() || flags.name.empty()) {
    return absl::InvalidArgumentError("--lead=HOST:PORT and --shard=NAME go together: give both");
  }
  RETURN_IF_ERROR(Annotate(CheckAddress(flags.lead, /*allow_any_port=*/false), "--lead"));
  RETURN_IF_ERROR(CheckName("--shard", flags.name));
  if (given.has_config() || !given.initial.empty()) {
    return absl::InvalidArgumentError(
        "a shard has its configuration and its first values from its lead: leave out --config, "
        "--preset and --initial");
  }
  if (flags.advertise.empty() &&
      (absl::StartsWith(listen, "0.0.0.0:") || absl::StartsWith(listen, "[::]:"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", listen, " tells workers nothing: give --advertise=HOST:PORT, ",
                     "where they reach this shard"));
  }
  ASSIGN_OR_RETURN(flags.security, SecurityToLead(flags.lead));
  for (const std::string& warning : flags.security.warnings) Log().warn("{}", warning);
  return std::optional(std::move(flags));
}

absl::StatusOr<std::unique_ptr<ShardedRun>> ShardedRun::OpenShard(
    FileSystem& file_system, const ShardFlags& flags, const std::string& run_dir,
    const std::optional<RecoveredRun>& recovered, const LeadLink::Waiter& wait) {
  std::unique_ptr<ShardedRun> run(new ShardedRun);
  run->file_system_ = &file_system;
  run->run_dir_ = run_dir;
  run->advertise_ = flags.advertise;
  run->hello_.set_wire_version(kWireVersion);
  run->hello_.set_name(flags.name);
  run->hello_.set_software_version(kSoftwareVersion);
  run->hello_.set_process_nonce(RandomNonce());
  if (recovered.has_value()) {
    run->hello_.set_run_id(recovered->identity.run_id);
    for (const int fragment : FragmentsOf(recovered->identity)) {
      run->hello_.add_fragments(fragment);
    }
  }
  run->link_ = std::make_unique<LeadLink>(flags.lead, flags.security, run->hello_);
  run->link_->set_end_note(&file_system, run_dir);
  if (recovered.has_value()) {
    ASSIGN_OR_RETURN(run->end_, ReadEnd(file_system, run_dir));
  }
  // The lead gives a former process of this shard up when it has been silent for so long.
  const absl::Duration served =
      kLeadPatience + (recovered.has_value() ? Silence(recovered->identity.config) : kLeastSilence);
  absl::StatusOr<v1::ShardWelcome> answer = run->link_->Ask(kLeadPatience, served, wait);
  if (absl::IsUnavailable(answer.status()) && run->end_.has_value()) {
    Log().info("{}; the run has reached its end, so its lead may have ended",
               std::string(answer.status().message()));
    answer = WelcomeOf(recovered->identity);
  }
  RETURN_IF_ERROR(answer.status());
  run->welcome_ = *std::move(answer);
  const v1::ShardWelcome& welcome = run->welcome_;
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(welcome.config()));
  if (welcome.config_hash() != RunConfigHash(welcome.config()) ||
      welcome.plan_hash() != plan.hash()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the lead at ", flags.lead, " (", welcome.software_version(),
        ") hashes the run's configuration or cuts its model otherwise: run the same release on "
        "both (",
        kSoftwareVersion, " here)"));
  }
  run->fragments_ = {welcome.fragments().begin(), welcome.fragments().end()};
  for (const int fragment : run->fragments_) {
    if (fragment >= 0 && fragment < plan.fragments()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the lead at ", flags.lead, " deals fragment ", fragment, ", the run has ",
                     plan.fragments(), ": run the same release on both"));
  }
  run->hello_.set_run_id(welcome.run_id());
  *run->hello_.mutable_fragments() = welcome.fragments();
  Log().info("shard {} of run {}, with fragments {}, in {}", flags.name, welcome.run_id(),
             absl::StrJoin(run->fragments_, ","), run_dir);
  return run;
}

absl::StatusOr<std::unique_ptr<ShardedRun>> ShardedRun::OpenLead(
    FileSystem& file_system, const std::optional<ShardFlags>& flags, const std::string& run_dir,
    const v1::RunConfig& config, const std::optional<RecoveredRun>& recovered, bool awaits_model) {
  std::optional<std::vector<DealtShard>> deal;
  if (recovered.has_value()) {
    ASSIGN_OR_RETURN(deal, ReadDeal(file_system, run_dir));
    if (!deal.has_value()) {
      ASSIGN_OR_RETURN(deal, DealOfCopy(flags, run_dir, *recovered));
      if (deal.has_value()) RETURN_IF_ERROR(WriteDeal(file_system, run_dir, *deal));
    }
  } else if (const std::string left = JoinPath(run_dir, kDealFile); file_system.Exists(left)) {
    // An attempt without a run has left it. The run that begins now would be taken for a lead's.
    RETURN_IF_ERROR(file_system.Remove(left));
    RETURN_IF_ERROR(file_system.SyncFolder(run_dir));
  }
  if (!flags.has_value() && !deal.has_value()) return std::unique_ptr<ShardedRun>();
  if (flags.has_value()) {
    std::vector<DealtShard> asked;
    if (awaits_model) {
      if (config.sync().fragments() > 0) {
        RETURN_IF_ERROR(CheckCount(flags->names, config.sync().fragments()));
      }
      for (const std::string& name : flags->names) asked.emplace_back().name = name;
    } else {
      ASSIGN_OR_RETURN(asked, Deal(flags->names, config));
    }
    if (!deal.has_value()) {
      deal = asked;
      if (!awaits_model) RETURN_IF_ERROR(WriteDeal(file_system, run_dir, asked));
    } else if (Names(*deal) != Names(asked)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the run in ", run_dir, " began with --shards=", Names(*deal),
                       ": its fragments are dealt for good; leave --shards out to continue it"));
    }
  }
  std::unique_ptr<ShardedRun> run(new ShardedRun);
  run->file_system_ = &file_system;
  run->run_dir_ = run_dir;
  if (flags.has_value()) run->names_ = flags->names;
  if (!awaits_model) run->NoteDeal(*deal);
  run->hub_options_ = {.file_system = &file_system, .folder = run_dir, .deal = *std::move(deal)};
  run->hub_options_.clock = Clock::Real();
  run->hub_options_.silence = Silence(config);
  run->hub_options_.initial = [opened = run.get()](std::span<const int> fragments,
                                                   const auto& take) -> absl::Status {
    ASSIGN_OR_RETURN(const KeptParameters* const kept, opened->Kept());
    return kept->Read(fragments, take);
  };
  return run;
}

absl::StatusOr<const KeptParameters*> ShardedRun::Kept() {
  absl::MutexLock lock(&kept_mutex_);
  if (!kept_.has_value()) {
    ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(coordinator_->config()));
    ASSIGN_OR_RETURN(kept_, KeptParameters::Open(*file_system_, run_dir_, plan));
  }
  return &*kept_;
}

void ShardedRun::NoteDeal(const std::vector<DealtShard>& deal) {
  for (const DealtShard& shard : deal) {
    Log().info("shard {} has fragments {}", shard.name, absl::StrJoin(shard.fragments, ","));
    if (shard.name == kLeadName) fragments_ = shard.fragments;
  }
}

absl::Status ShardedRun::TakeModel(const v1::RunConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<DealtShard> deal, Deal(names_, config));
  RETURN_IF_ERROR(WriteDeal(*file_system_, run_dir_, deal));
  NoteDeal(deal);
  hub_->Deal(deal);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ShardedRun::FetchInitial(const FragmentPlan& plan,
                                                            const LeadLink::Waiter& wait) {
  ASSIGN_OR_RETURN(std::vector<float> values, link_->Initial(plan, fragments_, wait));
  RETURN_IF_ERROR(
      KeepInitialFragments(*file_system_, run_dir_, "lead", welcome_.config(), fragments_, values));
  return values;
}

void ShardedRun::SetMayTell(std::function<absl::Status()> may_tell) {
  if (link_ != nullptr)
    link_->set_may_tell(std::move(may_tell));
  else
    hub_options_.may_tell = std::move(may_tell);
}

EventLog* ShardedRun::SetEvents(EventLog* events) {
  if (link_ != nullptr) {
    link_->set_events(events);
    return link_.get();
  }
  hub_options_.events = events;
  hub_options_.process_nonce = RandomNonce();
  hub_ = std::make_unique<ShardHub>(std::move(hub_options_));
  return events;
}

PartOptions ShardedRun::part() { return {.fragments = fragments_, .shards = hub_.get()}; }

std::unique_ptr<grpc::Service> ShardedRun::MakeService(Access& access) {
  if (hub_ == nullptr) return nullptr;
  return std::make_unique<ShardService>(*hub_, access);
}

void ShardedRun::Begin(Coordinator& coordinator) {
  coordinator_ = &coordinator;
  if (hub_ != nullptr) hub_->Begin(coordinator);
}

absl::Status ShardedRun::Start(Coordinator& coordinator, const std::string& bound) {
  if (link_ == nullptr) return absl::OkStatus();
  if (end_.has_value()) {
    RETURN_IF_ERROR(coordinator.FollowLead(*end_));
    coordinator.LoseLead();
  }
  hello_.set_address(advertise_.empty() ? bound : advertise_);
  return link_->Start(coordinator, hello_, Silence(welcome_.config()));
}

absl::Status ShardedRun::status() const {
  return link_ == nullptr ? absl::OkStatus() : link_->status();
}

void ShardedRun::Stop() {
  if (hub_ != nullptr) hub_->Stop();
  if (link_ != nullptr) link_->Stop();
}

}  // namespace causeway::server
