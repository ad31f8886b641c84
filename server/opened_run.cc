#include "server/opened_run.h"

#include <algorithm>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/client/boarding.h"
#include "common/client/grpc_exchange.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "server/store/run_directory.h"

ABSL_FLAG(
    std::string, parent, "",
    "HOST:PORT,...|LINE: the coordinator whose run this is, and its standbys; or an invitation "
    "of the role region, or the RUN or RUN/NAME that boarded by one");
ABSL_FLAG(std::string, region_id, "", "NAME: this region's name there");
ABSL_FLAG(int, sites, 0, "N: as many sites as this region may have");
ABSL_FLAG(std::string, parent_tls_cert, "",
          "FILE: this region's certificate there; else --tls_cert and its key");
ABSL_FLAG(std::string, parent_tls_key, "", "FILE: its private key");
ABSL_FLAG(std::string, parent_token_file, "", "FILE: this region's token there");
ABSL_FLAG(std::string, parent_tls_server_name, "",
          "NAME: the host in the parent's certificate; else that of --parent");

ABSL_DECLARE_FLAG(std::string, identity);
ABSL_DECLARE_FLAG(std::string, listen);
ABSL_FLAG(std::string, durability, "full",
          "full|none|replicated: what is acknowledged outlives a power loss; none: kill -9 only; "
          "replicated: the loss of the machine, as a standby has it, too");
ABSL_FLAG(bool, retain_deltas, false, "keeps every delta, for replay");
ABSL_FLAG(bool, model_in_memory, false,
          "fragments stay in memory between their rounds, at 12 bytes a value; else they rest on "
          "the disk, which has as much to write a round");

namespace causeway::server {
namespace {

// The parent of a region that has begun may be started again meanwhile. Not for ever: the run may
// have ended, and another machine of the region may reach its parent where this one does not.
constexpr absl::Duration kBegunPatience = absl::Minutes(1);
// For an answer where it waits for one.
constexpr absl::Duration kOneTry = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Seconds(1);

absl::StatusOr<ReachedRun> AwaitParent(ParentOptions options,
                                       const std::function<bool(absl::Duration)>& wait) {
  // As long for each address: the first machine may be gone without a word.
  options.connect_timeout = kOneTry * (1 + std::ranges::count(options.address, ','));
  const absl::Time give_up = absl::Now() + kBegunPatience;
  std::string said;
  for (;;) {
    absl::StatusOr<ReachedRun> parent = ReachParent(options);
    if (!IsRetryable(parent.status()) || absl::Now() >= give_up) return parent;
    const std::string line = absl::StrCat(parent.status().message(), "; trying on");
    if (line != said) Log().warn("{}", line);
    said = line;
    if (wait(kPause)) return absl::CancelledError("stopped before an answer came");
  }
}

// The parent's address, this region's id and its certificate, by an invitation.
absl::Status BoardRegion(ParentOptions& parent) {
  if (!absl::GetFlag(FLAGS_parent_tls_cert).empty() || !parent.security.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--parent is an invitation, which brings its own certificate: leave --parent_tls_cert and "
        "--parent_token_file out");
  }
  absl::StatusOr<Boarded> boarded =
      Board(parent.address, absl::GetFlag(FLAGS_identity), parent.connect_timeout, {Role::kRegion});
  RETURN_IF_ERROR(Annotate(boarded.status(), "--parent"));
  if (!parent.region_id.empty() && parent.region_id != boarded->identity.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("--parent is for ", boarded->identity.name, ", not for ", parent.region_id));
  }
  boarded->security.refresh_interval = parent.security.refresh_interval;
  parent.address = boarded->coordinator;
  parent.region_id = boarded->identity.name;
  parent.security = boarded->security;
  parent.keeper = std::make_shared<IdentityKeeper>(*std::move(boarded));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParentOptions> ParentFromFlags(const GivenRun& given) {
  ParentOptions parent;
  parent.address = absl::GetFlag(FLAGS_parent);
  parent.region_id = absl::GetFlag(FLAGS_region_id);
  parent.sites = absl::GetFlag(FLAGS_sites);
  parent.security = SecurityOptionsFromFlags();
  const std::string certificate = absl::GetFlag(FLAGS_parent_tls_cert);
  if (!certificate.empty()) {
    parent.security.cert_file = certificate;
    parent.security.key_file = absl::GetFlag(FLAGS_parent_tls_key);
  }
  parent.security.server_name = absl::GetFlag(FLAGS_parent_tls_server_name);
  parent.security.token_file = absl::GetFlag(FLAGS_parent_token_file);
  if (certificate.empty() && !parent.security.token_file.empty()) {
    // --tls_cert is what its sites see.
    parent.security.cert_file.clear();
    parent.security.key_file.clear();
  }
  const bool has_identity = !absl::GetFlag(FLAGS_identity).empty();
  if (parent.address.empty()) {
    if (parent.region_id.empty() && parent.sites == 0 && parent.security.token_file.empty() &&
        !has_identity) {
      return parent;
    }
    return absl::InvalidArgumentError(
        "--region_id, --sites, --identity and --parent_token_file are a region's: give --parent, "
        "too, or leave them out");
  }
  if (given.has_config() || !given.initial.empty()) {
    return absl::InvalidArgumentError(
        "a region has no run, no model and no outer optimizer of its own: with --parent leave out "
        "--config, --preset and --initial");
  }
  if (MeansBoarding(parent.address)) {
    RETURN_IF_ERROR(BoardRegion(parent));
  } else if (has_identity) {
    return absl::InvalidArgumentError(
        "--identity is the folder of an invitation: give its line as --parent, or leave it out");
  }
  const absl::StatusOr<std::vector<std::string>> addresses = SplitAddresses(parent.address);
  RETURN_IF_ERROR(Annotate(addresses.status(), "--parent"));
  if (std::ranges::find(*addresses, absl::GetFlag(FLAGS_listen)) != addresses->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--parent=", parent.address,
                     " names the address that this coordinator listens "
                     "on: give its parent's"));
  }
  return parent;
}

