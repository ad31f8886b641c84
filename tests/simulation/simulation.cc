#include "tests/simulation/simulation.h"

#include "common/params/run_config.h"
#include "tests/simulation/virtual_region.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::simulation {
namespace {

// From the last fault to the last step, whatever has to be caught up with.
constexpr int64_t kMostQuietEvents = 200'000;
constexpr absl::Duration kMostQuietTime = absl::Hours(1);

// Where a worker's processes run one after the other, and now and then two at once. Its disk keeps
// the checkpoint.
struct Site {
  std::string id;
  CoordinatorHost* host = nullptr;  // The hub's, or its region's.
  Auditor* auditor = nullptr;
  std::optional<WorkerCheckpoint> checkpoint;
  MergeRecord record;
  std::shared_ptr<VirtualWorker> process;
  std::vector<std::shared_ptr<VirtualWorker>> former;  // Not dead yet.
  int64_t starts = 0;                                  // Scheduled ones have their number.
  int64_t last_step = 0;
  bool finished = false;
};

struct Region {
  std::string id;
  std::unique_ptr<Auditor> auditor;
  std::unique_ptr<CoordinatorHost> host;
  std::shared_ptr<VirtualRegion> process;
};

class Simulation {
 public:
  Simulation(const Scenario& scenario, std::ostream* trace, const PlantedBug& bug,
             const std::vector<MergeRecord>& replayed)
      : scenario_(scenario),
        bug_(bug),
        replayed_(replayed),
        world_(scenario.seed, trace),
        plan_(FragmentPlan::Create(scenario.config).value()),
        config_hash_(RunConfigHash(scenario.config)),
        initial_(server::InitialOf(plan_, 1)),
        auditor_(world_, scenario_, plan_, initial_),
        host_(world_, scenario_, auditor_, server::ValuesOf(plan_, initial_), bug.coordinator) {}

  Outcome Run();

 private:
  void AddRegion(int sites);
  std::shared_ptr<VirtualRegion> NewProcess(const Region& region, int sites);
  CoordinatorHost& AnyHost();
  void StartSite(Site& site, absl::Duration delay);
  void StartProcess(Site& site);
  void OnExit(Site& site, VirtualWorker* process, VirtualWorker::Exit exit);
  void ScheduleFault();
  void Befall();
  void KillWorker(Site& site);
  void StartSecondProcess(Site& site);
  void Pause();
  void Unpause();
  void StopAtStep();
  void Lie();
  void BeQuiet();
  bool AllFinished() const;
  void CheckTheEnd();
  void GiveUp();

