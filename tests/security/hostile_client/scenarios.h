// A member that lies, or one who should be none, against a run; and whether the run held.
#ifndef CAUSEWAY_TESTS_SECURITY_HOSTILE_CLIENT_SCENARIOS_H_
#define CAUSEWAY_TESTS_SECURITY_HOSTILE_CLIENT_SCENARIOS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace causeway::hostile {

struct Outcome {
  bool held = false;
  std::string what = {};                // For people: what came of the attack.
  std::vector<std::string> table = {};  // Line by line, where there is more to say.
};

// Says what broke off the attack.
inline Outcome Failed(const absl::Status& status) {
  return {.held = false, .what = std::string(status.message())};
}

struct Scenario {
  std::string name;
  std::string attack;  // One line.
  std::function<Outcome()> play;
};

std::vector<Scenario> ContributionScenarios();
std::vector<Scenario> MembershipScenarios();
std::vector<Scenario> DurabilityScenarios();
std::vector<Scenario> AccessScenarios();
std::vector<Scenario> InvitationScenarios();
std::vector<Scenario> Http2Scenarios();
std::vector<Scenario> SiteScenarios();
std::vector<Scenario> LoadScenarios();

}  // namespace causeway::hostile

#endif  // CAUSEWAY_TESTS_SECURITY_HOSTILE_CLIENT_SCENARIOS_H_