absl::StatusOr<std::unique_ptr<ParentLink>> OpenRegion(
    const ParentOptions& options, const std::string& run_dir,
    const std::optional<RecoveredRun>& recovered, const std::function<bool(absl::Duration)>& wait) {
  ASSIGN_OR_RETURN(ReachedRun parent,
                   recovered.has_value() ? AwaitParent(options, wait) : ReachParent(options));
  ASSIGN_OR_RETURN(FragmentPlan plan, FragmentPlan::Create(parent.run.config()));
  if (recovered.has_value() && recovered->identity.run_id() != parent.run.run_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat(run_dir, " holds the run ", recovered->identity.run_id(), ", the parent at ",
                     options.address, " serves ", parent.run.run_id(),
                     ": check --parent, or give this region a fresh --run_dir"));
  }
  return std::make_unique<ParentLink>(options, std::move(parent), std::move(plan));
}

absl::Status FetchInitialParameters(FileSystem& file_system, const std::string& run_dir,
                                    const ParentLink& region) {
  const std::string& address = region.options().address;
  StatePullOptions options;
  options.worker_id = region.options().region_id;
  absl::StatusOr<PublishedState> state = PullPublishedState(
      *region.parent().channels, region.parent().run.run_id(), region.plan(), options);
  RETURN_IF_ERROR(Annotate(state.status(), absl::StrCat("the state of the run at ", address)));
  for (size_t i = 0; i < state->versions.size(); ++i) {
    if (state->versions[i] == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the run at ", address, " has published round ", state->versions[i], " of fragment ", i,
        ": a new region joins before the first round; let these sites join the "
        "parent itself"));
  }
  return KeepInitialValues(file_system, run_dir, address, region.parent().run.config(),
                           state->parameters);
}

namespace {

void RecordModel(EventLog& events, const BroughtModel& model) {
  events.Record(
      "model_brought",
      absl::StrCat("worker ", model.worker_id, " has brought the model: ", model.plan.parameters(),
                   " parameters in ", model.plan.fragments(), " fragments; the run begins"),
      {{"worker", model.worker_id},
       {"parameters", model.plan.parameters()},
       {"fragments", model.plan.fragments()}});
}

}  // namespace

RunDirectoryStore::Options StoreOptionsFromFlags() {
  return {.retain_deltas = absl::GetFlag(FLAGS_retain_deltas),
          .durable = absl::GetFlag(FLAGS_durability) != "none"};
}