  const Scenario scenario_;
  const PlantedBug& bug_;
  const std::vector<MergeRecord>& replayed_;  // By site; empty: nothing is.
  World world_;
  const FragmentPlan plan_;
  const uint64_t config_hash_;
  const std::vector<float> initial_;
  Auditor auditor_;
  CoordinatorHost host_;
  std::deque<Region> regions_;
  std::vector<Site> sites_;
  int64_t stop_step_ = 0;
};

std::shared_ptr<VirtualRegion> Simulation::NewProcess(const Region& region, int sites) {
  VirtualRegion::Options options;
  options.world = &world_;
  options.scenario = &scenario_;
  options.plan = &plan_;
  options.auditor = &auditor_;
  options.host = &host_;
  options.own = region.host.get();
  options.id = region.id;
  options.sites = sites;
  options.config_hash = config_hash_;
  options.nonce = world_.Bits();
  options.late_counts = bug_.regions_count_late_deltas;
  return std::make_shared<VirtualRegion>(std::move(options));
}

void Simulation::AddRegion(int sites) {
  Region& region = regions_.emplace_back();
  region.id = absl::StrCat("region-", regions_.size() - 1);
  region.auditor =
      std::make_unique<Auditor>(world_, scenario_, plan_, initial_, &auditor_, region.id);
  HostHooks hooks;
  hooks.begin = [this, &region, sites](server::Coordinator::Options& options) {
    region.process = NewProcess(region, sites);
    options.region = server::RegionOptions{
        .parent = region.process.get(), .id = region.id, .sites = sites, .above = {}};
    if (!options.recovered.has_value() || !bug_.regions_forget_what_they_sent) return;
    std::erase_if(options.recovered->contributions,
                  [&](const auto& record) { return record.header().worker_id() == region.id; });
  };
  hooks.started = [&region] { region.process->Start(); };
  hooks.died = [this, &region] {
    region.process->Kill(/*silently=*/false);
    // It may be what has called.
    world_.After(absl::ZeroDuration(), [gone = std::move(region.process)] {});
  };
  region.host = std::make_unique<CoordinatorHost>(world_, scenario_, *region.auditor,
                                                  server::ValuesOf(plan_, initial_), nullptr,
                                                  region.id, std::move(hooks));
}

CoordinatorHost& Simulation::AnyHost() {
  if (regions_.empty()) return host_;
  const int64_t drawn = world_.Between(0, std::ssize(regions_));
  return drawn == 0 ? host_ : *regions_[static_cast<size_t>(drawn - 1)].host;
}

void Simulation::StartSite(Site& site, absl::Duration delay) {
  const int64_t start = ++site.starts;
  world_.After(delay, [this, &site, start] {
    if (start == site.starts) StartProcess(site);
  });
}

void Simulation::StartProcess(Site& site) {
  VirtualWorker::Options options;
  options.world = &world_;
  options.scenario = &scenario_;
  options.plan = &plan_;
  options.auditor = site.auditor;
  options.host = site.host;
  options.id = site.id;
  options.config_hash = config_hash_;
  options.nonce = world_.Bits();
  options.checkpoint = site.checkpoint;
  // Who begins from the published state has nothing to repeat.
  if (!site.checkpoint.has_value() && replayed_.empty()) site.record.clear();
  options.record = &site.record;
  options.drop_late_deltas = bug_.workers_drop_late_deltas;
  options.forget_merges = bug_.workers_forget_merges;
  options.merge_unrecorded = bug_.workers_merge_unrecorded;
  options.lies = &site - sites_.data() < scenario_.liars;
  // Set below, when there is a process to compare with.
  auto self = std::make_shared<VirtualWorker*>(nullptr);
  options.save = [&site, self](const WorkerCheckpoint& checkpoint) {
    // A process that was replaced has lost its disk to its successor.
    if (site.process.get() == *self) site.checkpoint = checkpoint;
  };
  options.on_exit = [this, &site, self](VirtualWorker::Exit exit) { OnExit(site, *self, exit); };
  site.process = std::make_shared<VirtualWorker>(std::move(options));
  *self = site.process.get();
  site.process->Start();
}

void Simulation::OnExit(Site& site, VirtualWorker* process, VirtualWorker::Exit exit) {
  if (site.process.get() != process) return;
  world_.Trace(site.id, " exits: ",
               exit == VirtualWorker::Exit::kFinished  ? "finished"
               : exit == VirtualWorker::Exit::kDrained ? "drained"
                                                       : "failed");
  if (exit == VirtualWorker::Exit::kFinished) {
    site.finished = true;
    site.last_step = process->step();
    return;
  }
  StartSite(site, world_.Between(absl::Milliseconds(100), absl::Seconds(5)));
}

void Simulation::KillWorker(Site& site) {
  if (site.process == nullptr || site.process->dead()) return;
  if (scenario_.undisturbed_bits && !site.checkpoint.has_value()) return;
  world_.Count("workers_killed");
  // With a region of long leases, its place would not be free again.
  const bool silently = world_.Chance(0.3) && (regions_.empty() || !scenario_.undisturbed_bits);
  world_.Trace(site.id, " is killed", silently ? " silently" : "");
  site.process->Kill(silently);
  if (world_.Chance(scenario_.lose_checkpoint)) site.checkpoint.reset();
  StartSite(site, world_.Between(absl::Milliseconds(100), absl::Seconds(15)));
}

void Simulation::StartSecondProcess(Site& site) {
  if (site.process == nullptr || site.process->dead()) return;
  world_.Count("second_processes");
  world_.Trace("a second process of ", site.id, " starts");
  std::erase_if(site.former, [](const auto& process) { return process->dead(); });
  site.former.push_back(site.process);
  ++site.starts;
  StartProcess(site);
  // The former one's connection is cut, which is why it was taken for dead.
  if (Stream* const stream = site.former.back()->stream(); stream != nullptr) stream->Sever();
}

void Simulation::Pause() {
  if (!host_.Command([](server::Coordinator& c) { c.orders().Pause("simulated").IgnoreError(); }))
    return;
  world_.Count("pauses");
  world_.Trace("paused");
  world_.After(world_.Between(absl::Milliseconds(100), absl::Seconds(5)), [this] { Unpause(); });
}

void Simulation::Unpause() {
  if (host_.Command([](server::Coordinator& c) { c.orders().Resume().IgnoreError(); })) {
    world_.Trace("resumed");
  } else {
    world_.After(absl::Seconds(1), [this] { Unpause(); });
  }
}

void Simulation::StopAtStep() {
  // Whoever is past that step when it hears of it cannot finish its rounds without the others.
  if (stop_step_ > 0 || scenario_.config.membership().quorum() > 1) return;
  int64_t furthest = 0;
  for (const Site& site : sites_) {
    if (site.process != nullptr) furthest = std::max(furthest, site.process->step());
  }
  const int64_t step = furthest + world_.Between(1, 6);
  if (step >= scenario_.config.train().steps()) return;
  // If the coordinator dies of it, its successor may know of it all the same.
  absl::Status status = absl::FailedPreconditionError("there is no coordinator");
  host_.Command([&](server::Coordinator& c) { status = c.orders().StopAtStep(step); });
  if (absl::IsFailedPrecondition(status)) return;
  world_.Count("stops_at_a_step");
  world_.Trace("stop at step ", step);
  stop_step_ = step;
}

void Simulation::Lie() {
  if (!world_.faulty()) return;
  world_.After(scenario_.between_faults, [this] { Lie(); });
  const Site& site = sites_[static_cast<size_t>(world_.Between(0, scenario_.liars - 1))];
  if (site.process == nullptr || site.process->incarnation() == 0) return;
  // Nobody can be there: the round sent before it is not published yet.
  int64_t step = scenario_.config.train().steps();
  const SyncSchedule schedule(plan_.fragments(), scenario_.config.sync().steps_between_syncs(),
                              scenario_.config.sync().overlap_steps());
  for (int i = 0; i < plan_.fragments(); ++i) {
    step = std::min(step, schedule.SendStep(i, site.auditor->version(i) + 1) +
                              MaxOverlapSteps(scenario_.config.sync()) + 1);
  }
  if (step >= scenario_.config.train().steps()) return;
  v1::WorkerMessage message;
  if (world_.Chance(0.5)) {
    message.mutable_ready()->set_step(step);
  } else {
    message.mutable_heartbeat()->set_step(step);
  }
  absl::Status status = absl::UnavailableError("there is no coordinator");
  site.host->Command([&](server::Coordinator& c) {
    status = c.members().Handle(site.id, site.process->incarnation(), message);
  });
  world_.Count("lies_told");
  world_.Trace(site.id, " says that it is at step ", step, ": ", status.ToString());
  if (status.ok()) {
    world_.Violate("lies_are_refused", absl::StrCat(site.id, " is believed to be at step ", step));
  }
}

void Simulation::ScheduleFault() {
  // Exponential, as of things that do not know of each other.
  const double mean = absl::ToDoubleSeconds(scenario_.between_faults);
  world_.After(absl::Seconds(-mean * std::log(1.0 - world_.Uniform())), [this] {
    if (!world_.faulty()) return;
    Befall();
    ScheduleFault();
  });
}

void Simulation::Befall() {
  Site& site = sites_[static_cast<size_t>(world_.Between(0, scenario_.sites - 1))];
  Stream* stream = site.process == nullptr ? nullptr : site.process->stream();
  std::string name = site.id;
  if (!regions_.empty() && world_.Chance(0.3)) {
    const Region& region =
        regions_[static_cast<size_t>(world_.Between(0, std::ssize(regions_) - 1))];
    stream = region.process == nullptr ? nullptr : region.process->stream();
    name = region.id;
  }
  const std::pair<int, std::function<void()>> choices[] = {
      {scenario_.kill_worker, [&] { KillWorker(site); }},
      {scenario_.kill_coordinator, [&] { AnyHost().Kill(); }},
      {scenario_.shut_coordinator_down, [&] { AnyHost().ShutDown(); }},
      {scenario_.sever_stream,
       [&] {
         if (stream == nullptr) return;
         world_.Trace("the stream of ", name, " is cut");
         stream->Sever();
       }},
      {scenario_.stall_stream,
       [&] {
         if (stream == nullptr) return;
         world_.Trace("the stream of ", name, " stalls");
         stream->Stall(world_.Between(absl::Seconds(1), absl::Seconds(20)));
       }},
      {scenario_.second_process, [&] { StartSecondProcess(site); }},
      {scenario_.pause, [&] { Pause(); }},
      {scenario_.drain,
       [&] {
         world_.Count("drains");
         world_.Trace(site.id, " is to drain");
         site.host->Command(
             [&](server::Coordinator& c) { c.orders().Drain(site.id).IgnoreError(); });
       }},
      {scenario_.stop_at_step, [&] { StopAtStep(); }},
      {scenario_.jump_wall_clock,
       [&] {
         world_.Count("wall_clock_jumps");
         world_.clock().JumpWallClock(absl::Seconds(world_.Between(-100'000, 100'000)));
       }},
  };
  int sum = 0;
  for (const auto& [weight, act] : choices) sum += weight;
  if (sum == 0) return;
  int64_t drawn = world_.Between(1, sum);
  for (const auto& [weight, act] : choices) {
    drawn -= weight;
    if (drawn > 0) continue;
    act();
    return;
  }
}

void Simulation::BeQuiet() {
  world_.Trace("no more faults");
  world_.set_faulty(false);
  Unpause();
}

bool Simulation::AllFinished() const {
  return std::ranges::all_of(sites_, [](const Site& site) { return site.finished; });
}

Outcome Simulation::Run() {
  host_.Start();
  for (const int sites : scenario_.regions) AddRegion(sites);
  for (const Region& region : regions_) region.host->Start();
  sites_.resize(static_cast<size_t>(scenario_.sites));
  for (int i = 0; i < scenario_.sites; ++i) {
    Site& site = sites_[static_cast<size_t>(i)];
    site.id = absl::StrCat("site-", i);
    site.host = &host_;
    site.auditor = &auditor_;
    int end = 0;
    for (size_t r = 0; r < regions_.size() && i >= end; ++r) {
      end += scenario_.regions[r];
      if (i >= end) continue;
      site.host = regions_[r].host.get();
      site.auditor = regions_[r].auditor.get();
    }
    if (!replayed_.empty()) site.record = replayed_[static_cast<size_t>(i)];
    // Some come when the others are well on their way.
    const bool late = i >= scenario_.config.membership().start_workers();
    StartSite(site, world_.Between(absl::ZeroDuration(), absl::Seconds(late ? 10 : 1)));
  }
  if (scenario_.quiet_at > absl::ZeroDuration()) {
    ScheduleFault();
    if (scenario_.liars > 0) world_.After(scenario_.between_faults, [this] { Lie(); });
    world_.After(scenario_.quiet_at, [this] { BeQuiet(); });
  } else {
    world_.set_faulty(false);
  }
  int64_t quiet_events = 0;
  while (!AllFinished() && !world_.violation().has_value()) {
    world_.RunNext();
    auditor_.AfterEvent(host_.coordinator());
    for (const Region& region : regions_) region.auditor->AfterEvent(region.host->coordinator());
    if (world_.faulty()) continue;
    if (++quiet_events > kMostQuietEvents || world_.now() > scenario_.quiet_at + kMostQuietTime) {
      GiveUp();
    }
  }
  if (!world_.violation().has_value()) CheckTheEnd();
  Outcome outcome = {.violation = world_.violation(),
                     .events = world_.events(),
                     .counts = world_.counts(),
                     .published = auditor_.Published(),
                     .merges = {},
                     .comparable = false,
                     .compared = false};
  for (Site& site : sites_) outcome.merges.push_back(std::move(site.record));
  return outcome;
}

void Simulation::GiveUp() {
  std::string text = "it does not end:";
  for (const Site& site : sites_) {
    absl::StrAppend(&text, " ", site.id, site.finished ? " has finished," : ",", " step ",
                    site.process == nullptr ? -1 : site.process->step());
  }
  if (host_.coordinator() != nullptr) {
    const v1::RunStatus run = host_.coordinator()->GetStatus();
    for (const v1::FragmentStatus& status : run.fragments()) {
      absl::StrAppend(&text, "; fragment ", status.fragment(), " at ", status.published_version(),
                      ": ", status.waiting_for());
    }
  }
  world_.Violate("reaches_the_end", text);
}

void Simulation::CheckTheEnd() {
  const SyncSchedule schedule(plan_.fragments(), scenario_.config.sync().steps_between_syncs(),
                              scenario_.config.sync().overlap_steps());
  const int64_t budget = scenario_.config.train().steps();
  int64_t end = 0;
  for (const Site& site : sites_) end = std::max(end, site.last_step);
  if (stop_step_ == 0 && end != budget) {
    world_.Violate("reaches_the_end", absl::StrCat("the run ends at step ", end, " of ", budget));
  }
  for (int i = 0; i < plan_.fragments(); ++i) {
    const int64_t due = schedule.RoundsSentBy(i, end);
    // Asked to stop, who resumes from a checkpoint need not get as far again.
    if (auditor_.version(i) == due || (stop_step_ > 0 && auditor_.version(i) > due)) continue;
    world_.Violate(
        "reaches_the_end",
        absl::StrCat("fragment ", i, " ends at version ", auditor_.version(i), "; after step ", end,
                     " it is due to be at ", schedule.RoundsSentBy(i, end)));
  }
  for (const Region& region : regions_) {
    for (int i = 0; i < plan_.fragments() && stop_step_ == 0; ++i) {
      if (region.auditor->version(i) == auditor_.version(i)) continue;
      world_.Violate("tiers_agree", absl::StrCat("fragment ", i, " of ", region.id,
                                                 " ends at version ", region.auditor->version(i),
                                                 ", its parent's at ", auditor_.version(i)));
    }
  }
}

}  // namespace

