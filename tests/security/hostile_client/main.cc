// Attacks a coordinator in every way that tests/security knows, and says what it withstood.
//
//   hostile_client [--scenario=NAME] [--json] [--list]
//
// Exit status 1 if an attack succeeded.
#include <algorithm>
#include <chrono>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "tests/security/hostile_client/scenarios.h"

ABSL_FLAG(std::string, scenario, "", "Play this one alone");
ABSL_FLAG(bool, json, false, "Print one JSON object instead of a table");
ABSL_FLAG(bool, list, false, "Print the names of all scenarios, and play none");

namespace causeway::hostile {
namespace {

constexpr char kProgram[] = "hostile_client";
constexpr char kHelp[] =
    "Attacks a coordinator as a member that lies would, one scenario after the other.\n";

int Main(int argc, char** argv) {
  if (!ParseCommandLine(argc, argv, kHelp).empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags only"));
  }
  std::vector<Scenario> scenarios;
  for (const auto& make : {ContributionScenarios, MembershipScenarios, DurabilityScenarios,
                           AccessScenarios, InvitationScenarios, Http2Scenarios, SiteScenarios}) {
    for (Scenario& scenario : make()) scenarios.push_back(std::move(scenario));
  }
  const std::string wanted = absl::GetFlag(FLAGS_scenario);
  if (!wanted.empty()) {
    std::erase_if(scenarios, [&](const Scenario& scenario) { return scenario.name != wanted; });
    if (scenarios.empty()) {
      return Refuse(kProgram, absl::InvalidArgumentError(absl::StrCat(
                                  "there is no scenario ", wanted, ": --list names them")));
    }
  }
  if (absl::GetFlag(FLAGS_list)) {
    for (const Scenario& scenario : scenarios) std::cout << scenario.name << '\n';
    return 0;
  }
  nlohmann::json rows = nlohmann::json::object();
  int held = 0;
  for (const Scenario& scenario : scenarios) {
    const auto began = std::chrono::steady_clock::now();
    const absl::StatusOr<Outcome> played = scenario.play();
    const Outcome outcome =
        played.ok() ? *played : Outcome{.what = std::string(played.status().message())};
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    held += outcome.held;
    rows[scenario.name] = {{"attack", scenario.attack},
                           {"held", outcome.held},
                           {"what", outcome.what},
                           {"table", outcome.table},
                           {"seconds", seconds}};
    if (!absl::GetFlag(FLAGS_json)) {
      std::cout << absl::StrFormat("%-20s %-6s %5.1f s  %s\n%27s           %s\n", scenario.name,
                                   outcome.held ? "held" : "FELL", seconds, scenario.attack, "",
                                   outcome.what)
                << std::flush;
      for (const std::string& line : outcome.table) std::cout << "    " << line << '\n';
    }
  }
  const int count = static_cast<int>(scenarios.size());
  if (absl::GetFlag(FLAGS_json)) {
    std::cout << nlohmann::json{{"scenarios", count}, {"held", held}, {"rows", rows}}.dump(2)
              << '\n';
  } else {
    std::cout << held << " of " << count << " held\n";
  }
  return held == count ? 0 : kExitFailed;
}

}  // namespace
}  // namespace causeway::hostile

int main(int argc, char** argv) { return causeway::hostile::Main(argc, argv); }