absl::StatusOr<OpenedRun> OpenRun(FileSystem& file_system, const ServeFlags& flags,
                                  const std::function<bool(absl::Duration)>& wait) {
  OpenedRun run;
  run.replicated = absl::GetFlag(FLAGS_durability) == "replicated" || flags.shared.has_value();
  const std::string& folder = flags.given.run_dir;
  const bool was_copy = file_system.Exists(JoinPath(folder, kCopyFile));
  ASSIGN_OR_RETURN(run.store,
                   RunDirectoryStore::Open(file_system, folder, StoreOptionsFromFlags()));
  if (const absl::string_view network = NetworkFileSystemOf(folder); !network.empty()) {
    Log().warn(
        "{} is on a network file system ({}): its lock may hold on this machine only, so let no "
        "other one serve it; a disk of this machine is safer and faster",
        folder, std::string(network));
  }
  ASSIGN_OR_RETURN(run.recovered, run.store->Recover());
  run.resumes = run.recovered.has_value();
  if (was_copy && run.resumes && !flags.shared.has_value()) {
    Log().warn(
        "{} is a copy, with {} commits. Nobody but you can know that the coordinator which it "
        "followed is gone for good, and that no other copy has more. What that one told workers "
        "later is lost, unless it ran with --durability=replicated",
        folder, run.store->Position().commits());
  }
  if (!flags.parent.address.empty()) {
    ASSIGN_OR_RETURN(run.region, OpenRegion(flags.parent, folder, run.recovered, wait));
    run.config = run.region->parent().run.config();
    run.run_id = run.region->parent().run.run_id();
    return run;
  }
  run.awaits_model = !run.resumes && flags.given.awaits_first_site();
  ASSIGN_OR_RETURN(CompleteConfig complete, ChooseConfig(file_system, flags.given, run.recovered));
  for (const std::string& warning : complete.warnings) Log().warn("{}", warning);
  run.config = std::move(complete.config);
  run.run_id = run.resumes ? run.recovered->identity.run_id()
                           : absl::StrCat(run.config.run_name(), "-", RandomSuffix());
  return run;
}

absl::StatusOr<std::unique_ptr<ServedRun>> MakeServedRun(FileSystem& file_system,
                                                         const ServeFlags& flags, OpenedRun& run,
                                                         const Coordinator::Options& options) {
  const auto begin = [&flags, &run, options](const v1::RunConfig& complete,
                                             const FragmentPlan& plan, InitialValues initial,
                                             std::optional<RecoveredRun> former) {
    int64_t largest = 0;
    for (int i = 0; i < plan.fragments(); ++i) largest = std::max(largest, plan.range(i).size());
    run.store->set_spare_bytes(RunDirectoryStore::SpareBytesFor(static_cast<uint64_t>(largest)));
    Coordinator::Options own = options;
    own.config = complete;
    own.initial_values = std::move(initial);
    if (!absl::GetFlag(FLAGS_model_in_memory)) own.scratch_folder = flags.given.run_dir;
    own.recovered = std::move(former);
    return Coordinator::Create(std::move(own));
  };
  if (run.awaits_model) {
    return std::make_unique<ServedRun>(
        run.config, run.run_id,
        [begin, &file_system, &flags, events = options.events](
            const BroughtModel& model,
            std::vector<float> values) -> absl::StatusOr<std::unique_ptr<Coordinator>> {
          RETURN_IF_ERROR(KeepInitialValues(file_system, flags.given.run_dir, model.worker_id,
                                            model.config, values));
          std::vector<float>().swap(values);
          auto begun =
              begin(model.config, model.plan,
                    InitialValuesOf(file_system, flags.given.run_dir, model.config, model.plan),
                    std::nullopt);
          if (begun.ok()) RecordModel(*events, model);
          return begun;
        });
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(run.config));
  InitialValues initial;
  if (run.region != nullptr && !run.resumes) {
    RETURN_IF_ERROR(FetchInitialParameters(file_system, flags.given.run_dir, *run.region));
    initial = InitialValuesOf(file_system, flags.given.run_dir, run.config, plan);
  } else {
    ASSIGN_OR_RETURN(initial, ChooseInitialValues(file_system, flags.given, plan, run.config,
                                                  run.resumes, *options.merge_pool));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Coordinator> coordinator,
                   begin(run.config, plan, std::move(initial), std::move(run.recovered)));
  return std::make_unique<ServedRun>(std::move(coordinator));
}

}  // namespace causeway::server
