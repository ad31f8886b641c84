// A member that lies, or one who should be none, against a run; and whether the run held.
#pragma once

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/security/hostile_client/team.h"

namespace causeway::hostile {

struct Outcome {
  bool held = false;
  std::string what = {};                // For people: what came of the attack.
  std::vector<std::string> table = {};  // Line by line, where there is more to say.
};

struct Scenario {
  std::string name;
  std::string attack;  // One line.
  // An error, too, is an attack that succeeded.
  std::function<absl::StatusOr<Outcome>()> play;
};

std::vector<Scenario> ContributionScenarios();
std::vector<Scenario> MembershipScenarios();
std::vector<Scenario> DurabilityScenarios();
std::vector<Scenario> AccessScenarios();
std::vector<Scenario> InvitationScenarios();
std::vector<Scenario> Http2Scenarios();
std::vector<Scenario> SiteScenarios();

}  // namespace causeway::hostile
