// Simulates runs of a coordinator and many workers, one per seed, and checks their invariants.
//
//   simulation [--scenarios=N] [--seed=S] [--json] [--trace] [--keep_going]
//
// Exit status 1 if an invariant did not hold. The first such seed is printed with the command that
// replays it.
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "common/cli/command_line.h"
#include "tests/simulation/simulation.h"

ABSL_FLAG(int64_t, scenarios, 1000, "How many seeds to run, one after the other");
ABSL_FLAG(uint64_t, seed, 1, "The first one");
ABSL_FLAG(bool, json, false, "Print one JSON object instead of a table");
ABSL_FLAG(bool, trace, false, "Print every event; for one scenario");
ABSL_FLAG(bool, keep_going, false, "Do not stop at the first failure");

namespace causeway::simulation {
namespace {

constexpr char kProgram[] = "simulation";
constexpr char kHelp[] =
    "Simulates runs of a coordinator and many workers under faults, one per seed, without sockets\n"
    "or real time, and checks their invariants after every event.\n";

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Failure {
  uint64_t seed = 0;
  Violation violation;
};

void PrintFailure(const Failure& failure) {
  std::cerr << "FAILED: seed " << failure.seed << " violates " << failure.violation.invariant
            << "\n  " << failure.violation.message << "\n  " << Describe(DrawScenario(failure.seed))
            << "\n  replay: tests/simulation/run --scenarios 1 --trace --seed " << failure.seed
            << '\n';
}

int Main(int argc, char** argv) {
  if (!ParseCommandLine(argc, argv, kHelp).empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags only"));
  }
  const int64_t scenarios = absl::GetFlag(FLAGS_scenarios);
  const uint64_t first = absl::GetFlag(FLAGS_seed);
  const bool trace = absl::GetFlag(FLAGS_trace);
  if (scenarios < 1 || (trace && scenarios != 1)) {
    return Refuse(kProgram,
                  absl::InvalidArgumentError("--scenarios must be 1 or more, and 1 with --trace"));
  }
  const auto began = std::chrono::steady_clock::now();
  const double cpu_before = CpuSeconds();
  Counts counts;
  int64_t events = 0;
  int64_t done = 0;
  int64_t comparable = 0;
  int64_t compared = 0;
  int64_t with_liars = 0;
  std::vector<Failure> failures;
  for (; done < scenarios; ++done) {
    if (done > 0 && done % 1000 == 0) std::cerr << done << " of " << scenarios << " scenarios\n";
    const Scenario scenario = DrawScenario(first + static_cast<uint64_t>(done));
    if (trace) std::cout << Describe(scenario) << '\n';
    const Outcome outcome = SimulateAndCompare(scenario, trace ? &std::cout : nullptr);
    events += outcome.events;
    comparable += outcome.comparable;
    compared += outcome.compared;
    with_liars += scenario.liars > 0;
    for (const auto& [name, count] : outcome.counts) counts[name] += count;
    if (outcome.violation.has_value()) {
      failures.push_back({scenario.seed, *outcome.violation});
      PrintFailure(failures.back());
      if (!absl::GetFlag(FLAGS_keep_going)) {
        ++done;
        break;
      }
    }
  }
  const double seconds = Seconds(began);
  nlohmann::json report = {{"scenarios", done},
                           {"first_seed", first},
                           {"failed", failures.size()},
                           {"comparable_with_undisturbed", comparable},
                           {"compared_with_undisturbed", compared},
                           {"with_liars", with_liars},
                           {"events", events},
                           {"seconds", seconds},
                           {"cpu_seconds", CpuSeconds() - cpu_before},
                           {"scenarios_per_second", static_cast<double>(done) / seconds},
                           {"happenings", counts}};
  nlohmann::json& failed = report["failures"] = nlohmann::json::array();
  for (const auto& [seed, violation] : failures) {
    failed.push_back(
        {{"seed", seed}, {"invariant", violation.invariant}, {"message", violation.message}});
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::cout << report.dump(2) << '\n';
  } else {
    std::cout << absl::StrFormat(
        "%d scenarios from seed %d, %d with liars, %d events, %.1f s (%.0f per second), %d failed; "
        "%d of %d compared with their undisturbed run\n",
        done, first, with_liars, events, seconds, static_cast<double>(done) / seconds,
        failures.size(), compared, comparable);
    for (const auto& [name, count] : counts) {
      std::cout << absl::StrFormat("%10d  %s\n", count, name);
    }
  }
  return failures.empty() ? 0 : kExitFailed;
}

}  // namespace
}  // namespace causeway::simulation

int main(int argc, char** argv) { return causeway::simulation::Main(argc, argv); }
