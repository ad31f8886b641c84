// Finds what slack, max_overlap_steps beyond overlap_steps, does for a simulated run
// (star_model.h), and how much of it a run needs.
#ifndef CAUSEWAY_SERVER_PLANNER_SLACK_H_
#define CAUSEWAY_SERVER_PLANNER_SLACK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/star_model.h"

namespace causeway::server {

// The same run with other slack.
struct SlackStudy {
  StarResult without;  // max_overlap_steps is overlap_steps.
  StarResult most;     // With all the slack that H allows.
};

// Errors as SimulateStar.
absl::StatusOr<SlackStudy> StudySlack(const StarSetting& setting);

// The slack with which that share of the stretches, 0 to 1, would not have been waited for; 0 where
// there are none. `late_steps` ascend.
int SlackFor(std::span<const int> late_steps, double share);
// The least slack with which what is waited for at these times comes to so many steps at most.
int SlackForWaits(std::span<const int> late_steps, double steps);

// Steps of the schedule after which the setting's disturbances have shown what they do: some fifty
// of each that is drawn, 20 H at least, and no more than a simulation of seconds.
int64_t DisturbedSteps(const StarSetting& setting);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_SLACK_H_
