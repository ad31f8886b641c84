#include "server/opened_run.h"

#include "absl/flags/flag.h"
#include "common/base/random.h"
#include "common/telemetry/log.h"
#include "server/store/run_directory.h"

ABSL_FLAG(std::string, durability, "full",
          "full|none|replicated: what is acknowledged outlives a power loss; none: kill -9 only; "
          "replicated: the loss of the machine, as a standby has it, too");
ABSL_FLAG(bool, retain_deltas, false, "keeps every delta, for replay");
ABSL_FLAG(bool, model_in_memory, false,
          "fragments stay in memory between their rounds, at 12 bytes a value; else they rest on "
          "the disk, which has as much to write a round");

namespace causeway::server {
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