Outcome Simulate(const Scenario& scenario, std::ostream* trace, const PlantedBug& bug) {
  return Simulation(scenario, trace, bug, {}).Run();
}

Outcome SimulateAndCompare(const Scenario& scenario, std::ostream* trace, const PlantedBug& bug) {
  Outcome outcome = Simulate(scenario, trace, bug);
  // A region goes on without a site that says that it has failed.
  outcome.comparable = scenario.undisturbed_bits &&
                       (scenario.regions.empty() || outcome.counts.at("workers_failed") == 0);
  const bool all_resumed = outcome.counts.at("workers_too_far_behind") == 0;
  if (!outcome.comparable || outcome.violation.has_value() || !all_resumed) return outcome;
  outcome.compared = true;
  const Outcome undisturbed =
      Simulation(WithoutFaults(scenario), nullptr, {}, outcome.merges).Run();
  if (undisturbed.violation.has_value()) {
    outcome.violation = {undisturbed.violation->invariant,
                         absl::StrCat("without faults: ", undisturbed.violation->message)};
  } else if (std::memcmp(undisturbed.published.data(), outcome.published.data(),
                         outcome.published.size() * sizeof(float)) != 0) {
    outcome.violation = {"ends_in_undisturbed_bits",
                         "the published parameters differ from the undisturbed run's"};
  }
  return outcome;
}

}  // namespace causeway::simulation
